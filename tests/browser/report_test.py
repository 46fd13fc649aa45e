"""The HTML report in a real browser: what is drawn, what it says, what a click or a key does.

Run by the Python of the project's environment: report_test.py
"""

import json
import unittest

import browser
import made_up
from page import ROOT, Page
import pictures  # after page, which says where it is

HOSTILE_RUN = pictures.run_id("16_hostile", made_up.HOSTILE)


def marks(kind, figure):
    """A script that counts the marks of a kind that a chart has, those of its legend and axes not."""
    chosen = ", ".join(f'svg .mark-{kind}[class*="marks"] > {element}' for element in ("path", "text"))
    return f"return document.getElementById({json.dumps(figure)}).querySelectorAll('{chosen}').length"


class Drawn(Page):
    def test_every_chart_is_drawn(self):
        self.assertGreater(len(self.figures()), 15)
        for figure in self.figures():
            self.browser.draw(figure)
            drawn = self.js("""const svg = document.getElementById(arguments[0]).querySelector('svg');
                return [svg.querySelectorAll('[class*="marks"] > path, [class*="marks"] > text').length,
                        svg.getBoundingClientRect().width]""", figure)
            self.assertGreater(drawn[0], 0, f"{figure} has no marks")
            self.assertGreater(drawn[1], 100, f"{figure} has no width")
            self.assertLessEqual(drawn[1], 1280)

    def test_losses_are_a_line_for_each_variant(self):
        self.browser.draw("loss-03_pictures-loop")
        self.assertEqual(self.js(marks("line", "loss-03_pictures-loop")), 4)  # and one process's
        self.assertEqual(self.js(marks("symbol", "loss-03_pictures-loop")), 8)

    def test_divergence_has_its_band_and_a_line(self):
        for figure in ("divergence-run-03_pictures-sum-not-mean", "beside-divergence-run-03_pictures-sum-not-mean"):
            self.browser.draw(figure)
            self.assertEqual([self.js(marks(kind, figure)) for kind in ("line", "symbol", "rect")], [1, 10, 1])

    def test_timeline_has_a_cell_for_each_call_and_marks_the_first_difference(self):
        figure = "timeline-run-03_pictures-sum-not-mean"
        self.browser.draw(figure)
        self.assertEqual(self.js(marks("rect", figure)), 11)
        words = self.js("return document.getElementById(arguments[0]).querySelector('svg').textContent", figure)
        self.assertIn("first difference", words)
        self.assertIn("…", words)
        self.browser.draw("timeline-run-03_pictures-correct")
        self.assertEqual(self.js(marks("rect", "timeline-run-03_pictures-correct")), 12)
        self.assertEqual(self.js(marks("rule", "timeline-run-03_pictures-correct")), 0)

    def test_owners_say_what_two_ranks_drew_and_what_none(self):
        rows = self.table("owners-run-03_pictures-sum-not-mean")
        self.assertEqual(rows[:4], [["epoch 0", "0", "2", "rank 0", "1"], ["epoch 0", "2", "4", "several ranks", "2"],
                                    ["epoch 0", "4", "6", "rank 1", "1"], ["epoch 0", "6", "8", "no rank", "0"]])
        self.browser.draw("owners-run-03_pictures-sum-not-mean")
        self.assertEqual(self.js(marks("rect", "owners-run-03_pictures-sum-not-mean")), 8)

    def test_where_a_report_holds_no_picture_the_page_says_so(self):
        note = self.js("return document.getElementById('run-09_hangs-correct').querySelector('.note').textContent")
        self.assertEqual(note, "This run's report holds no losses, no samples drawn, no distances between replicas, no collectives.")

    def test_narrow_pages_do_not_scroll_sideways(self):
        self.browser.resize(browser.NARROW)
        for figure in self.figures():
            self.browser.draw(figure)
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), browser.NARROW[0])
        self.assertEqual(self.js("""return [...document.querySelectorAll('.chart:not(.wide) svg')].filter(svg =>
            svg.getBoundingClientRect().right > innerWidth + 1).map(svg => svg.closest('.chart').id)"""), [])

    def test_printed_it_is_light_and_has_no_controls(self):
        self.browser.media({"prefers-color-scheme": "dark"})
        paper = "return getComputedStyle(document.body).backgroundColor"
        dark = self.js(paper)
        self.browser.media({"prefers-color-scheme": "dark"}, "print")
        self.assertNotEqual(self.js(paper), dark)
        self.assertEqual(self.js(paper), "rgb(255, 255, 255)")
        self.assertFalse(self.js("return document.querySelector('.filters').checkVisibility()"))
        self.assertGreater(len(self.browser.driver.print_page()), 10_000)


