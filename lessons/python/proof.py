"""How a program in Python is proved (docs/prove.md)."""

import os
import pathlib
import sys

from programs import RANKS


def of(program, folder, path, *options):
    """A command for `folder`, which holds the program, and what its environment has more. `path`: a PYTHONPATH."""
    for made in ("own", "notes"):
        (folder / made).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "lockstep_torch.command_line", "prove", "--world-size", str(RANKS), *options, "--",
               sys.executable, "-m", "torch.distributed.run", program, "own"]
    return command, {"PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parent), *filter(None, [path])]),
                     "TWIN_NOTES": str(folder / "notes")}
