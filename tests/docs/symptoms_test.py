"""docs/symptoms.md has the form that ./lockstep explain --symptom reads (course/explain_command.cpp), and names every
pitfall; docs/findings.md has every generic finding.

usage: symptoms_test.py
"""

import pathlib
import re
import sys
import unittest

sys.dont_write_bytecode = True
import tables  # noqa: E402

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

    def test_what_watching_names_in_python_is_what_was_measured(self):
        how = tables.in_python()
        for section in re.findall(r"^## .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
            told = re.search(r"\(Python: ([^)]*)\)", section)
            if not told:
                continue  # another command decides
            ranges = [[int(number) for number in part.split(" to ")] for part in told[1].split(", ")]
            named = {number for part in ranges for number in range(part[0], part[-1] + 1)}
            checks = re.findall(r"^(\d)\. (.*?)(?=^\d\. |^What decides)", section, re.MULTILINE | re.DOTALL)
            measured = {int(number) for number, body in checks for slug in re.findall(r"pitfalls/([a-z0-9-]+)\.md", body)
                        if how[slug] == "no call" or ("lockstep_torch" in how[slug] and "does not record" not in how[slug])}
            self.assertEqual(named, measured, section)

    def test_every_pitfall_is_named(self):
        pitfalls = {page.stem for page in ROOT.glob("lessons/*/pitfalls/*.md")}
        self.assertEqual(set(re.findall(r"pitfalls/([a-z0-9-]+)\.md\)", PAGE)), pitfalls)

    def test_every_generic_finding_is_explained(self):
        explained = re.findall(r"^- `([a-z-]+)`:", (ROOT / "docs" / "findings.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(sorted(explained), sorted(tables.generic_findings()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
