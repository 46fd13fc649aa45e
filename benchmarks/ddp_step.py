"""A training step of our DDP against Python's DDP and against a flat all-reduce written by hand, in one run.

usage: ./lockstep bench ddp_step [--pairs N] [--out FILE]

For each model and world size the ranks of all three engines are started and warmed up once. Then, N times,
each engine runs a block of steps while the others wait for input, in an order that rotates. A ratio is of two
blocks of one round; the figures are the medians of the rounds' ratios with a 95 % bootstrap interval.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = ("ddp", "python", "flat")
# name, hidden units, steps in a block
MODELS = (("mlp-784-256-10", 256, 60), ("mlp-784-2048-10", 2048, 16))
WORLDS = (2, 4)
START_TO_FINISH = {"hidden": 256, "world_size": 4, "steps": 200, "pairs": 3}
TARGETS = {"step small, to python": 0.95, "step larger, to python": 1.0, "step larger, to flat": 1.0,
           "start to finish, to python": 0.22}
# Of a job from its launch to its end, as ddp_step tells them.
PARTS = ("start of the ranks", "rendezvous", "model and engine", "first step", "other steps", "end")


ANSWER_S = 120  # how long a rank may take to answer: the longest block with the start of its process


class Ranks:
    """The ranks of one engine: processes that answer each line they are given with one."""

    def __init__(self, engine, command, world_size, environment):
        """`command` gives a rank's."""
        self.engine = engine
        self.ranks = [subprocess.Popen(command(rank), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       env=environment) for rank in range(world_size)]

    def ask(self, line):
        """Rank 0's answer."""
        late = threading.Timer(ANSWER_S, self.kill)
        late.start()
        try:
            for rank in self.ranks:
                rank.stdin.write(f"{line}\n")
                rank.stdin.flush()
            answers = [rank.stdout.readline() for rank in self.ranks]
        except BrokenPipeError:
            answers = [""]
        finally:
            late.cancel()
        if not all(answers):
            raise RuntimeError(f"a rank of {self.engine} ended (its error is above), or took more than {ANSWER_S} s")
        return answers[0]

    def kill(self):
        for rank in self.ranks:
            rank.kill()

    def close(self):
        for rank in self.ranks:
            with contextlib.suppress(BrokenPipeError):  # one that ended unasked has not read all
                rank.stdin.close()
        try:
            for rank in self.ranks:
                rank.wait(timeout=60)
        finally:
            self.kill()
            for rank in self.ranks:
                rank.wait()
                rank.stdout.close()


class Job(Ranks):
    def __init__(self, program, engine, hidden, world_size, folder):
        store = tempfile.mktemp(prefix=engine + "-", dir=folder)
        start = [sys.executable, os.path.join(HERE, "ddp_step_rank.py")] if engine == "python" else [program, engine]
        super().__init__(engine, lambda rank: [*start, str(hidden), store, str(rank), str(world_size)], world_size,
                         {**os.environ, "OMP_NUM_THREADS": "1"})

    def run(self, steps):
        """Milliseconds a step, by rank 0's clock."""
        return int(self.ask(steps)) / steps / 1e6


def summary(values):
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(5000))
    return {"median": statistics.median(values), "low_95": medians[125], "high_95": medians[4875],
            "values": values}


def measure_steps(program, name, hidden, steps, world_size, pairs):
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        jobs = []
        try:
            jobs += [Job(program, engine, hidden, world_size, folder) for engine in ENGINES]
            for job in jobs:
                job.run(steps)  # warm; buckets are rebuilt in the second step
            times = {engine: [] for engine in ENGINES}
            for pair in range(pairs):
                for at in range(len(jobs)):
                    job = jobs[(pair + at) % len(jobs)]
                    times[job.engine].append(job.run(steps))
        finally:
            for job in jobs:
                job.close()
    ratio = {other: summary([a / b for a, b in zip(times["ddp"], times[other])]) for other in ("python", "flat")}
    return {"model": name, "world_size": world_size, "steps_per_block": steps,
            "step_ms": {engine: summary(times[engine]) for engine in ENGINES}, "ratio_to": ratio}


