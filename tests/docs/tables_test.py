"""What the pitfalls' pages say of the calls that a program must make: known words, which the page and its needs have too.
Each equation has its section. And the tables, what must hold in each lesson, and README's count are what would be made.

usage: tables_test.py
"""

import re
import sys
import unittest

sys.dont_write_bytecode = True
import tables  # noqa: E402

# By which a page's section says it; those of record:: by their own names.
SAID = {"loss": "tell_loss", "observer": r"observer\.h", "probes": r"Probes|trace::Attempt", "device_recorder": "DeviceRecorder",
        "launcher": "launcher"}
EVENTS = {"intent", "metric", "decision", "random_numbers", "training_state", "average", "async_result", "loss"}


def own_job(page):
    return page.read_text(encoding="utf-8").split("## In your own job\n")[1].split("\n## ")[0]


class Pages(unittest.TestCase):
    def test_each_says_which_calls_in_words_that_are_known(self):
        for page in tables.pages():
            with self.subTest(page.stem):
                found = tables.calls_of(page)
                self.assertNotIn("", found)
                self.assertEqual(len(found), len(set(found)))
                self.assertTrue("none" not in found or len(found) == 1)

    def test_each_explains_its_calls(self):
        for page in tables.pages():
            for call in set(tables.calls_of(page)) - {"none"}:
                self.assertRegex(own_job(page), SAID.get(call, rf"\b{call}\b"), f"{page.stem}: {call}")

    def test_each_says_what_watching_names_in_python(self):
        for slug, how in tables.in_python().items():
            [page] = tables.ROOT.glob(f"lessons/*/pitfalls/{slug}.md")
            first = " ".join(own_job(page).split("\n\n")[0].split())
            with self.subTest(slug):
                self.assertTrue(first.startswith("[In a Python job](../../../docs/python.md) "), first)
                self.assertEqual("without a change of the program" in first, how == "no call", first)
                if how != "no call" and "does not record" not in how:
                    self.assertEqual(re.findall(r"lockstep_torch\.\w+", first), re.findall(r"lockstep_torch\.\w+", how), first)

    def test_each_needs_the_events_that_its_calls_tell(self):
        for page in tables.pages():
            for call in set(tables.calls_of(page)) & EVENTS:
                self.assertIn(f"`{call}`", tables.facts_of(page)["needs"], page.stem)

    def test_each_equation_has_a_section_in_order(self):
        headings = re.findall(r"^## (.+)$", tables.EQUATIONS.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(headings, [slug for slug, _, _ in tables.equations()])

    def test_tables_and_readme_are_what_is_made(self):
        for page, text in tables.made().items():
            self.assertEqual(page.read_text(encoding="utf-8"), text, "python3 tests/docs/tables.py makes it anew")


if __name__ == "__main__":
    unittest.main(verbosity=2)
