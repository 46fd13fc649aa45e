"""A job that records a part of itself (part.py): the recording ends in order where the program says, and the job goes
on without it, unchanged to the bit.

usage: python3 part_test.py PACKAGE [-v] [Part.test_NAME ...]      the folder that holds lockstep_torch
"""

import json
import pathlib
import re
import sys
import tempfile
import unittest

from package import FOLDER, LOCKSTEP, run

sys.path.insert(0, str(FOLDER))

from lockstep_torch import processes

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 60
STEPS = 2 * 8


class Part(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(folder.cleanup)
        self.traces = pathlib.Path(folder.name, "traces")

    def start(self, *arguments):
        return run([sys.executable, HERE / "start.py", 2, HERE / "part.py", arguments[0], self.traces, *arguments[1:]],
                   DEADLINE_S)

    def train(self, *arguments):
        """What the ranks end with, and what their traces' heads were where they left and at the end."""
        done = self.start(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("not recorded any further", done.stderr)
        heads = [json.loads(f"[{left}, {now}]") for left, now in re.findall(r"left (\[.*\]) now (\[.*\])", done.stdout)]
        ends = sorted(re.findall(r"rank \d: \S+", done.stdout))
        self.assertEqual(len(ends), 2, done.stdout)
        return ends, heads, done.stderr

    def heads(self):
        return [processes.head(file) for file in sorted(processes.traces(self.traces))]

    def findings(self):
        done = run([*LOCKSTEP, "diagnose", "--json", self.traces], DEADLINE_S)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return [(one["pitfall"], one["ranks"]) for one in json.loads(done.stdout)["findings"]]

    def check(self, how, plain):
        ends, heads, _ = self.train(how)
        if how != "uneven":  # whose rank 1 goes on with other batches
            self.assertEqual(ends, plain)
        self.assertEqual(len(heads), 2)
        for left, now in heads:
            self.assertEqual(left[0], 1, "closed as the block was left")
            self.assertGreaterEqual(left[1], STEPS - 6)
            self.assertEqual(left, now, "something was recorded of what came later")
        self.assertEqual([its.truncated for its in self.heads()], [2, 2], "the program went on")
        self.assertEqual(self.findings(), [])

    def test_ends_in_order_and_the_job_goes_on_unchanged_to_the_bit(self):
        plain, _, _ = self.train("plain")
        self.assertFalse(self.traces.exists())
        parent = self.traces.parent
        for how in ("before", "after", "uneven"):
            with self.subTest(how):
                self.traces = parent / how
                self.check(how, plain)
        with self.subTest("whole"):
            self.traces = parent / "whole"
            self.assertEqual(self.train("whole")[0], plain)
            self.assertEqual([(its.closed, its.truncated) for its in self.heads()], [(1, 0), (1, 0)])
            self.assertEqual(self.findings(), [])

    def test_a_fault_inside_is_named_with_its_line(self):
        self.train("before", "no-set-epoch")
        self.assertEqual(self.findings(), [("missing-set-epoch", [0, 1])])
        said = run([*LOCKSTEP, "diagnose", self.traces], DEADLINE_S).stdout
        self.assertRegex(said, r"part\.py:\d+: for inputs, targets in loader")

    def test_a_second_part_is_refused_once(self):
        _, _, said = self.train("again")
        self.assertEqual(said.count("this process is not recorded a second time"), 1, said)
        self.assertFalse(pathlib.Path(f"{self.traces} again").exists())

    def test_an_exception_that_leaves_it_is_told(self):
        done = self.start("raises")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("a part of the job", done.stderr)
        self.assertEqual([name for name, ranks in self.findings() if ranks == [1]], ["one-rank-raises"])


if __name__ == "__main__":
    unittest.main()
