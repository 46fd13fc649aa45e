"""What watching costs a Python job: a step with and without it, `import torch`, and the size of the trace.

usage: ./lockstep bench watch_overhead [--device cuda] [--pairs N] [--out FILE]

Two ranks train under DDP with a DataLoader, once watched and once not; both are started and warmed up. Then, N times,
each trains an epoch of 64 steps, of which one is probed, while the other waits. Of two models watching should cost
little; of three it costs most. A ratio is of two epochs in a row; the figure is the median with its 95 % bootstrap
interval. Both jobs' losses must be equal, bit for bit. Neither's malloc gives memory back: otherwise the page faults
of a step depend on where allocations happen to lie, and watching can seem to make a job faster. With --device cuda the
steps alone are measured, over NCCL, with a rank for each GPU, at most two.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from ddp_step import Ranks, summary  # noqa: E402
from watch_overhead_rank import STEPS  # noqa: E402

USUAL = ("mlp-784-2048-10", "transformer-128")
COSTLY = ("linear-784-10", "2000-parameters", "mlp-784-16384-10")  # tiny steps; many parameters; one of 51 MB
WORLD_SIZE = 2
LONG_STEPS = 10_000
MOST = {"step": 1.03, "import_seconds": 0.15, "mib": 50}


def environment(package, trace=None):
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
    keeps_memory = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 30))
    return {**inherited, **keeps_memory, "OMP_NUM_THREADS": "1", "PYTHONPATH": package,
            **({"LOCKSTEP_TRACE": str(trace)} if trace else {})}


class Job(Ranks):
    def __init__(self, model, package, folder, trace=None, device="cpu", ranks=WORLD_SIZE):
        store = f"{folder}/store-{model}-{'watched' if trace else 'plain'}"
        super().__init__("watched" if trace else "plain",
                         lambda rank: [sys.executable, str(HERE / "watch_overhead_rank.py"), model, device, store, str(rank), str(ranks)],
                         ranks, environment(package, trace))

    def train(self, epochs):
        """Milliseconds a step, and the last loss."""
        nanoseconds, loss = self.ask(epochs).split()
        return int(nanoseconds) / 1e6 / epochs / STEPS, loss


def measure_step(model, package, pairs, folder, device, ranks):
    jobs = []
    try:
        jobs += [Job(model, package, folder, trace, device, ranks) for trace in (None, pathlib.Path(folder, model))]
        for job in jobs:
            job.train(2)
        times, losses = ([], []), ([], [])
        for pair in range(pairs):
            for at in (0, 1) if pair % 2 == 0 else (1, 0):
                took, loss = jobs[at].train(1)
                times[at].append(took)
                losses[at].append(loss)
    finally:
        for job in jobs:
            job.close()
    row = {"model": model, "plain_ms": summary(times[0]), "watched_ms": summary(times[1]),
           "ratio": summary([watched / plain for plain, watched in zip(*times)]), "same_losses": losses[0] == losses[1]}
    print(f"{model}: {row['ratio']['median']:.3f} [{row['ratio']['low_95']:.3f}, {row['ratio']['high_95']:.3f}] of a step "
          f"unwatched ({row['plain_ms']['median']:.2f} ms), losses {'equal' if row['same_losses'] else 'DIFFER'}", flush=True)
    return row


def measure_import(package, pairs, folder):
    """Seconds that `import torch` takes longer in a process that is recorded."""
    def seconds(trace):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=120, env=environment(package, trace))
        return time.monotonic() - start
    seconds(None), seconds(folder)
    differences = []
    for pair in range(pairs):
        took = {trace: seconds(trace) for trace in ((folder, None) if pair % 2 else (None, folder))}
        differences.append(took[folder] - took[None])
    return summary(differences)


def measure_size(package, folder):
    """MiB of a rank's trace after 10,000 steps of a transformer; the width of its tensors does not count."""
    trace = pathlib.Path(folder, "long")
    job = Job("transformer-8", package, folder, trace)
    try:
        for _ in range(LONG_STEPS // STEPS + 1):
            job.train(1)
    finally:
        job.close()
    return max(file.stat().st_size for file in trace.glob("rank_*.trace")) / (1 << 20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", default=str(HERE.parent / "reports" / "out" / "watch_overhead.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    ranks = WORLD_SIZE
    if options.device == "cuda":
        import torch
        ranks = min(ranks, torch.cuda.device_count())
        if ranks == 0:
            print("skipped: there is no GPU here", file=sys.stderr)
            return 77
    package = str(pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"], "python"))
    models = USUAL + (COSTLY if options.device == "cpu" else ())
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        result = {"benchmark": "watch_overhead", "device": options.device, "ranks": ranks, "pairs": options.pairs, "most": MOST,
                  "load_average": os.getloadavg()[0], "processors": os.cpu_count(),
                  "steps": [measure_step(model, package, options.pairs, folder, options.device, ranks) for model in models]}
        if options.device == "cpu":
            result |= {"import_seconds": measure_import(package, options.pairs, folder),
                       "mib_of_10000_steps": measure_size(package, folder)}
    pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    right = all(row["same_losses"] and (row["model"] in COSTLY or row["ratio"]["median"] <= MOST["step"]) for row in result["steps"])
    if options.device == "cpu":
        print(f"import torch: {result['import_seconds']['median']:+.3f} s; "
              f"trace of {LONG_STEPS} steps: {result['mib_of_10000_steps']:.1f} MiB")
        right = (right and result["import_seconds"]["median"] <= MOST["import_seconds"]
                 and result["mib_of_10000_steps"] <= MOST["mib"])
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