def measure_start_to_finish(program):
    what = START_TO_FINISH
    ours = [program, "job", str(what["hidden"]), str(what["world_size"]), str(what["steps"])]
    times = {"ddp": [], "python": []}
    parts = {"libraries of the launcher": [], **{part: [] for part in PARTS}}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        for _ in range(what["pairs"]):
            start = time.monotonic()
            told = subprocess.run(ours, text=True, capture_output=True, timeout=ANSWER_S, check=True,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
            times["ddp"].append(time.monotonic() - start)
            seconds = [int(word) / 1e9 for word in told.split()]
            parts["libraries of the launcher"].append(times["ddp"][-1] - sum(seconds))
            for part, value in zip(PARTS, seconds, strict=True):
                parts[part].append(value)
            start = time.monotonic()
            job = Job(program, "python", what["hidden"], what["world_size"], folder)
            try:
                job.run(what["steps"])
            finally:
                job.close()
            times["python"].append(time.monotonic() - start)
    return {**what, "seconds": {engine: summary(seconds) for engine, seconds in times.items()},
            "parts": {part: statistics.median(seconds) for part, seconds in parts.items()},
            "ratio_to": {"python": summary([a / b for a, b in zip(times["ddp"], times["python"])])}}


def settings():
    import importlib.metadata
    return {"torch": importlib.metadata.version("torch"), "backend": "gloo, 127.0.0.1 or the host's address",
            "cpus": os.cpu_count(), "machine": platform.machine(), "threads_per_rank": 1, "batch_per_rank": 32,
            "bucket_cap_mb": "default (25, first bucket 1)", "gradient_as_bucket_view": False,
            "optimizer": "SGD, momentum 0.9, one tensor at a time (no foreach) on all engines",
            "load_average_before": os.getloadavg()}


def show(label, ratio, target=None):
    text = f"  {label:<28} {ratio['median']:.3f}  [{ratio['low_95']:.3f}, {ratio['high_95']:.3f}]"
    if target is not None:
        text += f"  target {target:.2f}: {'met' if ratio['median'] <= target else 'missed'}"
    print(text, flush=True)


def write(result, path):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as file:
        json.dump(result, file, indent=1)
    print(f"written: {os.path.normpath(path)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--out", default=os.path.join(HERE, "..", "reports", "out", "ddp_step.json"))
    arguments = parser.parse_args()
    result = {"benchmark": "ddp_step", "settings": settings(), "targets": TARGETS, "steps": []}
    for name, hidden, steps in MODELS:
        small = hidden == MODELS[0][1]
        for world_size in WORLDS:
            row = measure_steps(arguments.program, name, hidden, steps, world_size, arguments.pairs)
            result["steps"].append(row)
            medians = ", ".join(f"{engine} {row['step_ms'][engine]['median']:.2f} ms" for engine in ENGINES)
            print(f"{name}, {world_size} ranks: {medians}")
            show("step, ours / Python's", row["ratio_to"]["python"],
                 TARGETS["step small, to python" if small else "step larger, to python"])
            show("step, ours / flat", row["ratio_to"]["flat"], None if small else TARGETS["step larger, to flat"])
    row = result["start_to_finish"] = measure_start_to_finish(arguments.program)
    print(f"200 steps on 4 ranks, start to finish: ddp {row['seconds']['ddp']['median']:.2f} s, "
          f"python {row['seconds']['python']['median']:.2f} s")
    show("ours / Python's", row["ratio_to"]["python"], TARGETS["start to finish, to python"])
    for part, seconds in row["parts"].items():
        print(f"  {part:<28} {seconds:.2f} s")
    write(result, arguments.out)


if __name__ == "__main__":
    main()