class Figures(Page):
    def test_totals(self):
        totals = {id: self.js("return document.getElementById(arguments[0]).textContent", f"total-{id}")
                  for id in ("right", "named", "alarms", "skipped")}
        self.assertEqual(totals, {"right": "7 of 9", "named": "3 of 4 that ran", "alarms": "0 of 4 healthy", "skipped": "1 of 9 (why)"})

    def test_oracles_are_the_reports_numbers(self):
        variants = self.json_of("03_pictures")["variants"]
        for variant in variants:
            shown = self.js("""return [...document.getElementById(arguments[0]).querySelectorAll('.oracles tbody tr')].map(
                row => [...row.querySelectorAll('data')].map(data => Number(data.value)))""", f"run-03_pictures-{variant['name']}")
            self.assertEqual(shown, [[oracle["expected"], oracle["tolerance"], oracle["observed"]] for oracle in variant["oracles"]])

    def test_a_figure_that_is_none(self):
        self.assertIn("not a number", self.js("return document.getElementById('run-09_hangs-never-named').textContent"))

    def test_losses_are_the_reports_numbers(self):
        rows = self.table("loss-03_pictures-loop")
        self.assertEqual([row[0] for row in rows], ["correct"] * 2 + ["sum-not-mean"] * 2 + ["near-miss-divided"] * 2
                         + ["one process"] * 2)
        self.assertEqual([float(row[3]) for row in rows], [2.5, 2.0, 3.625, 3.375, 2.5, 2.062, 2.5, 1.875])
        self.assertEqual(rows[5][4:], ["1.5", "2.625"])

    def test_divergence_is_the_reports_numbers(self):
        variant = self.json_of("03_pictures")["variants"][1]
        rows = self.table("divergence-run-03_pictures-sum-not-mean")
        self.assertEqual([[int(row[0]), float(row[1])] for row in rows],
                         [[point["step"], point["distance"]] for point in variant["pictures"]["divergence"]])

    def test_the_sweep_is_the_committed_result(self):
        matrix = json.loads((ROOT / "reports" / "results" / "matrix.json").read_text(encoding="utf-8"))
        expected = sorted(runs for level in matrix["levels"] for size in level["by_world_size"] for runs in size["verdicts"].values())
        self.assertEqual(sorted(int(row[2]) for row in self.table("matrix-sweep")), expected)

    def test_timings_are_the_committed_results(self):
        steps = json.loads((ROOT / "reports" / "results" / "ddp_step.json").read_text(encoding="utf-8"))["steps"]
        rows = self.table("measured-python")[:len(steps)]
        self.assertEqual([[float(row[1]), float(row[2]), float(row[3])] for row in rows],
                         [[float(f"{step['ratio_to']['python'][key]:.4g}") for key in ("median", "low_95", "high_95")]
                          for step in steps])

    def test_skips_and_environment(self):
        text = self.js("return document.getElementById('environment').textContent")
        self.assertRegex(text, r"09_hangs: needs-a-gpu: there is no GPU")
        self.assertIn("synthetic", text)
        self.assertIn(made_up.HOSTILE, text)


