"""Every test of label full is a phase of the full tier, and its docstring has all phases.

usage: full_tier_test.py CTEST BUILD WHOLE      (WHOLE: 0 where the build lacks the Python package or the benchmarks)
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
CTEST = BUILD = WHOLE = None


def labels(test):
    return [label for one in test["properties"] if one["name"] == "LABELS" for label in one["value"]]


class FullTier(unittest.TestCase):
    def test_each_of_its_tests_has_a_phase(self):
        told = subprocess.run([CTEST, "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True,
                              timeout=DEADLINE_S).stdout
        tests = {test["name"] for test in json.loads(told)["tests"] if "full" in labels(test)}
        self.assertGreater(len(tests), 5)
        run = {*full_tier.TESTS, "python.install"}
        self.assertEqual(sorted(tests - run), [], "the quick tier leaves these out, and no phase of tests/full_tier.py runs them")
        if WHOLE:
            self.assertEqual(sorted(run - tests), [], "there are no such tests")

    def test_the_docstring_has_all_phases(self):
        said = re.findall(r"^  ([a-z._-]+) ", full_tier.__doc__, re.MULTILINE)
        self.assertEqual(sorted(said), sorted(full_tier.PHASES))


if __name__ == "__main__":
    WHOLE = sys.argv.pop() == "1"
    BUILD = sys.argv.pop()
    CTEST = sys.argv.pop()
    unittest.main(verbosity=2)
