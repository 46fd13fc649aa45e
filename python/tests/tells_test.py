"""What a program tells itself (tells.py) is judged: each fault is named, and nothing in the right program.

usage: python3 tells_test.py PACKAGE [-v] [Tells.test_NAME ...]      the folder that holds lockstep_torch
"""

import unittest

from watched import HERE, watched

RANKS = {"": None, "double-average": [0, 1], "sum-not-mean": [0, 1], "evaluation-padding": [0, 1],
         "local-hits-global-count": [0, 1], "rank-zero-metric": [0], "same-augmentation-everywhere": [0, 1],
         "worker-streams-copied": [0, 1], "unequal-counts-in-sync": [0, 1], "async-work-not-waited": [0],
         "ema-on-one-rank": [0, 1], "local-early-stop": [1], "restart-without-resume": [0, 1]}


class Tells(unittest.TestCase):
    def check(self, fault):
        attempts = 2 if fault == "restart-without-resume" else 1  # the second one loads nothing
        code, found = watched(HERE / "tells.py", attempts, FAULT=fault)
        self.assertEqual(code == 0, fault != "local-early-stop")  # whose rank 0 is left in a collective
        self.assertEqual([(one["pitfall"], one["ranks"]) for one in found], [(fault, RANKS[fault])] if fault else [])


def test_of(fault):
    return lambda self: self.check(fault)


for _fault in RANKS:
    setattr(Tells, f"test_{_fault or 'right'}".replace("-", "_"), test_of(_fault))

if __name__ == "__main__":
    unittest.main()
