"""From the launch of a job to its first all-reduce: our launcher against torchrun with Python, in one run.

usage: ./lockstep bench launch_time [--pairs N] [--ranks W] [--many W] [--out FILE]

Both start W ranks (4), which meet and reduce one number; they take turns, N times. A ratio is of two launches in
a row; the figure is the median with its 95 % bootstrap interval. Then our launcher alone starts, reduces and ends
--many ranks (64) once.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
MOST = 0.15


def launch(command):
    """(seconds from the launch to the first all-reduce, seconds to the end)."""
    start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    end = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}\n{done.stderr[-2000:]}")
    return (int(done.stdout.split()[-1]) - start) / 1e9, (end - start) / 1e9


def interval(values):
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(2000))
    return {"median": statistics.median(values), "low": medians[49], "high": medians[1949]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--many", type=int, default=64)
    parser.add_argument("--out", default=str(HERE.parent / "reports" / "out" / "launch_time.json"))
    options = parser.parse_args()
    ours = [options.program, str(options.ranks)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(options.ranks), "--rdzv-backend",
                "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(HERE / "launch_time_rank.py")]
    launch(ours), launch(torchrun)  # files into the page cache
    pairs = [(launch(ours), launch(torchrun)) for _ in range(options.pairs)]
    many = launch([options.program, str(options.many)])
    ratio = interval([mine[0] / theirs[0] for mine, theirs in pairs])
    result = {
        "benchmark": "launch_time", "ranks": options.ranks, "pairs": options.pairs,
        "load_average": os.getloadavg()[0], "processors": os.cpu_count(),
        "to_first_all_reduce": {"ours_seconds": interval([mine[0] for mine, _ in pairs]),
                                "torchrun_seconds": interval([theirs[0] for _, theirs in pairs]),
                                "ratio": ratio, "asked_for_at_most": MOST},
        "many": {"ranks": options.many, "to_first_all_reduce_seconds": many[0], "to_the_end_seconds": many[1]},
    }
    pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"launch to first all-reduce on {options.ranks} ranks, ours / torchrun: {ratio['median']:.2f} "
          f"[{ratio['low']:.2f}, {ratio['high']:.2f}]; {options.many} ranks start, reduce and end in {many[1]:.1f} s",
          file=sys.stderr)


if __name__ == "__main__":
    main()