class Used(Page):
    def test_filter_by_lesson_and_outcome(self):
        self.assertEqual(len(self.shown_runs()), 9)
        self.select("filter-lesson", "09_hangs")
        self.assertEqual(self.shown_runs(), [f"run-09_hangs-{name}" for name in
                                             ("correct", "local-early-stop", "never-named", "needs-a-gpu")])
        self.assertEqual(self.js("return document.getElementById('filter-count').value"), "4 of 9 runs")
        for value, names in (("outcome:hang", ["local-early-stop"]), ("right:no", ["never-named"]),
                             ("outcome:skipped", ["needs-a-gpu"]), ("kind:correct", ["correct"]),
                             ("found:yes", ["local-early-stop"])):
            self.select("filter-outcome", value)
            self.assertEqual(self.shown_runs(), [f"run-09_hangs-{name}" for name in names], value)
        self.select("filter-lesson", "")
        self.assertEqual(len(self.shown_runs()), 3)
        self.select("filter-outcome", "kind:near-miss")
        self.assertEqual(self.shown_runs(), ["run-03_pictures-near-miss-divided"])
        self.assertFalse(self.js("return document.getElementById('lesson-09_hangs').checkVisibility()"))

    def test_the_matrix_shows_what_the_filter_leaves(self):
        figure = "matrix-variants"
        self.browser.draw(figure)
        self.assertEqual(self.js(marks("symbol", figure)), 5)
        rows = self.table(figure)
        self.assertIn(["09_hangs", "09 never-named", "never-named", "nothing"], rows)
        self.assertIn(["09_hangs", "09 needs-a-gpu", "needs-a-gpu", "skipped"], rows)
        self.select("filter-lesson", "03_pictures")
        self.wait(marks("symbol", figure) + " === 1", what="one mark is left")
        self.assertEqual(self.table(figure), [["03_pictures", "03 sum-not-mean", "sum-not-mean", "its own name"]])

    def test_every_link_leads_somewhere(self):
        for figure in self.figures():
            self.table(figure)
        self.assertEqual(self.js("""return [...document.querySelectorAll('a[href]')].map(link => link.getAttribute('href')).filter(
            href => !href.startsWith('#') || !document.getElementById(href.slice(1)))"""), [])

    def point_at(self, selector):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By
        mark = self.browser.driver.find_element(By.CSS_SELECTOR, selector)
        self.js("arguments[0].scrollIntoView({block: 'center'})", mark)
        return ActionChains(self.browser.driver).move_to_element(mark)

    def test_a_mark_tells_its_figures_and_hostile_text_is_text_there_too(self):
        figure = f"timeline-{HOSTILE_RUN}"
        self.browser.draw(figure)
        self.js("document.getElementById(arguments[0]).querySelector('svg .mark-rect.layer_0_marks path').id = 'pointed-at'", figure)
        self.point_at("#pointed-at").perform()
        tip = self.wait("return document.querySelector('#vg-tooltip-element.visible')?.textContent", what="the tooltip")
        self.assertIn("number1", tip)
        self.assertIn(made_up.HOSTILE, tip)
        self.assertEqual(self.js("return document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.js("return getComputedStyle(document.getElementById('vg-tooltip-element')).position"), "fixed")

    def test_a_cell_of_the_matrix_leads_to_its_run(self):
        self.select("filter-lesson", "03_pictures")
        self.browser.draw("matrix-variants")
        self.wait(marks("symbol", "matrix-variants") + " === 1", what="one mark is left")
        self.point_at("#matrix-variants svg .mark-symbol.marks path").click().perform()
        self.wait("return document.getElementById('run-03_pictures-sum-not-mean').open", what="the run is open")

    def test_a_link_to_a_run_that_is_filtered_away_shows_it(self):
        self.select("filter-lesson", "03_pictures")
        self.js("location.hash = '#run-09_hangs-local-early-stop'")
        self.wait("return document.getElementById('run-09_hangs-local-early-stop').checkVisibility()", what="the run is shown")
        self.assertTrue(self.js("return document.getElementById('run-09_hangs-local-early-stop').open"))
        self.assertEqual(len(self.shown_runs()), 9)

    def test_by_keyboard(self):
        from selenium.webdriver.common.keys import Keys
        active = self.browser.driver.switch_to
        active.active_element.send_keys(Keys.TAB)
        self.assertEqual(self.js("return document.activeElement.textContent"), "Skip to the lessons")
        self.js("document.getElementById('run-09_hangs-correct').querySelector('summary').focus()")
        active.active_element.send_keys(Keys.ENTER)
        self.assertTrue(self.js("return document.getElementById('run-09_hangs-correct').open"))
        self.js("document.querySelector('#matrix-variants details.table > summary').focus()")
        active.active_element.send_keys(Keys.ENTER)
        self.wait("return document.querySelector('#matrix-variants table')", what="the table")
        active.active_element.send_keys(Keys.TAB)  # the table's frame, which scrolls
        active.active_element.send_keys(Keys.TAB)
        self.assertEqual(self.js("return document.activeElement.getAttribute('href')"), "#run-03_pictures-sum-not-mean")
        active.active_element.send_keys(Keys.ENTER)
        self.wait("return document.activeElement.closest('.run')?.id === 'run-03_pictures-sum-not-mean'", what="the run has the focus")

    def test_nothing_that_a_text_holds_runs(self):
        self.assert_nothing_runs()

    def test_hostile_text_is_text(self):
        for figure in self.figures():
            self.browser.draw(figure)
            self.table(figure)
        run = self.js("const run = document.getElementById(arguments[0]); return [run.textContent, run.querySelector('.name').textContent]",
                      HOSTILE_RUN)
        self.assertEqual(run[1], made_up.HOSTILE)
        self.assertGreater(run[0].count(made_up.HOSTILE), 5)
        self.assertEqual(self.js("return document.querySelectorAll('img, main script').length"), 0)
        self.assertIn(made_up.HOSTILE[:12], self.js("return document.getElementById('timeline-' + arguments[0]).textContent", HOSTILE_RUN))
        self.js("location.hash = '#' + arguments[0]", HOSTILE_RUN)
        self.wait("return document.getElementById(arguments[0]).open", HOSTILE_RUN, what="the hostile run is open")


class Accessible(Page):
    def assert_axe_is_content(self):
        for figure in self.figures():
            self.browser.draw(figure)
            self.table(figure)
        self.open_all()
        violations = self.browser.axe()
        self.assertEqual(violations, [], "\n".join(["", *violations]))

    def test_light(self):
        self.assert_axe_is_content()

    def test_dark_and_narrow(self):
        self.browser.media({"prefers-color-scheme": "dark"})
        self.browser.resize(browser.NARROW)
        self.assert_axe_is_content()

    def test_every_chart_has_a_title_a_text_and_a_table(self):
        for figure in self.figures():
            texts = self.js("""const figure = document.getElementById(arguments[0]), drawing = figure.querySelector('[role=img]');
                return [figure.querySelector('.title').textContent,
                        document.getElementById(drawing.getAttribute('aria-labelledby')).textContent]""", figure)
            self.assertTrue(texts[0])
            self.assertGreater(len(texts[1]), len(texts[0]) + 20)
            self.assertGreater(len(self.table(figure)), 0)


if __name__ == "__main__":
    browser.skip_where_it_is_missing()
    unittest.main(verbosity=1)
