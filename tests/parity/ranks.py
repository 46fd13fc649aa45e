"""Starts the ranks of parity runs, and compares what they wrote. Needs no torch."""

import importlib.util
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class Ranks:
    """Processes with one deadline; all of them, and what they started, are gone when the block ends."""

    def __init__(self, deadline_s):
        self.deadline = time.monotonic() + deadline_s
        self.processes = []

    def __enter__(self):
        return self

    def start(self, command, environment=None):
        own = {key: value for key, value in os.environ.items()
               if key not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_STORE")}
        own.update(environment or {}, OMP_NUM_THREADS="1")
        self.processes.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE,
                                               stderr=subprocess.STDOUT, start_new_session=True))

    def wait(self):
        """Every process's output; raises where one failed or the deadline passed."""
        for process in self.processes:
            output, _ = process.communicate(timeout=max(0.1, self.deadline - time.monotonic()))
            if process.returncode != 0:
                raise RuntimeError(f"{process.args[:2]} exited with {process.returncode}:\n"
                                   f"{output.decode(errors='replace')[-4000:]}")

    def __exit__(self, *_):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            process.stdout.close()


def run_both(test_case, prefix, program, script, init, words, ranks, deadline_s):
    """Runs the program's ranks, then the script's (of this folder), with OUT INIT RANK and `words`. The folder of their
    OUTs, cpp and python; it goes with the test case."""
    folder = tempfile.TemporaryDirectory(prefix=prefix)
    test_case.addClassCleanup(folder.cleanup)
    for language, command in {"cpp": [program], "python": [sys.executable, os.path.join(HERE, script)]}.items():
        out = os.path.join(folder.name, language)
        stores = os.path.join(folder.name, "stores_" + language)
        os.mkdir(out)
        os.mkdir(stores)
        with Ranks(deadline_s) as group:
            for rank in range(ranks):
                group.start([*command, out, f"file://{stores}/{init}", str(rank), *words])
            group.wait()
    return folder.name


def read_result(path):
    """[(name, bytes)] of one rank's file."""
    with open(path, "rb") as file:
        data = file.read()
    result = []
    position = 0
    while position < len(data):
        end = data.index(b"\n", position)
        name, size = data[position:end].decode().split()
        position = end + 1 + int(size)
        result.append((name, data[end + 1:position]))
    return result


def compare(test, path, other, steps=200):
    """Asserts that two ranks' files are equal, bit for bit; gives back how many numbers there were."""
    first, second = read_result(path), read_result(other)
    label = os.path.basename(path)
    test.assertEqual([name for name, _ in first], [name for name, _ in second], label)
    test.assertEqual(len(first[0][1]), 4 * steps, f"{label}: a loss for each step")
    for (name, ours), (_, theirs) in zip(first, second):
        if ours == theirs:
            continue
        a = struct.unpack(f"<{len(ours) // 4}f", ours)
        b = struct.unpack(f"<{len(theirs) // 4}f", theirs)
        at = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
        where = f"{len(at)} of {len(a)} differ, first [{at[0]}]: {a[at[0]]!r} and {b[at[0]]!r}" if at else "sizes"
        test.fail(f"{label}: {name}: {where}")
    return sum(len(values) // 4 for _, values in first)


def main():
    """unittest's main, with the program's path as the first argument, and 77 where Python has no torch."""
    if importlib.util.find_spec("torch") is None:
        print("skipped: this Python has no torch")
        sys.exit(77)
    program = sys.argv.pop(1)
    sys.modules["__main__"].PROGRAM = program
    unittest.main(verbosity=2)
