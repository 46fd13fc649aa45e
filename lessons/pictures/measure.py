"""Measures what the pictures are drawn from, and writes reports/results/pictures.json.

usage: .lockstep/torch-2.11.0/bin/python lessons/pictures/measure.py BUILD [--check]

BUILD is a build folder with the lessons' programs. draw.py then draws, and needs no torch. With --check nothing is
written: what does not hang on time must be as it was written, and every picture must come out of what was measured.
"""

import argparse
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE.parent / "loopback"), str(HERE.parents[1] / "reports")]
import figures  # noqa: E402
import loopback  # noqa: E402
import measure_images  # noqa: E402
import measure_runs  # noqa: E402
import results  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DistributedSampler  # noqa: E402


def dealt(samples, ranks, epochs, set_epoch=True):
    """[epoch][rank]: the samples that torch's sampler deals."""
    samplers = [DistributedSampler(range(samples), ranks, rank) for rank in range(ranks)]
    drawn = []
    for epoch in range(epochs):
        for sampler in samplers:
            if set_epoch:
                sampler.set_epoch(epoch)
        drawn.append([list(sampler) for sampler in samplers])
    return drawn


def shares():
    return {"samples": 10, "dealt": dealt(10, 3, 1)[0]}


def orders():
    of_rank_0 = {name: [ranks[0] for ranks in dealt(16, 2, 3, set_epoch)]
                 for name, set_epoch in [("with_set_epoch", True), ("without", False)]}
    return {"samples": 16, "ranks": 2, **of_rank_0}


def two_halves(batch=8, feature=4):
    """What one feature of a first layer is for a batch of images, which two ranks share; and its statistics."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(784, 256)
    values = layer(measure_images.first(batch)[0])[:, feature].tolist()
    halves = [values[:batch // 2], values[batch // 2:]]
    return {"halves": halves, "statistics": [{"mean": statistics.fmean(part), "variance": statistics.pvariance(part)}
                                             for part in [*halves, values]]}


def of_two_ranks(script, folder):
    """What a script that torchrun starts on two ranks writes."""
    file = pathlib.Path(folder, f"{script}.json")
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", HERE / f"{script}.py", file],
                   check=True, env={**os.environ, **loopback.environment(), "OMP_NUM_THREADS": "1"})
    return json.loads(file.read_text(encoding="utf-8"))


def measured(build):
    with tempfile.TemporaryDirectory(prefix="lockstep-pictures-") as folder:
        runs = measure_runs.Runs(build, folder)
        return {"shares": shares(), "orders": orders(), "two_halves": two_halves(),
                "mean_gradient": of_two_ranks("measure_mean_gradient", folder), "buckets": of_two_ranks("measure_buckets", folder),
                **{picture.__name__: picture(runs) for picture in measure_runs.PICTURES}}


def check(now):
    """What is wrong, a line each. Where nothing is, the pictures are drawn, which raises where one cannot be."""
    wrong = figures.differences(json.loads(figures.FILE.read_text(encoding="utf-8")), now)
    if wrong:
        return wrong
    with tempfile.TemporaryDirectory(prefix="lockstep-pictures-") as folder:
        figures.FILE = pathlib.Path(folder, "pictures.json")
        figures.FILE.write_text(json.dumps(now), encoding="utf-8")
        importlib.import_module("draw").drawn()
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", metavar="BUILD", type=pathlib.Path, help="a build folder with the lessons' programs")
    parser.add_argument("--check", action="store_true", help="compare with what was written, and write nothing")
    options = parser.parse_args()
    now = measured(options.build.resolve())
    if not options.check:
        figures.FILE.write_text(results.text(now), encoding="utf-8")
        return 0
    wrong = check(now)
    print("\n".join(wrong) or f"{len(now)} pictures' figures are as they were measured before")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
