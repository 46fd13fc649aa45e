"""What a reader of the report meets, and in which order, in a real browser: a fault's picture beside the right one,
rounded figures, nothing cut off on a telephone.

Run by the Python of the project's environment: reading_test.py COURSE_PROGRAM
"""

import re
import subprocess
import sys
import unittest

import browser
import made_up
from page import Page
import pictures  # after page, which says where it is

BROKEN, CORRECT = "run-03_pictures-sum-not-mean", "run-03_pictures-correct"
LONG = 2.2780735553503035
RUN_S = 120  # of a lesson
COURSE = None
# Of an element: whether nothing of it is cut off, or reached by scrolling only.
WHOLE = """const whole = e => {
    const box = e.getBoundingClientRect();
    if (box.width === 0 || box.left < 0 || box.right > innerWidth + 0.5) return false;
    if (e.scrollWidth > e.clientWidth + 1) return false;
    for (let up = e.parentElement; up; up = up.parentElement)
        if (getComputedStyle(up).overflowX !== 'visible' && up.scrollWidth > up.clientWidth) return false;
    return true;
};"""


def digits(number):
    """How many significant ones a figure has as text."""
    return len(re.sub(r"e.*", "", number).replace(".", "").lstrip("0"))


def decimals(text):
    return re.findall(r"(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?(?![\w.]*\.)", text)


class Order(Page):
    def places(self, run, *selectors):
        """Where the first of each is in a run, from its top."""
        return self.js("""const run = document.getElementById(arguments[0]); run.open = true;
            return arguments[1].map(selector => run.querySelector(selector).getBoundingClientRect().top)""",
                       run, selectors)

    def test_a_broken_variant_leads_with_its_fault(self):
        places = self.places(BROKEN, "summary .name", ".pair", ".findings", ".oracles", f"#loss-{BROKEN}")
        self.assertEqual(places, sorted(places))
        self.assertEqual(len(set(places)), len(places))
        titles = self.js("return [...document.getElementById(arguments[0]).querySelectorAll('.pair h4')]"
                         ".map(title => title.textContent)", BROKEN)
        self.assertEqual(titles, ["Collectives by rank", "Who drew which sample", "Distance between the replicas"])

    def test_what_is_wrong_is_said_before_a_run_is_opened(self):
        said = self.js("return document.getElementById(arguments[0]).querySelector('summary .what').textContent",
                       pictures.run_id("16_hostile", made_up.HOSTILE))
        self.assertEqual(said, made_up.HOSTILE)

    def test_losses_come_last_in_a_lesson(self):
        self.assertTrue(self.js("""const lesson = document.getElementById('lesson-03_pictures');
            return Boolean(lesson.querySelector('.runs').compareDocumentPosition(lesson.querySelector('.losses'))
                           & Node.DOCUMENT_POSITION_FOLLOWING) && !lesson.querySelector('.losses').open"""))

    def test_the_first_fault_with_a_picture_is_open(self):
        self.assertEqual(self.js("return document.querySelector('.run[open]').id"), BROKEN)
        self.assertEqual(self.js("return document.querySelectorAll('#lesson-09_hangs .run[open]').length"), 0)

    def panels(self, kind):
        """The pair's boxes of both drawings, and the words on their axes."""
        drawn = []
        for figure in (f"beside-{kind}-{BROKEN}", f"{kind}-{BROKEN}"):
            self.browser.draw(figure)
        for figure in (f"beside-{kind}-{BROKEN}", f"{kind}-{BROKEN}"):
            drawn.append(self.js("""const figure = document.getElementById(arguments[0]);
                const svg = figure.querySelector('svg'), box = svg.getBoundingClientRect();
                const words = [...svg.querySelectorAll('.role-axis text')].map(text => text.textContent);
                return [box.left, box.top, words, figure.querySelector('.title').textContent]""", figure))
        return drawn

    def test_the_right_picture_is_beside_it_on_the_same_scales(self):
        for kind in ("timeline", "owners", "divergence"):
            (left, top, axes, title), (other_left, other_top, other_axes, other_title) = self.panels(kind)
            self.assertLess(left + 300, other_left, kind)
            self.assertAlmostEqual(top, other_top, delta=1, msg=kind)
            self.assertEqual(axes, other_axes, kind)
            self.assertRegex(title, ": correct$")
            self.assertRegex(other_title, ": sum-not-mean$")

    def test_on_a_telephone_the_right_picture_is_above(self):
        self.browser.resize(browser.NARROW)
        for kind in ("timeline", "owners", "divergence"):
            (left, top, _, _), (other_left, other_top, _, _) = self.panels(kind)
            self.assertEqual(left, other_left, kind)
            self.assertLess(top + 50, other_top, kind)

    def test_the_right_picture_has_the_correct_run_s_rows(self):
        for kind in ("timeline", "owners", "divergence"):
            self.assertEqual(self.table(f"beside-{kind}-{BROKEN}"), self.table(f"{kind}-{CORRECT}"))

    def test_where_no_picture_differs_the_oracle_leads(self):
        run = "run-09_hangs-never-named"
        said = self.js("const run = document.getElementById(arguments[0]); run.open = true; return run.innerText", run)
        self.assertIn("The run left no picture. The oracle's figures show this fault.", said)
        self.assertLess(said.index("The oracle's figures show"), said.index("What the oracle measured"))


