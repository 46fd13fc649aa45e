"""Every twin under `lockstep watch`, right and with each of its faults: the oracle holds of the right program only, and
what is said is no worse than what reports/results/twins.json has. A program that cannot run here is skipped.

usage: python3 twins_test.py PACKAGE [-v] [Twins.test_NAME ...]      the folder that holds lockstep_torch
"""

import json
import pathlib
import sys
import unittest

from watched import VERDICTS, watched

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "evaluation"))
import twins
from truths import is_proved, last, runs

MEASURED = json.loads(twins.REPORT.read_text())
NOT_HERE = 77  # as CTest has it
BEST_FIRST = ("clean", *VERDICTS, "false alarm")


class Twins(unittest.TestCase):
    def check(self, program, slug):
        result = twins.run_one(watched, program, slug)
        if result["exit"] == NOT_HERE:
            self.skipTest("it takes root or user namespaces")
        self.assertTrue(is_proved(slug, result["oracle"]), result)
        measured = last(MEASURED, program, slug)["verdict"]
        self.assertLessEqual(BEST_FIRST.index(result["verdict"]), BEST_FIRST.index(measured), result)


def test_of(program, slug):
    return lambda self: self.check(program, slug)


for _program, _slug in runs():
    setattr(Twins, f"test_{_slug or _program}".replace("-", "_"), test_of(_program, _slug))

if __name__ == "__main__":
    unittest.main()
