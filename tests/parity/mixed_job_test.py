"""One job of a Python rank and a C++ rank, under torchrun. It must train to the very parameters of a job whose ranks are
all C++, and both ranks to the same. The same must hold when a rank is killed and torchrun starts all again.

usage: mixed_job_test.py PROGRAM [MixedJob | RestartedJob]      (PROGRAM is the built ddp_parity)
"""

import os
import sys
import tempfile
import unittest

import ranks

PROGRAM = None  # set by ranks.main
CASES = ("mlp", "conv", "unused_view")
SPECS = [f"2:{case}" for case in CASES]
DEADLINE_S = 90


class Job(unittest.TestCase):
    """A pure job's results, and a folder."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-mixed-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        for name in ("pure", "stores"):
            os.mkdir(os.path.join(cls.folder, name))
        with ranks.Ranks(DEADLINE_S) as group:
            for rank in range(2):
                group.start([PROGRAM, os.path.join(cls.folder, "pure"),
                             f"file://{os.path.join(cls.folder, 'stores')}/", str(rank), *SPECS])
            group.wait()

    @classmethod
    def torchrun(cls, name, restarts=0, killed="nobody"):
        out = os.path.join(cls.folder, name)
        os.mkdir(out)
        with ranks.Ranks(DEADLINE_S) as group:
            # Port 0: the agent takes a free one.
            group.start([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                         "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
                         "--log-dir", os.path.join(out, "torchrun"), "--max-restarts", str(restarts),
                         os.path.join(ranks.HERE, "mixed_rank.py"), PROGRAM, out, killed, *SPECS],
                        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts else {})  # docs/library.md says why
            group.wait()

    def path(self, kind, case, rank):
        return os.path.join(self.folder, kind, f"w2_{case}_r{rank}")

    def assert_equals_the_pure_job(self, kind):
        for case in CASES:
            for rank in range(2):
                ranks.compare(self, self.path(kind, case, rank), self.path("pure", case, rank))


class MixedJob(Job):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.torchrun("mixed")

    def test_equals_a_pure_job(self):
        self.assert_equals_the_pure_job("mixed")

    def test_both_ranks_hold_the_same_parameters(self):
        for case in ("mlp", "unused_view"):  # a BatchNorm's running statistics are each rank's own
            python, cpp = (dict(ranks.read_result(self.path("mixed", case, rank))) for rank in range(2))
            self.assertNotEqual(python.pop("losses"), cpp.pop("losses"))  # of their own data
            self.assertEqual(python, cpp)
            self.assertGreaterEqual(len(python), 4)


class RestartedJob(Job):
    """The rank that is killed has trained one case, and no more, in the first attempt."""

    def test_goes_on_without_its_python_rank(self):
        self.torchrun("no_python", restarts=1, killed="0")
        self.assert_equals_the_pure_job("no_python")

    def test_goes_on_without_its_cpp_rank(self):
        self.torchrun("no_cpp", restarts=1, killed="1")
        self.assert_equals_the_pure_job("no_cpp")

    def test_does_not_go_on_where_torchrun_may_not_start_it_again(self):
        with self.assertRaisesRegex(RuntimeError, "SIGKILL"):
            self.torchrun("given_up", killed="1")
        self.assertFalse(os.path.exists(self.path("given_up", CASES[-1], 0)))


if __name__ == "__main__":
    ranks.main()
