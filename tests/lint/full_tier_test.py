"""Every test of label full is a phase of the full tier, and its docstring has all phases.

usage: full_tier_test.py CTEST BUILD
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True
import full_tier  # noqa: E402

DEADLINE_S = 50
CTEST = BUILD = None


def labels(test):
    return [label for one in test["properties"] if one["name"] == "LABELS" for label in one["value"]]


class FullTier(unittest.TestCase):
    def test_each_of_its_tests_has_a_phase(self):
        told = subprocess.run([CTEST, "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True,
                              timeout=DEADLINE_S).stdout
        tests = {test["name"] for test in json.loads(told)["tests"] if "full" in labels(test)}
        self.assertGreater(len(tests), 5)
        self.assertEqual(sorted(tests), sorted({*full_tier.TESTS, "python.install"}))

    def test_the_docstring_has_all_phases(self):
        said = re.findall(r"^  ([a-z._-]+) ", full_tier.__doc__, re.MULTILINE)
        self.assertEqual(sorted(said), sorted(full_tier.PHASES))


if __name__ == "__main__":
    BUILD = sys.argv.pop()
    CTEST = sys.argv.pop()
    unittest.main(verbosity=2)
