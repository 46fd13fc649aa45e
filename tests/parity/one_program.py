"""Python's torch and one program's output, for the scripts that compare them; 77 where there is no torch."""

import subprocess
import sys

try:
    import torch  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def output_of(program, *arguments, lines=None, timeout=100):
    """What it writes when it is given `lines`; exits with 3 where it fails."""
    run = subprocess.run([program, *arguments], input=lines and lines.encode(), stdout=subprocess.PIPE, timeout=timeout)
    if run.returncode != 0:
        print(f"{program} exited with {run.returncode}")
        sys.exit(3)
    return run.stdout
