"""What scaling the learning rate with the ranks does to the result, and what the ranks do to the time.

usage: ./lockstep bench lr_scaling [--worlds 1,2,4,8] [--seeds N] [--samples N] [--epochs N] [--out FILE]

An MLP 784-256-10 with batches of 64 a rank, the same samples and epochs on every number of ranks.
SGD and Adam, the rate constant, times W, times the root of W; with and without a warm-up of one epoch. For
each: the mean over the seeds and its 95 % interval (Student's t). The time is of the constant rate without a
warm-up; efficiency is t(1) / (W t(W)), for as many ranks as there are physical cores.
"""

import argparse
import math
import os
import platform
import statistics
import subprocess
import tempfile

import scipy.stats
from ddp_step import write

HERE = os.path.dirname(os.path.abspath(__file__))
REFERENCE = {"sgd": 0.05, "adam": 1e-3}  # the rates of one rank
SCALING = {"constant": lambda ranks: 1, "linear": lambda ranks: ranks, "root": math.sqrt}
MEASURED = ("train_loss", "test_loss", "test_accuracy")


def physical_cores():
    """Cores as the kernel counts them, without their second threads; all CPUs where it does not say."""
    cores, fields = set(), {}
    with open("/proc/cpuinfo") as file:
        for line in [*file, "\n"]:
            name, _, value = line.partition(":")
            if name.strip():
                fields[name.strip()] = value.strip()
            elif fields:
                cores.add((fields.get("physical id"), fields.get("core id", fields.get("processor"))))
                fields = {}
    return min(len(cores), len(os.sched_getaffinity(0))) or os.cpu_count()


def run(program, options, world_size, timeout=600):
    """One training; what rank 0 writes."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        store = os.path.join(folder, "store")
        ranks = [subprocess.Popen([program, *options, store, str(rank), str(world_size)], text=True,
                                  stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
                 for rank in range(world_size)]
        try:
            written = [rank.communicate(timeout=timeout)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank failed; its error is above ({' '.join(options)}, {world_size} ranks)")
    seconds, updates, *values = written[0].split()
    return {"seconds": float(seconds), "updates": int(updates), **dict(zip(MEASURED, map(float, values)))}


def summary(values):
    mean, count = statistics.mean(values), len(values)
    half = float(scipy.stats.t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count) if count > 1 else None
    return {"mean": mean, "low_95": None if half is None else mean - half,
            "high_95": None if half is None else mean + half, "values": values}


def measure(program, arguments, optimizer, scaling, warmup, world_size):
    rate = REFERENCE[optimizer] * SCALING[scaling](world_size)
    runs = [run(program, [optimizer, repr(rate), str(warmup), str(arguments.samples), str(arguments.epochs), str(seed)],
                world_size) for seed in range(arguments.seeds)]
    return {"optimizer": optimizer, "scaling": scaling, "warmup_epochs": warmup, "world_size": world_size,
            "rate": rate, "updates": runs[0]["updates"], "seconds": summary([one["seconds"] for one in runs]),
            **{name: summary([one[name] for one in runs]) for name in MEASURED}}


def show(row):
    def text(name, scale=1):
        half = "" if row[name]["low_95"] is None else f" +- {scale * (row[name]['high_95'] - row[name]['mean']):.3f}"
        return f"{scale * row[name]['mean']:.3f}{half}"
    print(f"  {row['optimizer']:<5} {row['world_size']} ranks  {row['scaling']:<9}"
          f"{'warm-up' if row['warmup_epochs'] else '       '}  rate {row['rate']:<10.4g}"
          f"train loss {text('train_loss'):<16} test loss {text('test_loss'):<16} "
          f"accuracy {text('test_accuracy', 100)} %", flush=True)


def efficiency(rows, cores):
    """t(1) / (W t(W)) of each optimizer, seed by seed, for as many ranks as there are cores."""
    times = {(row["optimizer"], row["world_size"]): row["seconds"]["values"] for row in rows
             if row["scaling"] == "constant" and not row["warmup_epochs"]}
    return [{"optimizer": optimizer, "world_size": world_size,
             "efficiency": summary([one / (world_size * many) for one, many in zip(times[optimizer, 1], values)])}
            for (optimizer, world_size), values in times.items()
            if (optimizer, 1) in times and 1 < world_size <= cores]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--worlds", default="1,2,4,8")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=10_240)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", default=os.path.join(HERE, "..", "reports", "out", "lr_scaling.json"))
    arguments = parser.parse_args()
    worlds, cores = [int(world) for world in arguments.worlds.split(",")], physical_cores()
    import importlib.metadata
    result = {"benchmark": "lr_scaling",
              "settings": {"torch": importlib.metadata.version("torch"), "machine": platform.machine(),
                           "physical_cores": cores, "threads_per_rank": 1, "backend": "gloo", "batch_per_rank": 64,
                           "model": "mlp-784-256-10", "samples": arguments.samples, "epochs": arguments.epochs,
                           "seeds": arguments.seeds, "reference_rate": REFERENCE,
                           "load_average_before": os.getloadavg()},
              "rows": []}
    for optimizer in REFERENCE:
        for world_size in worlds:
            for scaling in SCALING if world_size > 1 else ("constant",):
                for warmup in (0, 1):
                    row = measure(arguments.program, arguments, optimizer, scaling, warmup, world_size)
                    result["rows"].append(row)
                    show(row)
    result["efficiency"] = efficiency(result["rows"], cores)
    for row in result["efficiency"]:
        print(f"  {row['optimizer']:<5} {row['world_size']} ranks: t(1) / (W t(W)) = {row['efficiency']['mean']:.2f}")
    left_out = [world for world in worlds if world > cores]
    if left_out:
        print(f"  no efficiency for {', '.join(map(str, left_out))} ranks: there are {cores} cores")
    write(result, arguments.out)


if __name__ == "__main__":
    main()