class Rounded(Page):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        made_up.write(cls.folder, made_up.report("04_long", [
            made_up.variant("correct", "correct", losses=[[LONG, LONG / 2]] * 2, pictures=made_up.pictures(False),
                         oracles=[made_up.oracle("long", 1.0, 1.0000000022, manifested=False)]),
            made_up.variant("long", "broken", losses=[[LONG + 0.1, LONG / 3]] * 2, pictures=made_up.pictures(True),
                         oracles=[made_up.oracle("long", 1.4142135623730951, LONG),
                                  made_up.oracle("long", 0.0, 1.23456789e-8)])]))
        cls.make()

    def test_every_figure_has_four_digits(self):
        for figure in self.figures():
            self.browser.draw(figure)
            self.table(figure)
        self.open_all()
        text = self.js("return document.querySelector('main').innerText + ' '"
                       " + [...document.querySelectorAll('svg text')].map(text => text.textContent).join(' ')")
        found = decimals(text)
        self.assertGreater(len(found), 100)
        self.assertEqual([number for number in found if digits(number) > 4], [])
        for shown in ("2.278", "1.414", "1.235e-08"):
            self.assertIn(shown, found)

    def test_the_whole_figure_stays_for_programs(self):
        whole = self.js("return [...document.querySelectorAll('.oracles data')].map(data => Number(data.value))")
        self.assertIn(LONG, whole)

    def test_in_a_tooltip_too(self):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By
        figure = "loss-run-04_long-long"
        self.browser.draw(figure)
        mark = self.browser.driver.find_element(By.CSS_SELECTOR, f"#{figure} svg .mark-symbol[class*='marks'] > path")
        self.js("arguments[0].scrollIntoView({block: 'center'})", mark)
        ActionChains(self.browser.driver).move_to_element(mark).perform()
        tip = self.wait("return document.querySelector('#vg-tooltip-element.visible')?.innerText", what="the tooltip")
        self.assertRegex(tip, r"2\.[23]78")
        self.assertEqual([number for number in decimals(tip) if digits(number) > 4], [])


