"""The page of a recorded job, from its traces to a real browser.

Run by the Python of the project's environment: job_test.py COURSE_PROGRAM LESSONS_FOLDER
"""

import json
import pathlib
import subprocess
import sys
import unittest

import jsonschema
import referencing

import browser
import made_up
from page import DEADLINE_S, ROOT, Opened, recorded

JOB_REPORT = ROOT / "reports" / "html" / "job_report.py"
SCHEMAS = ROOT / "reports" / "schema"
COURSE = LESSONS = None


def diagnosed(folder):
    told = subprocess.run([COURSE, "diagnose", "--json", "--pictures", folder], capture_output=True, timeout=DEADLINE_S)
    return json.loads(told.stdout)


def write_page(job, name, file):
    subprocess.run([sys.executable, JOB_REPORT, name, "--out", file], input=json.dumps(job), text=True, check=True,
                   timeout=DEADLINE_S, stdout=subprocess.DEVNULL)


def validator():
    job, lesson = (json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
                       for name in ("job", "lesson"))
    known = referencing.Registry().with_resource("lesson.schema.json", referencing.Resource.from_contents(lesson))
    return jsonschema.Draft202012Validator(job, registry=known)


class JobPage(Opened):
    """A job that shuffles alike in every epoch, under a hostile name."""
    lesson, variant, name = "05_set_epoch", "missing-set-epoch", made_up.HOSTILE
    kind, file, source = "pass", f"/jobs/{'a' * 200}/{made_up.HOSTILE}.py", f"for batch in loader:  # {made_up.HOSTILE}"
    charts = ["owners-run-job-job", "divergence-run-job-job", "timeline-run-job-job", "losses"]

    @classmethod
    def make(cls):
        traces = recorded(LESSONS / cls.lesson, cls.variant, cls.folder / "traces")
        for rank in (0, 1):
            place = {"kind": cls.kind, "step": 0, "file": cls.file, "line": 41, "source": cls.source}
            (traces / f"places_{rank}.jsonl").write_text(json.dumps(place) + "\n", encoding="utf-8")
        cls.job = diagnosed(traces)
        write_page(cls.job, cls.name, cls.page)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def test_what_is_told_is_as_the_schema_says(self):
        self.assertEqual([error.message for error in validator().iter_errors(self.job)], [])

    def test_the_name_is_text(self):
        self.assertEqual(self.text("h1"), self.name)

    def test_the_finding_stands_first_with_its_page(self):
        self.assertEqual([finding["pitfall"] for finding in self.job["findings"]], [self.variant])
        self.assertEqual(self.text("main section:first-child .findings strong"), self.variant)
        self.assertIn(self.job["findings"][0]["evidence"], self.text(".findings li"))
        for part in ("symptom", "why", "fix"):
            self.assertTrue(self.job["pages"][self.variant][part])
            self.assertIn(self.job["pages"][self.variant][part], self.text(".findings details"))

    def test_it_names_the_line_of_the_program(self):
        finding = self.job["findings"][0]
        ranks = [*finding["ranks"], *({0, 1} - set(finding["ranks"]) if self.kind == "stall" else ())]
        self.assertEqual(finding["places"], [{"ranks": ranks, "file": self.file, "line": 41, "source": self.source}])
        self.assertEqual(self.text(".findings li > code"), f"{self.file}:41: {self.source}")

    def test_every_picture_is_drawn_and_nothing_is_cut_off_on_a_telephone(self):
        self.assert_drawn_at_any_width(self.charts)

    def test_every_detector_is_listed(self):
        listed = self.js("return [...document.querySelectorAll('#detectors tbody th')].map(cell => cell.textContent)")
        self.assertEqual(sorted(listed), sorted(row["slug"] for row in self.job["detectors"]))

    def test_everybody_can_use_it(self):
        self.assert_usable_by_everybody()


class HangingJob(JobPage):
    """A job of which one rank raises while the others wait."""
    lesson, variant, name = "09_hanging_collective", "one-rank-raises", "a job that hangs"
    kind, file, source = "stall", "/jobs/train.py", "dist.recv(torch.ones(3), src=0)"

    def test_it_says_where_each_rank_was(self):
        rows = self.js("return [...document.querySelectorAll('#stall tbody tr')].map(row => row.cells[1].textContent)")
        self.assertEqual(rows, [rank["state"] for rank in self.job["stall"]["ranks"]])
        self.assertEqual(rows, ["waiting", "raised"])


class PlantedJob(Opened):
    """A job with a script in its name and in every text."""

    @classmethod
    def make(cls):
        kept = made_up.words_of([json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
                                 for name in ("job", "lesson")])
        jobs = [diagnosed(recorded(LESSONS / job.lesson, job.variant, cls.folder / job.lesson)) for job in (JobPage, HangingJob)]
        cls.pages = [cls.folder / f"{job.lesson}.html" for job in (JobPage, HangingJob)]
        for job, page in zip(jobs, cls.pages):
            write_page(made_up.planted(job, kept), made_up.PLANTED, page)
        cls.page = cls.pages[0]

    def test_nothing_that_a_text_holds_runs(self):
        for page in self.pages:
            with self.subTest(page.name):
                self.browser.open(page)
                self.assertGreater(self.js("return document.body.textContent.split('window.planted = 1').length"), 20)
                self.assert_nothing_runs()


if __name__ == "__main__":
    browser.skip_where_it_is_missing()
    COURSE, LESSONS = map(pathlib.Path, (sys.argv.pop(1), sys.argv.pop(1)))
    unittest.main()
