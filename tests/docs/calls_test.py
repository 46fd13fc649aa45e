"""What the pitfalls' pages say of the calls that a program must make: known words, which the page and trace.md have too;
and docs/calls.md is made from them.

usage: calls_test.py
"""

import re
import sys
import unittest

sys.dont_write_bytecode = True
import calls  # noqa: E402

# By which a page's section says it; those of record:: by their own names.
SAID = {"loss": "tell_loss", "observer": r"observer\.h", "probes": r"Probes|trace::Attempt", "device_recorder": "DeviceRecorder",
        "launcher": "launcher"}
EVENTS = {"intent", "metric", "decision", "random_numbers", "training_state", "average", "async_result", "loss"}
NEEDS = calls.ROOT / "common" / "lockstep" / "trace" / "trace.md"


def own_job(page):
    return page.read_text(encoding="utf-8").split("## In your own job\n")[1].split("\n## ")[0]


class Calls(unittest.TestCase):
    def test_each_page_says_which_in_words_that_are_known(self):
        for slug, page in calls.pitfalls().items():
            with self.subTest(slug):
                found = calls.calls_of(page)
                self.assertTrue(found)
                self.assertEqual(len(found), len(set(found)))
                self.assertTrue("none" not in found or len(found) == 1)

    def test_each_page_explains_its_calls(self):
        for slug, page in calls.pitfalls().items():
            for call in set(calls.calls_of(page)) - {"none"}:
                self.assertRegex(own_job(page), SAID.get(call, rf"\b{call}\b"), f"{slug}: {call}")

    def test_each_call_tells_an_event_that_the_detector_needs(self):
        rows = {}
        same = ""
        for cells in re.findall(r"^\| (`[^|]+) \| \d \| (.+) \|$", NEEDS.read_text(encoding="utf-8"), re.MULTILINE):
            same = (same if re.match("(and )?the (same|others)", cells[1]) else "") + cells[1]
            rows.update({slug: same for slug in re.findall(r"`([a-z0-9-]+)`", cells[0])})
        for slug, page in calls.pitfalls().items():
            for call in set(calls.calls_of(page)) & EVENTS:
                self.assertIn(f"`{call}`", rows[slug], slug)

    def test_the_page_is_what_is_made(self):
        text = calls.PAGE.read_text(encoding="utf-8")
        self.assertEqual(text, calls.with_table(text), "python3 tests/docs/calls.py makes it anew")


if __name__ == "__main__":
    unittest.main(verbosity=2)
