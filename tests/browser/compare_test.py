"""The page of two compared runs, from their traces to a real browser.

Run by the Python of the project's environment: compare_test.py COURSE_PROGRAM LESSONS_FOLDER
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import browser
import made_up
from page import DEADLINE_S, ROOT, Opened, recorded

COMPARE_REPORT = ROOT / "reports" / "html" / "compare_report.py"
COURSE = LESSONS = None


def compared(a, b):
    told = subprocess.run([COURSE, "compare", "--json", a, b], capture_output=True, timeout=DEADLINE_S)
    return json.loads(told.stdout)


def write_page(said, file):
    subprocess.run([sys.executable, COMPARE_REPORT, file], input=json.dumps(said), text=True, check=True,
                   timeout=DEADLINE_S, stdout=subprocess.DEVNULL)


class ComparePage(Opened):
    """A job that shuffles alike in every epoch beside one that does not. A run's name and a layer's are hostile."""
    lesson, variant = "05_set_epoch", "missing-set-epoch"
    charts = {"by-step", "by-layer-mean-gradient", "by-layer-equal-after"}

    @classmethod
    def make(cls):
        a, b = (recorded(LESSONS / cls.lesson, variant, cls.folder / name)
                for name, variant in (("a", "correct"), ("b", cls.variant)))
        cls.said = compared(a, b)
        cls.said["b"]["name"] = f"{cls.folder}/{'b' * 200}/{made_up.HOSTILE}"
        for measured in cls.said["measured"]:
            for tensor in measured["tensors"][:1]:
                tensor["name"] = made_up.HOSTILE
        write_page(cls.said, cls.page)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0]).textContent.replace(/\\s+/g, ' ').trim()", selector)

    def of(self, part, equation):
        return next(one for one in self.said[part] if one["equation"] == equation)

    def test_the_answer_stands_first(self):
        self.assertEqual(self.text("main section:first-child strong"), self.said["verdict"])
        self.assertEqual(self.text("#answer .badge"), self.said["answer"])
        rows = self.js("return [...document.querySelectorAll('#answer tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))")
        self.assertEqual(rows, [[letter, run["name"], str(run["ranks"]), str(run["updates"])]
                                for letter, run in (("A", self.said["a"]), ("B", self.said["b"]))])

    def test_the_first_difference_is_marked(self):
        first = self.of("ledger", "own-samples")
        self.assertEqual(self.said["first"], "own-samples")
        told = self.text("#first li")
        for part in (first["sentence"], f"step {first['step']}", "ranks 0, 1", *first["broken_by"], first["apart"]["a"],
                     first["apart"]["b"]):
            self.assertIn(part, told)
        marked = self.js("return [...document.querySelectorAll('#compared tbody tr')].filter(row => row.querySelector('.badge'))"
                         ".map(row => row.cells[0].textContent.trim())")
        self.assertEqual(marked, [first["sentence"] + " first"])
        self.assertIn(f"first difference, step {first['step']}", self.text("#by-step figcaption"))

    def test_every_equation_has_a_row(self):
        rows = self.js("return [...document.querySelectorAll('#compared tbody tr')].map(row => "
                       "[row.cells[0].firstChild.textContent.trim(), row.cells[1].textContent, row.cells[2].textContent])")
        self.assertEqual([row[:2] for row in rows], [[line["sentence"], line["standing"]] for line in self.said["ledger"]])
        told = dict(zip((line["equation"] for line in self.said["ledger"]), (row[2] for row in rows)))
        for equation in ("loss-weights", "mean-gradient", "equal-after"):
            line = self.of("ledger", equation)
            self.assertEqual(line["standing"], "broken")
            self.assertIn(f"since step {line['step']}: {line['broken_by'][0]}: {line['apart']['a']} in A", told[equation])
            self.assertIn(f"({line['looked_at']})", told[equation])
            self.assertRegex(line["looked_at"], r"^\d+ steps?, of which \d+ differ$")
        self.assertEqual(told["equal-start"], "1 step, equal to the bit")

    def test_distances_are_drawn_by_step_and_by_layer(self):
        self.assertEqual(set(self.figures()), self.charts)
        measured = self.of("measured", "equal-after")
        drawn = self.table("by-layer-equal-after")
        self.assertEqual({row[0] for row in drawn}, {tensor["name"] for tensor in measured["tensors"]})
        self.assertEqual(len(drawn), sum(len(tensor["distances"]) for tensor in measured["tensors"]))
        self.assertIn("different", {row[2] for row in drawn})
        steps = [int(row[1]) for row in self.table("by-step") if row[0] == "equal-after"]
        self.assertEqual(steps, [apart["step"] for apart in measured["distances"]])

    def test_every_chart_is_drawn_and_nothing_is_cut_off_on_a_telephone(self):
        self.assert_drawn_at_any_width(self.figures())

    def test_everybody_can_use_it(self):
        self.assert_usable_by_everybody()


class EqualRuns(unittest.TestCase):
    """A run twice: no difference to mark, and no distance to draw."""

    def test_the_page_says_that_they_are_equal(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-compare-test-") as name:
            folder = pathlib.Path(name)
            a, b = (recorded(LESSONS / "05_set_epoch", "correct", folder / each) for each in ("a", "b"))
            page = folder / "compare.html"
            write_page(compared(a, b), page)
            self.assertEqual(page.stat().st_mode & 0o777, 0o600)
            shown = browser.Browser(browser.NARROW)
            try:
                shown.open(page)
                self.assertEqual(shown.js("return document.querySelector('#answer strong').textContent"),
                                 "A and B are equal to the bit, in all that was compared.")
                self.assertEqual(shown.js("return document.querySelectorAll('#first, .chart').length"), 0)
                self.assertLessEqual(shown.js("return document.documentElement.scrollWidth"), browser.NARROW[0])
                self.assertEqual((shown.axe(), shown.complaints()), ([], []))
            finally:
                shown.close()


if __name__ == "__main__":
    browser.skip_where_it_is_missing()
    COURSE, LESSONS = map(pathlib.Path, (sys.argv.pop(1), sys.argv.pop(1)))
    unittest.main()
