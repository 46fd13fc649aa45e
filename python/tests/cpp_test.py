"""A C++ job under `lockstep watch`: what links lockstep::record is recorded and named as a Python job is.

usage: python3 cpp_test.py PACKAGE PROGRAM     the folder that holds lockstep_torch; benchmarks' gestures
"""

import pathlib
import sys
import tempfile
import unittest

from package import LOCKSTEP, run

DEADLINE_S = 120
PROGRAM = sys.argv.pop(1)


class CppJob(unittest.TestCase):
    def watch(self, variant: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory(prefix="lockstep test ") as folder:
            done = run([*LOCKSTEP, "watch", "--into", f"{folder}/traces", "--fail-on-finding", "--", PROGRAM,
                        f"{folder}/accuracy", "--variants", variant], DEADLINE_S)
            self.assertTrue(pathlib.Path(folder, "accuracy").exists(), done.stderr)
        return done.returncode, done.stderr

    def test_a_fault_is_named(self) -> None:
        code, said = self.watch("rate-differs-on-one-rank")
        self.assertIn("violation: update-differs", said)
        self.assertEqual(code, 1, said)

    def test_a_right_job_has_no_violation(self) -> None:
        code, said = self.watch("correct")
        self.assertNotIn("violation", said)
        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
