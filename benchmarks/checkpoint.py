"""Saving and loading a checkpoint against Python's torch.save and torch.load, in one run.

usage: ./lockstep bench checkpoint [--mib N] [--pairs N] [--folder DIR] [--out FILE]

Both sides hold the same tensors. Python's synced save is torch.save to a temporary, fsync, rename, fsync of
the folder: what ours does. Unsynced saves are reported apart: there the disk has nothing yet. A load is the
first of a new process, as after a restart; both load the same file, from memory where it fits. The sides take
turns, and what one left to be written is on the disk before the other begins. A ratio is of two times of one round; the figures are the medians of the rounds'
ratios with a 95 % bootstrap interval.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from ddp_step import show, summary, write

HERE = os.path.dirname(os.path.abspath(__file__))
COMMANDS = ("save", "save_unsynced", "load")
TARGETS = {"save": 1.0, "save_unsynced": 1.0, "load": 1.0}
TENSOR_MIB = 16


def serve(mib):
    """Python's side: checkpoint.cpp's twin."""
    import time
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    state = {f"layers.{i}.weight": torch.rand(min(mib - i * TENSOR_MIB, TENSOR_MIB), 1024, 256)
             for i in range((mib + TENSOR_MIB - 1) // TENSOR_MIB)}

    def sync(path, flags):
        descriptor = os.open(path, flags)
        os.fsync(descriptor)
        os.close(descriptor)

    def save(path):
        temporary = path + ".new"
        torch.save(state, temporary)
        sync(temporary, os.O_RDWR)
        os.rename(temporary, path)
        sync(os.path.dirname(path), os.O_RDONLY)

    def save_unsynced(path):
        torch.save(state, path + ".new")
        os.rename(path + ".new", path)

    def load(path):
        return torch.load(path, weights_only=True)

    for line in sys.stdin:
        command, path = line.split()
        start = time.monotonic_ns()
        kept = {"save": save, "save_unsynced": save_unsynced, "load": load}[command](path)
        print(time.monotonic_ns() - start, flush=True)
        del kept


class Side:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, command, path):
        """Seconds."""
        self.process.stdin.write(f"{command} {path}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("a side of the benchmark ended; its error is above")
        return int(answer) / 1e9

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def start(side, program, mib):
    return Side([program, str(mib)] if side == "ours" else
                [sys.executable, os.path.abspath(__file__), "--serve", str(mib)])


def measure(program, mib, pairs, folder):
    names = ("ours", "python")
    times = {command: {name: [] for name in names} for command in COMMANDS}
    path = os.path.join(folder, "checkpoint.pt")
    savers = {}
    try:
        for name in names:
            savers[name] = start(name, program, mib)
            savers[name].run("save_unsynced", path)  # warm, and the state is made
        for pair in range(pairs):
            for command in COMMANDS:
                for name in names if pair % 2 == 0 else reversed(names):
                    loader = start(name, program, 0) if command == "load" else None
                    os.sync()
                    try:
                        times[command][name].append((loader or savers[name]).run(command, path))
                    finally:
                        if loader:
                            loader.close()
    finally:
        for saver in savers.values():
            saver.close()
    return {command: {"seconds": {name: summary(values) for name, values in of.items()},
                      "ratio_to_python": summary([a / b for a, b in zip(of["ours"], of["python"])])}
            for command, of in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", help="where to write; a temporary folder on the disk to measure")
    parser.add_argument("--out", default=os.path.join(HERE, "..", "reports", "out", "checkpoint.json"))
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return serve(arguments.serve)
    import importlib.metadata
    result = {"benchmark": "checkpoint", "targets": TARGETS, "settings": {
        "torch": importlib.metadata.version("torch"), "cpus": os.cpu_count(), "mib": arguments.mib,
        "tensor_mib": TENSOR_MIB, "threads": 1, "load_average_before": os.getloadavg()}}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=arguments.folder) as folder:
        result["measured"] = measure(arguments.program, arguments.mib, arguments.pairs, folder)
    for command, row in result["measured"].items():
        seconds = {side: values["median"] for side, values in row["seconds"].items()}
        print(f"{command}, {arguments.mib} MiB: ours {seconds['ours']:.3f} s, python {seconds['python']:.3f} s")
        show(f"{command}, ours / Python's", row["ratio_to_python"], TARGETS[command])
    write(result, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
