"""Every test of label full belongs to a phase of the full tier, and its docstring has all phases.

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


def name_of(script):
    """python.hangs, of python/tests/hangs_test.py."""
    path = pathlib.PurePath(script)
    [folder] = [part for part in path.parts[:-1] if part != "tests"]
    return f"{folder}.{path.stem.removesuffix('_test')}"


class FullTier(unittest.TestCase):
    def test_each_of_its_tests_has_a_phase(self):
        told = subprocess.run([CTEST, "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True,
                              timeout=DEADLINE_S).stdout
        tests = {test["name"] for test in json.loads(told)["tests"] if "full" in labels(test)}
        self.assertGreater(len(tests), 5)
        run = {name_of(script) for script, _ in full_tier.SCRIPTS.values()} | {name_of(full_tier.INSTALL)}
        self.assertEqual(sorted(tests - run), [], "the quick tier leaves these out, and no phase of tests/full_tier.py runs them")

    def test_the_phases_scripts_are_there(self):
        for script, _ in full_tier.SCRIPTS.values():
            self.assertTrue((ROOT / script).exists(), script)

    def test_the_docstring_has_all_phases(self):
        said = re.findall(r"^  ([a-z-]+) ", full_tier.__doc__, re.MULTILINE)
        self.assertEqual(sorted(said), sorted(full_tier.PHASES))


if __name__ == "__main__":
    BUILD = sys.argv.pop()
    CTEST = sys.argv.pop()
    unittest.main(verbosity=2)
