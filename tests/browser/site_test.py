"""The site of the pages: made without a warning, searched, and read in a real browser, wide and narrow, light and dark.

Run by the Python of the project's environment: site_test.py
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile
import unittest

import browser

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lessons" / "pictures"))
import svg  # noqa: E402

DEADLINE_S = 240
PAGES = ["README", "lessons/start/start", "lessons/05_set_epoch/lesson", "lessons/05_set_epoch/pitfalls/missing-set-epoch",
         "lessons/09_hanging_collective/lesson", "docs/symptoms", "docs/python", "docs/command-line", "api/train", "api/python"]
# Wider than the window: what cannot be scrolled to on its own.
OVERFLOWS = "return document.documentElement.scrollWidth > window.innerWidth + 1"
# One click on the switch at a time, which goes from auto over one theme to the other.
SWITCHED = """const switched = () => document.body.dataset.theme === arguments[0];
              if (!switched()) [...document.querySelectorAll('.theme-toggle')].find(button => button.checkVisibility()).click();
              return switched()"""
# Where the pictures are that are shown and loaded.
PICTURES = """const shown = [...document.images].filter(image => image.checkVisibility() && image.src.endsWith('.svg'));
              return shown.every(image => image.complete && image.naturalWidth) && shown.map(image => {
                const box = image.getBoundingClientRect();
                return {x: box.x + scrollX, y: box.y + scrollY}})"""
# A picture's words that leave it or touch others.
CRAMPED = """const svg = document.documentElement, words = [...svg.querySelectorAll('text')].map(text => ({said: text.textContent, box: text.getBBox()}));
             const {width, height} = svg.viewBox.baseVal;
             const outside = ({box}) => box.x < 2 || box.y < 0 || box.x + box.width > width - 2 || box.y + box.height > height;
             const apart = (a, b) => a.x + a.width + 2 < b.x || b.x + b.width + 2 < a.x || a.y + a.height <= b.y + 3 || b.y + b.height <= a.y + 3;
             return [...words.filter(outside).map(one => one.said + ' leaves the picture'),
                     ...words.flatMap((one, at) => words.slice(at + 1).filter(other => !apart(one.box, other.box))
                                                        .map(other => one.said + ' touches ' + other.said))]"""
BROKEN = "return [...document.images].filter(image => !image.complete || image.naturalWidth === 0).map(image => image.src)"


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep site ")
        cls.addClassCleanup(folder.cleanup)
        cls.html = pathlib.Path(folder.name, "html")
        # Warnings are errors: a link to a page, a heading or a file that is not there is one.
        done = subprocess.run([sys.executable, ROOT / "docs" / "site" / "build.py", "--out", folder.name, "--build-only"],
                              capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)

    def open(self, page, place=""):
        self.browser.open(self.html / f"{page}.html", place)

    def test_every_page_is_there(self):
        pages = [page for folder in ("docs", "lessons") for page in (ROOT / folder).rglob("*.md")]
        self.assertGreater(len(pages), 130)
        for page in pages:
            self.assertTrue((self.html / page.relative_to(ROOT).with_suffix(".html")).exists(), page)

    def test_pages_can_be_read_by_everybody(self):
        for theme, size in itertools.product(("light", "dark"), (browser.WIDE, browser.NARROW)):
            self.browser.resize(size)
            self.browser.media({"prefers-color-scheme": theme})
            for page in PAGES:
                with self.subTest(page, size=size, theme=theme):
                    self.open(page)
                    self.assertEqual(self.browser.js(BROKEN), [])
                    self.assertFalse(self.browser.js(OVERFLOWS), f"{page} is wider than {size[0]} px")
                    self.assertEqual(self.browser.axe(), [])

    def test_pictures_follow_the_sites_switch(self):
        self.browser.resize(browser.WIDE)
        for system, other in (("light", "dark"), ("dark", "light")):
            self.browser.media({"prefers-color-scheme": system})
            self.open("lessons/05_set_epoch/lesson")
            self.browser.js("localStorage.clear()")
            self.open("lessons/05_set_epoch/lesson")
            for theme in (system, other):
                with self.subTest(system=system, theme=theme):
                    if theme != system:
                        self.browser.wait(SWITCHED, theme, what=f"the switch to {theme}")
                    [place] = self.browser.wait(PICTURES, what="a picture that is loaded")
                    self.assertEqual(self.browser.colour(place["x"] + 5, place["y"] + 5), svg.COLOURS["paper"][theme == "dark"])

    def test_the_words_of_a_picture_lie_apart_and_within_it(self):
        pictures = sorted((ROOT / "lessons").glob("*/*.svg"))
        self.assertGreater(len(pictures), 15)
        for picture in pictures:
            with self.subTest(picture.parent.name):
                self.browser.open(picture)
                self.assertEqual(self.browser.js(CRAMPED), [])

    def test_a_search_finds_a_pitfall(self):
        self.browser.resize(browser.WIDE)
        self.browser.open(self.html / "search.html", "?q=set_epoch")
        self.browser.wait("return document.querySelectorAll('#search-results li a').length > 3", what="search results")

    def test_a_link_leads_to_a_heading(self):
        self.open("docs/command-line", "#exit-codes")
        self.assertEqual(self.browser.js("return document.querySelector(':target h2, h2:target').firstChild.textContent"), "Exit codes")


if __name__ == "__main__":
    browser.skip_where_it_is_missing()
    unittest.main(verbosity=2)
