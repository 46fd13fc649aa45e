"""docs/symptoms.md has the form that ./lockstep explain --symptom reads (pages/symptoms.h), and names every pitfall.

usage: symptoms_test.py
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## .+\n\nAlso said as: .+\n\n((?:\d\. .+\n(?:   .+\n)*)+)\nWhat decides: .*`.+`.*\n+$")
CHECKS = range(2, 6)


class Symptoms(unittest.TestCase):
    def test_each_has_its_form(self):
        for section in re.findall(r"^## .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
            found = SECTION.match(section)
            self.assertTrue(found, section)
            numbers = re.findall(r"^(\d)\. ", found[1], re.MULTILINE)
            self.assertEqual(numbers, [str(number) for number in range(1, len(numbers) + 1)], section)
            self.assertIn(len(numbers), CHECKS, section)

    def test_every_pitfall_is_named(self):
        pitfalls = {page.stem for page in ROOT.glob("lessons/*/pitfalls/*.md")}
        self.assertEqual(set(re.findall(r"pitfalls/([a-z0-9-]+)\.md\)", PAGE)), pitfalls)


if __name__ == "__main__":
    unittest.main(verbosity=2)
