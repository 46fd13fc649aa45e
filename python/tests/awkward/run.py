"""Runs one awkward program: run.py KIND NAME. The state that the process is in after the program's last line, and
again after all that is called at its exit, goes to the files that AWKWARD_REPORT names."""

import atexit
import importlib
import random
import sys

import state


def main(kind, name):
    atexit.register(state.tell, "exit")  # the first one is the last that is called
    random.seed(0)
    program = getattr(importlib.import_module(kind), name)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    try:
        program()
    finally:
        state.tell("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
