"""A watched job's peak of memory is at most 64 MB above the plain job's, of 268 MB of parameters.

usage: memory_test.py PACKAGE [unittest's arguments]
"""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import run  # noqa: E402

JOB = pathlib.Path(__file__).resolve().parent / "memory.py"
MOST = 64  # MB
# A tensor's memory goes back to the system at once: where malloc keeps it, the peak differs from run to run.
GOES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def peak(kind, **variables):
    done = run([sys.executable, JOB, kind], 240, **GOES_BACK, **variables)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return int(done.stdout)


class Memory(unittest.TestCase):
    def check(self, kind):
        plain = peak(kind)
        with tempfile.TemporaryDirectory(prefix="lockstep-memory-") as folder:
            watched = peak(kind, LOCKSTEP_TRACE=folder)
            self.assertTrue(list(pathlib.Path(folder).rglob("rank_*.trace")))
        print(f"{kind}: {watched} MB watched, {plain} MB plain", file=sys.stderr)
        self.assertLessEqual(watched - plain, MOST)

    def test_alone(self):
        self.check("alone")

    def test_ddp(self):
        self.check("ddp")

    def test_ddp_with_gradients_as_bucket_views(self):
        self.check("view")


if __name__ == "__main__":
    unittest.main(verbosity=2)
