"""The hooks in one process, by what they tell the recorder; a stand-in takes its place.

usage: python3 hooks_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import gc
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import weakref

import package

sys.path.insert(0, str(package.FOLDER))

import torch
from torch.optim.lr_scheduler import LambdaLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

from lockstep_torch import hooks, places, recording
from lockstep_torch.extension import extension


class Rank:
    """Stands in for the recorder: the names of what it is told."""

    def __init__(self, *_who):
        self.told = []

    def __getattr__(self, name):
        return lambda *_arguments: self.told.append(name)


class Hooks(unittest.TestCase):
    def setUp(self):
        hooks.watch("unused")
        self.here = recording.recording = recording.Recording("unused")
        extension = unittest.mock.patch.object(recording, "extension", return_value=unittest.mock.Mock(Rank=Rank))
        extension.start()
        self.addCleanup(extension.stop)

    def test_a_scheduler_that_raises_inside_of_another_hides_no_later_one(self):
        rank = self.here.begin(0, 2)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        inner = [LambdaLR(optimizer, lambda _epoch: 1.0) for _ in range(2)]
        outer = SequentialLR(optimizer, inner, milestones=[4])
        outer.step()
        self.assertNotIn("schedule", rank.told)
        inner[0].lr_lambdas[0] = lambda _epoch: 1 / 0
        self.assertRaises(ZeroDivisionError, outer.step)
        inner[1].step()
        inner[1].step()
        self.assertIn("schedule", rank.told)

    def test_an_optimizer_that_raises_hides_no_later_one_and_is_not_kept(self):
        rank = self.here.begin(0, 2)
        parameter = torch.nn.Parameter(torch.zeros(1))
        failing = torch.optim.SGD([parameter], lr=0.1)
        self.assertRaises(ZeroDivisionError, failing.step, lambda: 1 / 0)
        kept = weakref.ref(failing)
        del failing
        gc.collect()
        self.assertIsNone(kept())
        self.assertNotIn("update_ended", rank.told)
        torch.optim.SGD([parameter], lr=0.1).step()
        self.assertIn("update_ended", rank.told)

    def test_a_pass_before_the_rank_is_known_is_told_when_it_is_and_once(self):
        for _ in DataLoader(TensorDataset(torch.zeros(4)), batch_size=2):
            pass
        rank = self.here.begin(0, 2)
        self.here.begin(0, 2)
        self.assertEqual(rank.told, ["pass_begins", "dealt", "dealt", "pass_dealt"])

    def test_what_has_lines_is_what_detectors_find(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            extension().Rank(folder, 0, 1)
            detectors = extension().diagnose(folder)["detectors"]
        self.assertLessEqual({pitfall for pitfalls in places.KINDS.values() for pitfall in pitfalls}, detectors.keys())

    def test_the_innermost_line_of_the_program_s_own(self):
        # This Python's torch, and those of others.
        for installed in (torch.__file__, "/srv/venv/lib/python3.12/site-packages/torch/distributed.py",
                          "/usr/lib/python3/dist-packages/torch/nn.py", "/opt/python/lib/python3.10/threading.py"):
            stack = ("Current thread 0x1 (most recent call first):\n"
                     f'  File "{installed}", line 1 in all_reduce\n'
                     f'  File "{__file__}", line 2 in train\n  File "other.py", line 3 in <module>\n')
            self.assertEqual(places.of_stack(stack), {"file": __file__, "line": 2, "source": ""})
        self.assertEqual(places.of_stack(""), None)
        self.assertEqual(places.of_the_caller()[0], __file__)

    def test_each_line_that_may_be_meant_is_told_and_a_torn_one_is_not(self):
        lines = [{"kind": "pass", "step": step, "file": "/a/train.py", "line": number, "source": f"line {number}"}
                 for step, number in ((0, 3), (0, 5), (9, 7))]
        found = {"findings": [{"pitfall": "missing-set-epoch", "ranks": [0, 1], "step": 4, "sequence": -1}],
                 "text": "violation: missing-set-epoch\n    ranks 0 and 1, step 4\n"}
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            for rank in (0, 1):
                text = "\n".join(map(json.dumps, lines)) + '\n{"kind": "pass", "st{"kind": "pass"}\n'
                pathlib.Path(folder, f"places_{rank}.jsonl").write_text(text, encoding="utf-8")
            pathlib.Path(folder, "stack_of_mine.txt").touch()
            places.add(pathlib.Path(folder), found)
        told = [(place["line"], place["ranks"]) for place in found["findings"][0]["places"]]
        self.assertEqual(told, [(3, [0, 1]), (5, [0, 1])])
        self.assertEqual(found["text"].splitlines()[-2:], ["    /a/train.py:3: line 3", "    /a/train.py:5: line 5"])


if __name__ == "__main__":
    unittest.main()