class OfLessons(Page):
    """A run of those lessons that are asked for here, and of one that skips what wants a GPU."""

    @classmethod
    def make(cls):
        cls.reports = cls.folder / "run"
        for lesson in ("03", "04", "05", "08", "09", "12", "13", "17"):
            subprocess.run([COURSE, "run", lesson, "--reports", cls.reports], check=True, timeout=RUN_S, stdout=subprocess.DEVNULL)
        super().make()

    def test_the_picture_that_leads_is_the_fault_s(self):
        pairs = self.js("""return Object.fromEntries([...document.querySelectorAll('.run')].map(run => [
            run.id.slice('run-'.length),
            [...run.querySelectorAll('.pair .chart:first-child')].map(chart => chart.id.split('-')[1])]))""")
        for run, wanted in (("05_set_epoch-missing-set-epoch", ["owners"]),
                            ("04_sampler-no-sharding", ["owners", "timeline"]),
                            ("03_ddp-no-gradient-sync", ["divergence", "timeline"]),
                            ("03_ddp-no-initial-broadcast", ["divergence", "timeline"]),
                            ("13_clipping_and_mixed_precision-local-overflow-skip", ["divergence", "timeline"]),
                            ("09_hanging_collective-rank-conditional-collective", ["timeline"]),
                            ("12_gradient_accumulation-sync-every-microbatch", ["timeline"]),
                            ("08_lr_scaling-lr-not-scaled", []), ("03_ddp-correct-wrapper", [])):
            self.assertEqual(pairs[run], wanted, run)
        said = self.js("return document.querySelector('#run-08_lr_scaling-lr-not-scaled .no-picture').textContent")
        self.assertRegex(said, r"No picture differs from the correct run's\.\s+The oracle's figures show this fault\.")

    def test_a_lesson_with_skips_is_not_plainly_as_expected(self):
        rows = self.js("""return [...document.querySelectorAll('#by-lesson tbody tr')].map(row => {
            const badge = row.querySelector('.badge'), skipped = row.querySelector('[data-label=skipped]').textContent;
            return [row.dataset.lesson, Number(skipped), badge.textContent, badge.className,
                    getComputedStyle(badge).borderStyle];
        })""")
        skipped = [row for row in rows if row[1]]
        self.assertTrue(skipped)
        for lesson, number, verdict, kind, border in skipped:
            self.assertRegex(verdict, rf"^\d+ as expected, {number} skipped$", lesson)
            self.assertEqual((kind, border), ("badge skipped", "dashed"), lesson)
        self.assertEqual({row[2] for row in rows if not row[1]}, {"✓ as expected"})

    def test_figures_are_not_cut_off_on_a_telephone(self):
        self.browser.resize(browser.NARROW)
        self.open_all()
        cells = "[...document.querySelectorAll('.stacks tbody :is(td, th, data, .badge)')]"
        self.assertGreater(self.js(f"return {cells}.length"), 1200)
        cut = self.js(f"{WHOLE} return {cells}.filter(e => !whole(e)).map(e => e.closest('tr').outerHTML)")
        self.assertEqual(cut, [])
        self.assertEqual(self.js("return document.querySelectorAll('.stacks td:not([role=cell])').length"), 0)

    def test_at_no_width_does_the_page_scroll_sideways(self):
        self.js("for (const run of document.querySelectorAll('.run')) run.open = true")
        for width in (320, 360, 600, 768, 900, 1280):
            self.browser.resize((width, 900))
            self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), width)

    def test_a_legend_is_one_line(self):
        html = """return [...document.querySelectorAll('.legend')].filter(legend => {
            const items = [...legend.children].map(item => item.getBoundingClientRect());
            return new Set(items.map(box => Math.round(box.top))).size > 1 || items.some(box => box.width === 0)
                || items.at(-1).right > legend.getBoundingClientRect().right + 0.5;
        }).map(legend => legend.textContent)"""
        svg = """return [...document.querySelectorAll('svg .role-legend-entry')].filter(legend => {
            const tops = [...legend.querySelectorAll('.role-legend-label text')].map(
                text => Math.round(text.getBoundingClientRect().top));
            return new Set(tops).size !== 1;
        }).map(legend => legend.textContent)"""
        for size in (browser.WIDE, browser.NARROW):
            self.browser.resize(size)
            self.browser.open(self.page)
            for figure in [figure for figure in self.figures() if figure.startswith(("measured-", "matrix-"))]:
                self.browser.draw(figure)
            self.assertGreater(self.js("return document.querySelectorAll('svg .role-legend-entry').length"), 2)
            self.assertEqual(self.js(svg), [], size)
            self.open_all()
            self.assertGreater(self.js("return document.querySelectorAll('.legend').length"), 250)
            self.assertEqual(self.js(html), [], size)

    def test_its_words(self):
        self.open_all()
        text = self.js("return document.querySelector('main').innerText + document.querySelector('header').innerText")
        self.assertEqual(re.findall(r"(?i)\b(?:forms?|standstill|stood still)\b", text), [])
        self.assertEqual([number for number in decimals(text) if digits(number) > 6], [])


if __name__ == "__main__":
    browser.skip_where_it_is_missing()
    COURSE = sys.argv.pop(1)
    unittest.main(verbosity=1)
