"""The package that these tests are of: the folder that holds lockstep_torch, which is their first argument.

A test that imports this ends with 77, which CTest counts as skipped, where the extension is not built.
"""

import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 and os.path.isdir(sys.argv[1])
                      else pathlib.Path(__file__).parents[1]).resolve()
LOCKSTEP = [sys.executable, "-m", "lockstep_torch.command_line"]
ALL = "--all" in sys.argv and bool(sys.argv.pop(sys.argv.index("--all")))  # else what takes long is for the full tier

if not list(FOLDER.glob("lockstep_torch/_extension*.so")):
    print("skipped: the extension is not built; it needs Python's headers (Debian: python3-dev)")
    sys.exit(77)


def full_tier(test):
    return test if ALL else None


def environment(**more):
    """Of a process that finds the package, and nothing of a recorded job that the test may be in."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
    return {**inherited, "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1", **more}


def run(command, deadline, folder=None, **more):
    return subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True,
                          timeout=deadline, cwd=folder, env=environment(**more))
