"""A C++ job under `lockstep watch`: what links lockstep::record is recorded and named as a Python job is.

usage: python3 cpp_test.py PACKAGE PROGRAM     the folder that holds lockstep_torch; benchmarks' gestures
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DEADLINE_S = 120
PACKAGE = PROGRAM = pathlib.Path()


class CppJob(unittest.TestCase):
    def watch(self, variant: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory(prefix="lockstep test ") as folder:
            done = subprocess.run(
                [sys.executable, "-m", "lockstep_torch.command_line", "watch", "--into", f"{folder}/traces",
                 "--fail-on-finding", "--", PROGRAM, f"{folder}/accuracy", "--variants", variant],
                check=False, capture_output=True, text=True, timeout=DEADLINE_S,
                env={**os.environ, "PYTHONPATH": str(PACKAGE)})
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
    PACKAGE, PROGRAM = (pathlib.Path(word) for word in (sys.argv.pop(1), sys.argv.pop(1)))
    if not list(PACKAGE.glob("lockstep_torch/_extension*.so")):
        print("skipped: the extension is not built; it needs Python's headers (Debian: python3-dev)")
        sys.exit(77)
    unittest.main()
