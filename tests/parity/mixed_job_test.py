"""One job of a Python rank and a C++ rank, under torchrun: it must train to the very parameters of a job
whose ranks are all C++, and both ranks to the same.

usage: mixed_job_test.py PROGRAM      (PROGRAM is the built ddp_parity)
"""

import os
import sys
import tempfile
import unittest

import ranks

PROGRAM = None  # set by ranks.main
CASES = ("mlp", "conv", "unused_view")
DEADLINE_S = 90


class MixedJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lockstep-mixed-")
        cls.addClassCleanup(cls.folder.cleanup)
        specs = [f"2:{case}" for case in CASES]
        for name in ("mixed", "pure", "stores"):
            os.mkdir(os.path.join(cls.folder.name, name))
        mixed, pure, stores = (os.path.join(cls.folder.name, name) for name in ("mixed", "pure", "stores"))
        with ranks.Ranks(DEADLINE_S) as group:
            # Port 0: the agent takes a free one.
            group.start([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                         "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
                         "--log-dir", os.path.join(mixed, "torchrun"),
                         os.path.join(ranks.HERE, "mixed_rank.py"), PROGRAM, mixed, *specs])
            for rank in range(2):
                group.start([PROGRAM, pure, f"file://{stores}/", str(rank), *specs])
            group.wait()

    def path(self, kind, case, rank):
        return os.path.join(self.folder.name, kind, f"w2_{case}_r{rank}")

    def test_equals_a_pure_job(self):
        for case in CASES:
            for rank in range(2):
                ranks.compare(self, self.path("mixed", case, rank), self.path("pure", case, rank))

    def test_both_ranks_hold_the_same_parameters(self):
        for case in ("mlp", "unused_view"):  # a BatchNorm's running statistics are each rank's own
            python, cpp = (dict(ranks.read_result(self.path("mixed", case, rank))) for rank in range(2))
            self.assertNotEqual(python.pop("losses"), cpp.pop("losses"))  # of their own data
            self.assertEqual(python, cpp)
            self.assertGreaterEqual(len(python), 4)


if __name__ == "__main__":
    ranks.main()
