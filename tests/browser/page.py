"""Pages in a browser, for test cases."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import browser
import made_up

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "html" / "report.py"
sys.path.insert(0, str(REPORT.parent))


DEADLINE_S = 90


def recorded(program, variant, folder):
    """The traces of a lesson's variant: a job as any other."""
    subprocess.run([program, "--variant", variant, "--trace", folder], check=True, timeout=DEADLINE_S,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return next(folder.rglob("rank_0.trace")).parent


class Opened(unittest.TestCase):
    """A page that a class makes, as `page`, in `folder`."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-page-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.page = cls.folder / "report.html"
        cls.make()
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.resize(browser.WIDE)
        self.browser.media({"prefers-color-scheme": "light"})
        self.browser.open(self.page)
        self.js, self.wait = self.browser.js, self.browser.wait

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])
        self.assertEqual(self.js("return performance.getEntriesByType('resource').map(entry => entry.name)"), [])

    def figures(self):
        return self.js("return [...document.querySelectorAll('.chart')].map(figure => figure.id)")

    def table(self, figure):
        """A chart's table, as rows of texts."""
        self.js(browser.OPENED + "f.querySelector('details.table').open = true", figure)
        return self.wait("""const table = document.getElementById(arguments[0]).querySelector('table');
            return table && [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))""",
                         figure, what=f"the table of {figure}")

    def open_all(self):
        self.js("for (const details of document.querySelectorAll('details')) details.open = true")

    def assert_drawn_at_any_width(self, figures):
        for size in (browser.WIDE, browser.NARROW):
            self.browser.resize(size)
            self.assertEqual(self.figures(), figures)
            for figure in figures:
                self.browser.draw(figure)
            self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), size[0])

    def assert_nothing_runs(self):
        """What a text of a job holds stays text. Where it did not, the page's policy would stop it."""
        self.open_all()
        for figure in self.figures():
            self.browser.draw(figure)
            self.table(figure)
        policy = self.js("return document.querySelector('meta[http-equiv=Content-Security-Policy]').content")
        self.assertRegex(policy, r"^default-src 'none'; script-src('| |sha256-[\w+/=]{44})+; style-src 'sha256-[\w+/=]{44}'; img-src data:;")
        self.assertEqual(self.js("return [window.planted ?? null, document.images.length]"), [None, 0])
        self.assertEqual(self.browser.complaints(), [])
        self.js("""document.body.insertAdjacentHTML('beforeend', '<img src="data:," onerror="window.planted = 1">');
                   const script = document.createElement('script');
                   script.textContent = 'window.planted = 2';
                   document.body.append(script);""")
        complaints, until = [], time.monotonic() + DEADLINE_S
        while len(complaints) < 2 and time.monotonic() < until:
            complaints += self.browser.complaints()
        self.assertEqual([complaint.count("Content Security Policy") for complaint in complaints], [1, 1], complaints)
        self.assertIsNone(self.js("return window.planted ?? null"))

    def assert_usable_by_everybody(self):
        for scheme in ("light", "dark"):
            self.browser.media({"prefers-color-scheme": scheme})
            self.open_all()
            self.assertEqual(self.browser.axe(), [])


class Page(Opened):
    """A page of made_up's reports. A class that names a folder has one of that folder's reports."""
    reports = None

    @classmethod
    def make(cls):
        if cls.reports is None:
            made_up.small(cls.folder)
        subprocess.run([sys.executable, REPORT, "--reports", cls.reports or cls.folder, "--out", cls.page], check=True,
                       timeout=60, stdout=subprocess.DEVNULL)

    def json_of(self, lesson):
        return json.loads((self.folder / f"{lesson}.json").read_text(encoding="utf-8"))

    def select(self, id, value):
        self.js("""const select = document.getElementById(arguments[0]); select.value = arguments[1];
                   select.dispatchEvent(new Event('change'))""", id, value)

    def shown_runs(self):
        return self.js("return [...document.querySelectorAll('.run')].filter(run => run.checkVisibility())"
                       ".map(run => run.id)")
