"""The code in docs/ is that of subdirectory/ and installed/, and the former's example trains.

usage: consumer_test.py PROGRAM LOCKSTEP      (the built train.cpp, and lockstep-course)
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"
PROGRAM = LOCKSTEP = None
DEADLINE_S = 90
# Where a block of code stands, how it begins, and what it is an excerpt of.
SHOWN = [("library.md", "cmake_minimum_required(", "subdirectory/CMakeLists.txt"),
         ("library.md", "#include <lockstep/dist/", "subdirectory/train.cpp"),
         ("library.md", "find_package(", "installed/CMakeLists.txt"),
         ("diagnose.md", "#include <lockstep/record/", "installed/two_lines.cpp"),
         ("diagnose.md", "lockstep::DistributedDataParallel<", "installed/unprobed.cpp")]


def blocks(page):
    """The fenced blocks of code of one page, each as its stripped lines."""
    found = re.findall(r"^```(?:cpp|cmake)\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [[line.strip() for line in block.splitlines() if line.strip()] for block in found]


class Docs(unittest.TestCase):
    def assert_in_order(self, lines, file):
        source = iter([line.strip() for line in (HERE / file).read_text(encoding="utf-8").splitlines()])
        for line in lines:
            self.assertTrue(any(line == other for other in source), f"this line is not in {file}, or not in this order: {line}")

    def test_their_code_is_what_is_compiled(self):
        for page, start, file in SHOWN:
            found = [block for block in blocks(page) if block[0].startswith(start)]
            self.assertEqual(len(found), 1, f"blocks in {page} that begin with {start}")
            self.assert_in_order(found[0], file)
        shown = {page for page, _, _ in SHOWN}
        self.assertEqual(sum(len(blocks(page)) for page in shown), len(SHOWN), "a block of code that nothing compiles")


class Example(unittest.TestCase):
    def test_it_trains_on_two_ranks_under_torchrun(self):
        with tempfile.TemporaryDirectory() as folder:
            logs, traces = pathlib.Path(folder, "logs"), pathlib.Path(folder, "traces")
            done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2",
                                   "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--log-dir", logs,
                                   PROGRAM],
                                  capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "LOCKSTEP_TRACE": str(traces)})
            self.assertEqual(done.returncode, 0, done.stderr)
            said = subprocess.run([LOCKSTEP, "diagnose", traces], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertIn("  held    replicas are equal after the update", said.stdout, said.stderr)
        self.assertNotIn("BROKEN", said.stdout)
        losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([0-9.]+)$", done.stdout, re.MULTILINE)]
        self.assertEqual(len(losses), 2, done.stdout)  # rank 0 speaks, once an epoch
        self.assertLess(losses[1], 0.8 * losses[0])

    def test_alone_it_is_one_rank_of_one(self):
        done = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stderr, done.stdout.count("epoch")), (0, "", 2))


if __name__ == "__main__":
    PROGRAM, LOCKSTEP = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
