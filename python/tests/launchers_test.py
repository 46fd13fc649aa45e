"""Jobs of other launchers than torchrun under `lockstep watch`, by the variables that each sets (pretends.py), and by
those that are installed: both ranks are recorded, a fault is named, and nothing in the right job.

usage: python3 launchers_test.py PACKAGE [-v] [Launchers.test_NAME ...]      the folder that holds lockstep_torch

Slurm's own srun takes a cluster: tests/launchers/slurm_test.py has one, and runs launched.py under it.
"""

import json
import pathlib
import shutil
import socket
import sys
import tempfile
import unittest

from package import LOCKSTEP, run

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 90
RANKS = 2


class Launchers(unittest.TestCase):
    def check(self, launcher, start, **variables):
        for fault, expected in (("", []), ("no-set-epoch", [("missing-set-epoch", [0, 1])])):
            with self.subTest(fault), tempfile.TemporaryDirectory(prefix="lockstep-test-") as name:
                traces = pathlib.Path(name, "traces")
                job = [*start, HERE / "launched.py", launcher, *filter(None, [fault])]
                done = run([*LOCKSTEP, "watch", "--into", traces, "--", *job], DEADLINE_S, TMPDIR=name, **variables)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.count(f"of {RANKS} is there"), RANKS)
                names = sorted(file.name for file in traces.rglob("*.trace"))
                self.assertEqual(names, ["rank_0.trace", "rank_1.trace"])
                said = json.loads(run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S).stdout)
                self.assertEqual((said["world_size"], said["recorded_ranks"]), (RANKS, RANKS))
                self.assertEqual([(one["pitfall"], one["ranks"]) for one in said["findings"]], expected)

    def need(self, program):
        if not shutil.which(program):
            self.skipTest(f"there is no {program}")

    def test_accelerate_launch_by_its_variables(self):
        self.check("accelerate", [sys.executable, HERE / "pretends.py", "accelerate", RANKS])

    def test_mpirun_by_its_variables(self):
        self.check("mpirun", [sys.executable, HERE / "pretends.py", "mpirun", RANKS])

    def test_srun_by_its_variables(self):
        self.check("srun", [sys.executable, HERE / "pretends.py", "srun", RANKS])

    def test_accelerate_launch(self):
        self.need("accelerate")
        self.check("accelerate", ["accelerate", "launch", "--multi_gpu", "--num_processes", RANKS, "--num_machines", 1,
                                  "--main_process_port", 0, "--mixed_precision", "no", "--dynamo_backend", "no"])

    def test_mpirun(self):
        self.need("mpirun")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.check("mpirun", ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", RANKS, sys.executable],
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMPI_MCA_btl="self,vader",
                   OMPI_MCA_oob_tcp_if_include="lo")


if __name__ == "__main__":
    unittest.main()
