"""How a program in Python is proved (docs/prove.md)."""

import os
import pathlib
import sys

from programs import RANKS


def of(program, folder, *options):
    """A command for `folder`, which holds the program, and what its environment has more."""
    for made in ("own", "notes"):
        (folder / made).mkdir(exist_ok=True)
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "lockstep_torch.command_line", "prove", *options, "--", sys.executable, "-m",
               "torch.distributed.run", "--nproc-per-node", str(RANKS), program, "own"]
    return command, {"PYTHONPATH": path, "TWIN_NOTES": str(folder / "notes")}
