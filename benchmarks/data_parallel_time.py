"""A training step of DataParallel (one process, a thread for each device) against one of DDP (a process for each), in one run.

usage: ./lockstep bench data_parallel_time [--pairs N] [--out FILE]

Both train the same model on global batches of the same size, with one thread a device or rank. Blocks of steps alternate;
a ratio is of two blocks of one round, and the figures are medians with a 95 % bootstrap interval.
"""

import argparse
import os
import tempfile

import ddp_step


class OneProcess(ddp_step.Ranks):
    def __init__(self, program, hidden, devices, folder):
        store = os.path.join(folder, "alone")
        super().__init__("data_parallel", lambda rank: [program, "data_parallel", str(hidden), store, "0", str(devices)], 1,
                         {**os.environ, "OMP_NUM_THREADS": "1"})

    run = ddp_step.Job.run


def measure(program, name, hidden, steps, devices, pairs):
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        jobs = []
        try:
            jobs += [OneProcess(program, hidden, devices, folder), ddp_step.Job(program, "ddp", hidden, devices, folder)]
            for job in jobs:
                job.run(steps)  # warm
            rounds = [[job.run(steps) for job in jobs] for _ in range(pairs)]
        finally:
            for job in jobs:
                job.close()
    return {"model": name, "devices": devices, "steps_per_block": steps,
            "step_ms": {job.engine: ddp_step.summary([times[at] for times in rounds]) for at, job in enumerate(jobs)},
            "ratio": ddp_step.summary([one / other for one, other in rounds])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--out", default=os.path.join(ddp_step.HERE, "..", "reports", "out", "data_parallel_time.json"))
    arguments = parser.parse_args()
    program = os.path.join(os.environ["LOCKSTEP_BUILD_DIR"], "benchmarks", "ddp_step")
    result = {"benchmark": "data_parallel_time", "settings": ddp_step.settings(), "steps": []}
    for name, hidden, steps in ddp_step.MODELS:
        for devices in ddp_step.WORLDS:
            row = measure(program, name, hidden, steps, devices, arguments.pairs)
            result["steps"].append(row)
            ddp_step.show(f"{name}, {devices} devices", row["ratio"])
    ddp_step.write(result, arguments.out)


if __name__ == "__main__":
    main()
