"""./lockstep run LESSON --python, once: the order in which it tells, the figures, what is found.

usage: run_in_python_test.py PACKAGE      (the folder that holds the built lockstep_torch)
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "lessons" / "python" / "run.py"
PACKAGE = None
DEADLINE_S = 150


class Run(unittest.TestCase):
    def test_the_right_program_is_told_as_a_lesson(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-run-in-python-") as state:
            result = subprocess.run([sys.executable, SCRIPT, "1", "--python", "--variant", "correct"], capture_output=True, text=True,
                                    timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                                    env={**os.environ, "PYTHONPATH": PACKAGE, "XDG_STATE_HOME": state})
            self.assertEqual(list(pathlib.Path(state).iterdir()), [])  # one variant is not the lesson
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stderr, "variant 1 of 1: correct, classifier.py ...\n")
        told = ["What you will be able to do", "The idea", "A prediction to make", "The runs",
                "By variant, expected against observed, and the diagnosis", "The answer", "The pitfalls", "The fix", "Exercise"]
        lines = result.stdout.splitlines()
        self.assertEqual([line for line in lines if line in told], told)
        of_run = lines[lines.index(told[4]) + 1:lines.index(told[5])]
        text = " ".join(" ".join(of_run).split())
        self.assertIn("correct: ", of_run[0])
        self.assertRegex(text, r"expected: .* observed: so it is rank 0: parameters: (\d+ numbers, their sum -?[\d.]+) "
                               r"rank 1: parameters: \1 found: nothing")
        self.assertEqual([line for line in lines if len(line) > 80 and not line.startswith("    ")], [])


if __name__ == "__main__":
    PACKAGE = sys.argv.pop(1)
    unittest.main(verbosity=2)
