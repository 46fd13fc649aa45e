"""./lockstep report from its command line: what it writes, what it says of bad input, how long it takes. No browser.

Run by the Python of the project's environment: command_test.py
"""

import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import unittest

import made_up

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "html" / "report.py"
sys.path.insert(0, str(REPORT.parent))
import chart_library  # noqa: E402
import collect  # noqa: E402

DEADLINE_S = 60
MOST_SECONDS, MOST_BYTES = 5, 5_000_000


def call(*arguments):
    return subprocess.run([sys.executable, REPORT, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL)


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-report-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def made(self, *arguments):
        result = call("--reports", self.folder, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        return result

    def page(self):
        """The page less the chart library's script."""
        text = (self.folder / "report.html").read_text(encoding="utf-8")
        script = chart_library.script()
        self.assertEqual(text.count(script), 1)
        return text.replace(script, "")

    def assert_has(self, text, *wanted, no=()):
        """Without the page in the message."""
        for word in wanted:
            self.assertTrue(word in text, f"{word!r} is not in the page")
        for word in no:
            self.assertFalse(word in text, f"{word!r} is in the page")

    def test_the_page_lies_beside_the_reports_or_where_it_is_asked_for(self):
        made_up.small(self.folder)
        self.assertIn("3 lessons", self.made().stdout)
        self.assertTrue((self.folder / "report.html").is_file())
        elsewhere = self.folder / "new" / "page.html"
        self.made("--out", elsewhere)
        self.assertEqual(elsewhere.read_bytes(), (self.folder / "report.html").read_bytes())

    def test_a_full_run_s_page_is_small_and_soon_made(self):
        made_up.full_size(self.folder)
        self.made()  # the chart library's script is kept from now on
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.made()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Of the processor, not of the clock: other tests run beside this one.
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = (self.folder / "report.html").stat().st_size
        print(f"272 variants: {size / 1e6:.2f} MB in {seconds:.2f} s of the processor")
        self.assertLess(seconds, MOST_SECONDS)
        self.assertLess(size, MOST_BYTES)

    def test_what_cannot_be_read_is_left_out_with_the_reason(self):
        made_up.small(self.folder)
        (self.folder / "04_torn.json").write_text('{"lesson": "04_', encoding="utf-8")
        made_up.write(self.folder, {**made_up.report("05_other", []), "variants": [{"name": "x"}]})
        (self.folder / "build_times.json").write_text('{"benchmark": "build_times"}', encoding="utf-8")
        result = self.made()
        self.assertIn("3 lessons", result.stdout)
        self.assertRegex(result.stderr, r"left out 04_torn\.json: cannot be read: .*char")
        self.assertRegex(result.stderr, r"left out 05_other\.json: .*schema.*variants/0: 'part' is a required")
        self.assertNotIn("build_times", result.stderr)
        self.assert_has(self.page(), "<li>04_torn.json: cannot be read")

    def test_of_two_reports_of_a_lesson_the_newer_is_shown(self):
        made_up.write(self.folder, made_up.report("05_x", [made_up.variant("correct", "correct")], title="The older"))
        (self.folder / "05_x.json").rename(self.folder / "99_older.json")
        os.utime(self.folder / "99_older.json", (1, 1))
        made_up.write(self.folder, made_up.report("05_x", [made_up.variant("correct", "correct")], title="The newer"))
        self.assertIn("left out 99_older.json: 05_x.json is a newer report of 05_x", self.made().stderr)
        self.assert_has(self.page(), "The newer", no=("The older",))

    def test_a_report_of_version_1_is_read(self):
        newer = made_up.variant("correct", "correct")
        older = {{"kind": "form", "stall": "standstill"}.get(key, key): value for key, value in newer.items()}
        made_up.write(self.folder, {**made_up.report("05_x", [older]), "schema_version": 1})
        self.assertEqual(collect.collect(self.folder, self.folder).comparisons, [made_up.report("05_x", [newer])])

    def test_a_newer_run_of_a_single_variant_stands_in_its_place(self):
        first, second = (made_up.variant(name, "broken", losses=[[1.0]]) for name in ("one", "two"))
        for written, wanted in ((2, "as-expected"), (8, "not-named")):
            lesson, single = self.folder / "05_a.json", self.folder / "variants" / "05_a.json"
            made_up.write(self.folder, made_up.report("05_a", [first, second]))
            made_up.write(self.folder / "variants", made_up.report("05_a", [{**second, "verdict": "not-named"}]),
                          made_up.report("06_b", [first]))
            os.utime(lesson, (5, 5))
            os.utime(single, (written, written))
            shown = collect.collect(self.folder, self.folder).comparisons
            self.assertEqual([each["lesson"] for each in shown], ["05_a", "06_b"])
            self.assertEqual([(run["name"], run["verdict"]) for run in shown[0]["variants"]],
                             [("one", "as-expected"), ("two", wanted)])

    def test_two_variants_of_one_name(self):
        made_up.write(self.folder, made_up.report("05_x", [made_up.variant("correct", "correct")] * 2))
        result = call("--reports", self.folder)
        self.assertEqual(result.returncode, 3)
        self.assertIn("05_x.json: two variants have the name correct", result.stderr)

    def test_nothing_to_show_and_nowhere_to_write(self):
        for arguments, text in ((("--reports", self.folder), "there is no lesson's report in"),
                                (("--reports", self.folder / "none"), "there is no folder")):
            result = call(*arguments)
            self.assertEqual((result.returncode, result.stdout), (3, ""))
            self.assertIn(text, result.stderr)
            self.assertIn("./lockstep run all", result.stderr)
        made_up.small(self.folder)
        (self.folder / "file").write_text("")
        result = call("--reports", self.folder, "--out", self.folder / "file" / "page.html")
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stderr, r"file.*: (Not a directory|File exists)")
        self.assertEqual(call("--no-such-option").returncode, 2)

    def test_results_that_are_missing_are_named(self):
        made_up.small(self.folder)
        (self.folder / "measured").mkdir()
        self.made("--measured", self.folder / "measured")
        self.assert_has(self.page(), "There is no sweep", "No result for: Time beside Python&#39;s (./lockstep bench ddp_step")

    def test_a_result_of_another_shape_is_named_and_the_others_are_shown(self):
        made_up.small(self.folder)
        (self.folder / "measured").mkdir()
        (self.folder / "measured" / "launch_time.json").write_text('{"ranks": 4}', encoding="utf-8")
        (self.folder / "measured" / "observe_overhead.json").write_bytes((ROOT / "reports/measured/observe_overhead.json").read_bytes())
        self.made("--measured", self.folder / "measured")
        self.assert_has(self.page(), "the result is not as it used to be: KeyError", 'id="measured-overhead"',
                        no=('id="measured-python"',))

    def test_hostile_text_never_leaves_its_place(self):
        made_up.small(self.folder)
        self.made()
        self.assert_has(self.page(), "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;",
                        "\\u003c/script\\u003e\\u003cimg src=x onerror=alert(1)\\u003e", no=("<img", made_up.HOSTILE))
        self.assertEqual(self.page().count("</script>"), 3)

    def test_the_page_names_no_other_file(self):
        made_up.small(self.folder)
        self.made()
        self.assertEqual(re.findall(r'(?:src|href)="(?!#|data:,")[^"]*"', self.page()), [])


if __name__ == "__main__":
    unittest.main(verbosity=1)
