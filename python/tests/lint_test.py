"""ruff finds nothing in the package and its tests. With --types, mypy --strict finds nothing in the package.

usage: lint_test.py FOLDER [--types]      FOLDER: where mypy may keep what it knows of torch
"""

import importlib.util
import pathlib
import subprocess
import sys
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
HARNESS = ("another_job", "container", "fold", "gpus", "oracles", "truths", "twin")
CHECKED_TOO = ("evaluation/threads", "evaluation/sets", "evaluation/sets.py", "evaluation/scoring.py",
               *(f"lessons/python/{name}.py" for name in HARNESS))
TYPES = "--types" in sys.argv and sys.argv.pop(sys.argv.index("--types"))
CACHE = pathlib.Path(sys.argv.pop(1), "mypy") if len(sys.argv) > 1 else PACKAGE / "tests/__pycache__"


class Lint(unittest.TestCase):
    def silent(self, *command):
        done = subprocess.run([sys.executable, "-m", *command], check=False, capture_output=True, text=True,
                              cwd=PACKAGE, timeout=280)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_ruff(self):
        self.silent("ruff", "check", "--no-cache", "--output-format", "concise", ".")
        lessons = [str(path) for path in PACKAGE.parent.glob("lessons/[0-9]*/python")]
        self.assertGreater(len(lessons), 10)
        self.silent("ruff", "check", "--no-cache", "--output-format", "concise", "--config", "pyproject.toml", *lessons,
                    *(f"../{path}" for path in CHECKED_TOO))

    if TYPES:
        def test_mypy(self):
            self.silent("mypy", "--cache-dir", str(CACHE), "lockstep_torch")


if __name__ == "__main__":
    for tool in ("ruff", "mypy"):
        if not importlib.util.find_spec(tool):
            print(f"skipped: there is no {tool} beside this Python (requirements.txt)")
            sys.exit(77)
    unittest.main()
