"""Healthy programs as their authors write them (programs/), plain and under `lockstep watch`: each trains the same, to
the bit, and nothing is found in it.

usage: python3 programs_test.py PACKAGE [-v] [Programs.test_NAME ...]      the folder that holds lockstep_torch
"""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

from package import LOCKSTEP, run

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 150
RANKS = 2
OF_FOUR = ("data_and_pipeline", "data_and_tensor", "hybrid_sharding")

STARTS_ITS_RANKS = {"ddp_tutorial", "fabric_loop", "lightning_trainer", "ray_train"}
RUNS = {"imagenet": 2}  # the second one resumes
NEEDS = {"accelerate_loop": "accelerate", "fabric_loop": "lightning", "lightning_trainer": "lightning",
         "ray_train": "ray", "transformers_trainer": "transformers"}
OWN_STATISTICS = {"local-batch-norm": "its BatchNorm sees the batch of one rank alone, which may be what is meant"}
ADVICE = {"local_sgd": {"replicas-diverged": "it ends between two averages"},
          "kinships": {"losses-differ": "each rank's loss is the sum over its own links, by all ranks' count"},
          "ema": OWN_STATISTICS, "imagenet": OWN_STATISTICS, "lightning_trainer": OWN_STATISTICS,
          "mingpt": {"evaluation-not-reduced": "each rank has the loss of its own part of the test"},
          "powersgd": {"gradient-not-the-mean": "a gradient of rank 1 is far from the mean, as the program chose"}}

# Lines of the ledger that cannot be told, by shape of program: all others hold, or have nothing to hold.
UNTOLD = {"mnist": {"random-numbers"}, "multi_task": set(), "folds": set(), "local_sgd": set(),
          "static_graph": set(), "dist_tuto": {"random-numbers"}, "distillation": {"random-numbers"},
          "compiled_ddp": {"modes"},
          "by_hand": {"modes", "random-numbers", "mean-gradient"},
          "lbfgs": {"new-order", "random-numbers", "mean-gradient"}}


def missing(program):
    """Why the program cannot run here; nothing where it can."""
    if program in NEEDS and not importlib.util.find_spec(NEEDS[program]):
        return f"there is no {NEEDS[program]}"
    if program == "compiled_ddp" and not shutil.which(os.environ.get("CXX", "g++")):
        return "there is no compiler"
    if program == "sync_bn" and not list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        return "there is no GPU, and torch has no SyncBatchNorm for CPUs"
    return ""


class Programs(unittest.TestCase):
    def hashes(self, ranks, folder, *command):
        done = run(command, DEADLINE_S, folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotRegex(done.stderr, "not recorded any further|is not recorded")
        found = sorted(re.findall(r"rank \d+: [0-9a-f]{32}", done.stdout))
        self.assertEqual(len(found), ranks, done.stdout + done.stderr)
        return found

    def diagnosis(self, ranks, traces):
        done = run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S, traces)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["world_size"], said["recorded_ranks"]), (ranks, ranks))
        return said

    def check(self, program):
        if reason := missing(program):
            self.skipTest(reason)
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as name:
            folder = pathlib.Path(name)
            ranks = 4 if program in OF_FOUR else RANKS
            start = [] if program in STARTS_ITS_RANKS else [HERE / "start.py", ranks]
            command = [sys.executable, *start, HERE / "programs" / f"{program}.py"]
            for kind in ("plain", "watched"):
                (folder / kind).mkdir()
            for run in range(RUNS.get(program, 1)):
                traces = folder / f"traces {run}"
                plain = self.hashes(ranks, folder / "plain", *command)
                watched = self.hashes(ranks, folder / "watched", *LOCKSTEP, "watch", "--into", traces, "--", *command)
                with self.subTest("the same bits", run=run):
                    self.assertEqual(watched, plain)
                said = self.diagnosis(ranks, traces)
                with self.subTest("nothing found", run=run):
                    self.assertEqual([one for one in said["findings"] if not is_allowed(program, one)], [])
                with self.subTest("what was recorded", run=run):
                    untold = {line["equation"] for line in said["ledger"] if line["standing"] == "cannot be told"}
                    self.assertEqual(untold, UNTOLD.get(program, untold))


def is_allowed(program, finding):
    return finding["severity"] == "advice" and finding["pitfall"] in ADVICE.get(program, {})


def test_of(program):
    return lambda self: self.check(program)


for _file in sorted((HERE / "programs").glob("*.py")):
    if _file.stem != "fingerprint":
        setattr(Programs, f"test_{_file.stem}", test_of(_file.stem))

if __name__ == "__main__":
    unittest.main()
