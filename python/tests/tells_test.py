"""What a program tells itself (tells.py) is judged: each fault is named, and nothing in the right program.

usage: python3 tells_test.py PACKAGE [-v] [Tells.test_NAME ...]      the folder that holds lockstep_torch
"""

import unittest

from faults_of_others import HERE, watched

RANKS = {"": None, "double-average": [0, 1], "sum-not-mean": [0, 1], "evaluation-padding": [0, 1],
         "local-hits-global-count": [0, 1], "rank-zero-metric": [0]}


class Tells(unittest.TestCase):
    def check(self, fault):
        code, found = watched(HERE / "tells.py", 1, FAULT=fault)
        self.assertEqual(code, 0)
        self.assertEqual([(one["pitfall"], one["ranks"]) for one in found], [(fault, RANKS[fault])] if fault else [])


def test_of(fault):
    return lambda self: self.check(fault)


for _fault in RANKS:
    setattr(Tells, f"test_{_fault or 'right'}".replace("-", "_"), test_of(_fault))

if __name__ == "__main__":
    unittest.main()
