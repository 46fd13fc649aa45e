"""What a program tells itself (tells.py) is judged: each fault is named, and nothing in the right program.

usage: python3 tells_test.py PACKAGE [-v] [Tells.test_NAME ...]      the folder that holds lockstep_torch
"""

import json
import pathlib
import sys
import tempfile
import unittest

from package import LOCKSTEP, run

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 90
RANKS = {"": None, "double-average": [0, 1], "sum-not-mean": [0, 1], "evaluation-padding": [0, 1],
         "local-hits-global-count": [0, 1], "rank-zero-metric": [0]}


class Tells(unittest.TestCase):
    def check(self, fault):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            traces = pathlib.Path(folder, "traces")
            done = run([*LOCKSTEP, "watch", "--into", traces, "--",
                        sys.executable, HERE / "start.py", 2, HERE / "tells.py", fault], DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            said = json.loads(run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S).stdout)
        found = [(one["pitfall"], one["ranks"]) for one in said["findings"]]
        self.assertEqual(found, [(fault, RANKS[fault])] if fault else [], done.stderr)


def test_of(fault):
    return lambda self: self.check(fault)


for _fault in RANKS:
    setattr(Tells, f"test_{_fault or 'right'}".replace("-", "_"), test_of(_fault))

if __name__ == "__main__":
    unittest.main()
