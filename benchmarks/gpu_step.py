"""A training step of our DDP on a device against Python's DDP, and against itself observed, on the same machine in one run.

usage: ./lockstep bench gpu_step [--device cuda|cpu] [--jobs NAME ...] [--pairs N] [--out FILE]

A row is a model (jobs.py) in fp32 or bf16. All engines' ranks are started and warmed up once; then, N times, each runs
a block of steps while the others wait for input, in an order that rotates. A ratio is of the two blocks of one round;
the figures are the medians of the rounds' ratios with a 95 % bootstrap interval. All must have lost the same: otherwise
they have not done the same work, and there is no figure.
"""

import argparse
import json
import math
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "gpu")]
import jobs  # noqa: E402
from ddp_step import Ranks, summary  # noqa: E402

ENGINES = ("lockstep", "python", "observed")
TARGETS = {"mlp": 0.9, "resnet50": 1.02, "gpt2-124m": 1.02}  # of the 95 % upper bound of ours over Python's
OBSERVED_TARGET = 1.02  # of observed over not
PHASES = ("forward", "backward", "optimizer", "step")
LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}  # relative, after the first block: rounding, step after step


class Job(Ranks):
    def __init__(self, engine, program, job, precision, device, world_size, folder):
        store = tempfile.mktemp(prefix=engine + "-", dir=folder)
        start = [sys.executable, str(HERE / "gpu" / "step_rank.py")] if engine == "python" else [program]
        more = [tempfile.mkdtemp(prefix="trace-", dir=folder)] if engine == "observed" else []
        words = [*start, *jobs.words(job), precision, device, store]
        super().__init__(engine, lambda rank: [*words, str(rank), str(world_size), *more], world_size,
                         {**os.environ, "OMP_NUM_THREADS": "1"} if device == "cpu" else None)

    def numbers(self, line):
        return [float(word) for word in self.ask(line).split()]


def measure(program, name, precision, device, world_size, pairs):
    job = jobs.JOBS[name]
    steps = job["steps"]
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        engines = []
        try:
            engines += [Job(engine, program, job, precision, device, world_size, folder) for engine in ENGINES]
            first = [engine.numbers(steps)[1] for engine in engines]  # warm; buckets are rebuilt in the second step
            times, losses = {engine: [] for engine in ENGINES}, {}
            for pair in range(pairs):
                for at in range(len(engines)):
                    ranks = engines[(pair + at) % len(engines)]
                    nanoseconds, losses[ranks.engine] = ranks.numbers(steps)
                    times[ranks.engine].append(nanoseconds / steps / 1e6)
            phases = {ranks.engine: dict(zip(PHASES, ranks.numbers(f"phases {steps}"))) for ranks in engines}
        finally:
            for ranks in engines:
                ranks.close()
    row = {"model": name, "precision": precision, "world_size": world_size, "batch_per_rank": job["batch"],
           "optimizer": job["optimizer"], "steps_per_block": steps, "first_losses": dict(zip(ENGINES, first)),
           "last_losses": losses, "step_ms": {engine: summary(times[engine]) for engine in ENGINES}, "phases_ms": phases}
    row["same_work"] = all(math.isclose(first[0], other, rel_tol=LOSS_TOLERANCE[precision]) for other in first[1:])
    if row["same_work"]:
        row["ratio_to_python"] = summary([a / b for a, b in zip(times["lockstep"], times["python"])])
        row["observed_to_plain"] = summary([a / b for a, b in zip(times["observed"], times["lockstep"])])
    return row


def settings(device):
    import torch
    found = {"torch": torch.__version__, "device": device, "cpus": os.cpu_count(), "load_average_before": os.getloadavg(),
             "optimizer": "one tensor at a time on all engines (Python's foreach=False), as LibTorch's are",
             "of_one_rank": "buckets, hooks and events are as with more, and NCCL has nothing to send"}
    if device == "cuda":
        found |= {"gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
                  "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def show(row):
    name = f"{row['model']} {row['precision']}"
    if not row["same_work"]:
        print(f"{name}: no figure: the engines lost {row['first_losses']} in their first block", flush=True)
        return
    medians = {engine: row["step_ms"][engine]["median"] for engine in ENGINES}
    print(f"{name}: {', '.join(f'{engine} {medians[engine]:.3f} ms' for engine in ENGINES)}")
    for what, ratio, target in (("ours / Python's", row["ratio_to_python"], TARGETS.get(row["model"])),
                                ("observed / ours", row["observed_to_plain"], OBSERVED_TARGET)):
        verdict = "" if target is None else f"  target {target:.2f}: {'met' if ratio['high_95'] <= target else 'missed'}"
        print(f"  {what} {ratio['median']:.3f} [{ratio['low_95']:.3f}, {ratio['high_95']:.3f}]{verdict}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", nargs="+", choices=sorted(jobs.JOBS), default=list(TARGETS))
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "reports" / "out" / "gpu_step.json")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        import torch
        if not torch.cuda.is_available():
            print("skipped: there is no GPU here (--device cpu --jobs tiny-mlp runs the same code without one)",
                  file=sys.stderr)
            return 77
    result = {"benchmark": "gpu_step", "settings": settings(arguments.device),
              "targets": {**TARGETS, "observed": OBSERVED_TARGET}, "steps": []}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in arguments.jobs:
        for precision in ("fp32", "bf16"):
            try:
                row = measure(arguments.program, name, precision, arguments.device, arguments.world_size, arguments.pairs)
            except RuntimeError as error:  # the other rows are worth having
                print(f"{name} {precision}: no figure: {error}", flush=True)
                failed = True
                continue
            result["steps"].append(row)
            show(row)
            failed |= not row["same_work"]
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if result["steps"]:
        print(f"written: {os.path.relpath(arguments.out)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
