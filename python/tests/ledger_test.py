"""What the ledger says of whole jobs whose fault an event of its own shows.

usage: python3 ledger_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import json
import pathlib
import sys
import tempfile
import unittest

from package import LOCKSTEP, run

HERE = pathlib.Path(__file__).parent
DEADLINE_S = 120
# Of each kind: the equation that it breaks, what explains it, and since which step.
BROKEN = {"bypassed": ("mean-gradient", "forward-bypasses-wrapper", 0),
          "summed": ("mean-gradient", "gather-loses-graph", 0),
          "checkpointed": ("all-moved", "parameters-not-updated", 0),
          "renamed": ("saved-is-held", "module-prefix", -1),
          "averaged": ("equal-after", "replicas-diverged", 0),
          "added": ("equal-start", "no-initial-broadcast", -1),
          "drawn_anew": ("own-samples", "dataset-unseeded", -1),
          "forwarded": ("saved-is-held", "resume-mid-epoch-replays", 12)}


class Ledger(unittest.TestCase):
    def ledger_of(self, kind, form):
        with tempfile.TemporaryDirectory(prefix="lockstep-ledger-") as folder:
            traces = pathlib.Path(folder, "traces")
            watched = run([*LOCKSTEP, "watch", "--into", traces, "--timeout", 60, "--", sys.executable,
                           HERE / "start.py", 2, HERE / "ledger.py", kind, form], DEADLINE_S)
            self.assertEqual(watched.returncode, 0, watched.stderr)
            said = json.loads(run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S).stdout)
        self.assertEqual(len(said["ledger"]), 17)
        return {line["equation"]: line for line in said["ledger"]}

    def test_a_broken_form_breaks_its_equation_and_the_right_one_none(self):
        for kind, (equation, pitfall, step) in BROKEN.items():
            with self.subTest(kind):
                line = self.ledger_of(kind, "broken")[equation]
                self.assertEqual(line["standing"], "broken", line)
                self.assertEqual((line["broken_by"][0], line["step"], line["ranks"]), (pitfall, step, [0, 1]))
            with self.subTest(kind, form="right"):
                ledger = self.ledger_of(kind, "right")
                self.assertEqual([line for line in ledger.values() if line["standing"] == "broken"], [])
                self.assertEqual(ledger["equal-after"]["standing"], "held")

    def test_replicas_that_are_averaged_in_other_steps_are_made_equal_again(self):
        line = self.ledger_of("averaged", "right")["equal-after"]
        self.assertRegex(line["looked_at"], r"apart after \d+ of them, and made equal again")

    def test_buffers_that_each_rank_moves_by_its_own_batch_are_told_and_left_open(self):
        line = self.ledger_of("moved_alone", "broken")["buffers"]
        self.assertEqual(line["standing"], "cannot be told", line)
        self.assertRegex(line["reason"], r'move buffer 0 \("mean"\) each by its own batch, and in step \d+ a broadcast')
        self.assertEqual(self.ledger_of("moved_alone", "right")["buffers"]["standing"], "held")
        self.assertNotIn("by its own batch", self.ledger_of("normed", "right")["buffers"]["reason"])


if __name__ == "__main__":
    unittest.main()
