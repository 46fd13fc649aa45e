"""Every twin under `lockstep watch`, right and with each of its faults: the oracle holds of the right program only, and
what is said is no worse than what reports/results/twins.json has. A program that cannot run here is skipped.

usage: python3 twins_test.py PACKAGE [-v] [Twins.test_NAME ...]      the folder that holds lockstep_torch
"""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "evaluation"))
import scoring
import sets

MEASURED = json.loads(sets.results.file_of("twins").read_text())
NOT_HERE = 77  # as CTest has it
BEST_FIRST = ("clean", *scoring.FAULT, "false alarm")
TWINS = sets.Twins()


class Twins(unittest.TestCase):
    def check(self, name):
        result = TWINS.watch(name)
        if result["exit"] == NOT_HERE:
            self.skipTest("it takes root or user namespaces")
        self.assertTrue(TWINS.is_proved(name, result), result)
        word, measured = sets.verdict(TWINS.truths[name], result["found"]), scoring.last(MEASURED, name)["verdict"]
        self.assertLessEqual(BEST_FIRST.index(word), BEST_FIRST.index(measured), result)


def test_of(name):
    return lambda self: self.check(name)


for _name in TWINS.runs:
    setattr(Twins, f"test_{_name}".replace("-", "_"), test_of(_name))

if __name__ == "__main__":
    unittest.main()
