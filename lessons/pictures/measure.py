"""Measures what the pictures are drawn from, and writes reports/measured/pictures.json.

usage: .lockstep/torch-2.11.0/bin/python lessons/pictures/measure.py [LOCKSTEP]

LOCKSTEP runs the lessons; it is ./lockstep unless told. draw.py then draws, and needs no torch.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from torch.utils.data import DistributedSampler

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "reports/measured/pictures.json"
LESSON, VARIANT = "09_hanging_collective", "rank-conditional-collective"


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


def hanging(lockstep, folder):
    """Where the ranks part, and each rank's calls from three before that on."""
    subprocess.run([lockstep, "run", LESSON, "--variant", VARIANT, "--world-size", "3", "--trace", folder],
                   check=True)
    said = subprocess.run([lockstep, "diagnose", f"{folder}/{LESSON}/{VARIANT}", "--json", "--pictures"],
                          stdout=subprocess.PIPE, text=True).stdout
    timeline = json.loads(said)["pictures"]["timeline"]
    parted = timeline["first_difference"]
    return {"sequence": parted["sequence"], "ranks": parted["ranks"],
            "calls": [call for call in timeline["calls"] if call["sequence"] >= parted["sequence"] - 3]}


def buckets(folder):
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                    pathlib.Path(__file__).with_name("measure_buckets.py"), f"{folder}/buckets.json"], check=True)
    return json.loads(pathlib.Path(folder, "buckets.json").read_text(encoding="utf-8"))


def main():
    lockstep = sys.argv[1] if len(sys.argv) > 1 else ROOT / "lockstep"
    with tempfile.TemporaryDirectory() as folder:
        figures = {"shares": shares(), "orders": orders(), "hanging": hanging(lockstep, folder),
                   "buckets": buckets(folder)}
    FILE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
