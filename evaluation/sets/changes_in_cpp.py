"""C++ programs with faults and benign changes by authors who had not read the detectors.

usage: python3 changes_in_cpp.py oracles SET BUILT [NAME ...]             SET: a folder beside this file
       python3 changes_in_cpp.py PACKAGE score KEY SET BUILT [NAME ...]   BUILT: the folder of the set's built programs,
                                                                          BUILD/evaluation/sets/SET

What the two commands do is in changes.py. SET/cpp/BASE.cpp is a right program; it becomes an edited one with
`--edit NAME`, and SET/cpp/BASE.json lists its edits. The score goes to reports/results/SET_cpp.json.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import changes  # it says where `start` is
import torch
from start import numbered

HERE = pathlib.Path(__file__).resolve().parent

ENDS_S = 15


def attempt(program, folder, arguments):
    """The greatest exit code of the ranks, or "no end"."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(changes.free_port())}
    ranks = []
    for rank in range(changes.RANKS):
        with open(folder / f"output_{rank}", "a") as output:
            ranks.append(subprocess.Popen([program, folder, *arguments], stdout=output, stderr=output,
                                          env={**os.environ, **numbered(rank, changes.RANKS, 1), **meet}))
    deadline = time.monotonic() + ENDS_S
    late = False
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            rank.kill()
            rank.wait()
    return "no end" if late else max(abs(rank.returncode) for rank in ranks)


def tensors(_, report):
    return {name: torch.tensor(values) for name, values in report.pop("weights").items()}


class Programs:
    """Of a set, where they were built."""

    def __init__(self, built, sources):
        self.built, self.sources = pathlib.Path(built).resolve(), sources

    def arguments(self, edit):
        if edit is None:
            return []
        if f'edited("{edit["name"]}")' not in (self.sources / f"{edit['base']}.cpp").read_text():
            sys.exit(f"{edit['base']}.cpp has no edit {edit['name']}")
        return ["--edit", edit["name"]]

    def bare(self, base, edit):
        arguments = self.arguments(edit)
        with tempfile.TemporaryDirectory(prefix="lockstep-changes-") as name:
            folder = pathlib.Path(name)
            return changes.ran(base, folder, lambda: attempt(self.built / base, folder, arguments), tensors)

    def watch(self, edit):
        from watched import watched  # takes PACKAGE
        base = edit["base"]
        return watched(self.built / base, changes.attempts(base), *self.arguments(edit))


def main():
    key, which, words = changes.command(sys.argv[1:], __doc__)
    if not words:
        sys.exit(__doc__)
    built, *names = words
    changes.ask(Programs(built, HERE / which / "cpp"), f"{which}_cpp", key, names)


if __name__ == "__main__":
    main()
