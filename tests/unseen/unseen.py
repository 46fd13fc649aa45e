"""C++ programs with faults and benign changes by authors who had not read the detectors.

usage: python3 unseen.py oracles SET BUILT [NAME ...]             SET: a folder beside this file
       python3 unseen.py PACKAGE score KEY SET BUILT [NAME ...]   BUILT: the folder of the set's built programs,
                                                                  BUILD/tests/unseen/SET

What the two commands do is in python/tests/unseen.py. SET/BASE.cpp is a right program; it becomes an edited one with
`--edit NAME`, and SET/BASE.json lists its edits. They write reports/measured/unseen_cpp_SET_oracles.json and
unseen_cpp_SET.json.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python/tests"))
import torch  # noqa: E402
import unseen  # noqa: E402
from start import numbered  # noqa: E402

ENDS_S = 15


def attempt(program, folder, arguments):
    """The greatest exit code of the ranks, or "no end"."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unseen.free_port())}
    ranks = []
    for rank in range(unseen.RANKS):
        with open(folder / f"output_{rank}", "a") as output:
            ranks.append(subprocess.Popen([program, folder, *arguments], stdout=output, stderr=output,
                                          env={**os.environ, **numbered(rank, unseen.RANKS, 1), **meet}))
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
        with tempfile.TemporaryDirectory(prefix="lockstep-unseen-") as name:
            folder = pathlib.Path(name)
            return unseen.ran(base, folder, lambda: attempt(self.built / base, folder, arguments), tensors)

    def watch(self, edit):
        from faults_of_others import watched  # takes PACKAGE
        base = edit["base"]
        return watched(self.built / base, unseen.attempts(base), *self.arguments(edit))


def main():
    key, which, words = unseen.command(sys.argv[1:], HERE, __doc__)
    if not words:
        sys.exit(__doc__)
    built, *names = words
    unseen.ask(Programs(built, HERE / which), f"unseen_cpp_{which}", key, names)


if __name__ == "__main__":
    main()
