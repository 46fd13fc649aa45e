"""A job that is started again, as torchrun would, and goes on from its checkpoint: what it lost is named, and nothing
else; it trains the same to the bit.

usage: python3 resumed_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import json
import pathlib
import re
import sys
import tempfile
import unittest

from package import LOCKSTEP, run

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 90
RANKS = 2


class Resumed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_twice(self, *forgets, **environment):
        """What the ranks print at last."""
        own = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for attempt in ("0", "1"):
            done = run([sys.executable, HERE / "start.py", RANKS, HERE / "resumed.py", own, *forgets], DEADLINE_S,
                       TORCHELASTIC_MAX_RESTARTS="1", TORCHELASTIC_RESTART_COUNT=attempt, **environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("lockstep:", done.stderr)
        return sorted(re.findall(r"rank \d+: \S+", done.stdout))

    def findings(self, *forgets):
        traces = self.folder / "traces"
        watched = self.run_twice(*forgets, LOCKSTEP_TRACE=str(traces))
        done = run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return watched, {(one["pitfall"], tuple(one["ranks"])) for one in json.loads(done.stdout)["findings"]}

    def test_that_brings_all_back_is_right_and_unchanged_to_the_bit(self):
        watched, found = self.findings()
        self.assertEqual(found, set())
        self.assertEqual(watched, self.run_twice())

    def test_that_skips_what_it_was_given_before_is_right(self):
        _, found = self.findings("skips")
        self.assertEqual(found, set())

    def test_that_forgets_is_named(self):
        _, found = self.findings("optimizer", "scheduler", "epoch")
        self.assertEqual(found, {(name, (0, 1)) for name in ("optimizer-state-missing", "resume-repeats-epoch",
                                                             "scheduler-or-rng-state-missing")})


if __name__ == "__main__":
    unittest.main()
