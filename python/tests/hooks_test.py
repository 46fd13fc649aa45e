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

    def folder(self):
        return pathlib.Path("unused")

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

    def test_the_innermost_line_of_the_program_s_own(self):
        # This Python's torch, and those of others.
        for installed in (torch.__file__, "/srv/venv/lib/python3.12/site-packages/torch/distributed.py",
                          "/usr/lib/python3/dist-packages/torch/nn.py", "/opt/python/lib/python3.10/threading.py"):
            stack = ("Current thread 0x1 (most recent call first):\n"
                     f'  File "{installed}", line 1 in all_reduce\n'
                     f'  File "{__file__}", line 2 in train\n  File "other.py", line 3 in <module>\n')
            self.assertEqual(places.of_stack(stack), (__file__, 2))
        self.assertEqual(places.of_stack(""), None)
        self.assertEqual(places.of_the_caller()[0], __file__)

    def test_lines_are_written_once_and_of_each_attempt_beside_its_trace(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            for attempt in ("0", "1"):
                launcher = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": attempt}
                with unittest.mock.patch.dict("os.environ", launcher):
                    rank = extension().Rank(folder, 0, 1)
                written = places.Places(rank.folder(), 0)
                for step in (4, 5):
                    written.note("update", step)
                self.assertEqual(written.folder, pathlib.Path(folder, f"attempt_{attempt}"))
                [line] = self.lines_in(written.folder / "places_0.jsonl")
                self.assertEqual((line["kind"], line["step"], line["file"]), ("update", 4, __file__))
                self.assertEqual(line["source"], 'written.note("update", step)')

    def test_what_was_asked_becomes_a_line_and_any_name_can_be_written(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as name:
            folder = pathlib.Path(name)
            program = folder / "a\udcff\n\x1b[2J\u00e9.py"
            stack = folder / "stack_3_77.txt"
            program.write_text("\n\tif\tTrue:  # " + "x" * 1000, encoding="utf-8")
            stack.write_text(f'Stack:\n  File "{folder}/plain.py", line 2 in train\n', encoding="utf-8")
            program.with_name("plain.py").write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
            places.answered([stack])
            places.write(folder, 3, "pass", 0, str(program), 2)
            asked, other = self.lines_in(folder / "places_3.jsonl")
            self.assertEqual((folder / "places_3.jsonl").stat().st_mode & 0o777, 0o600)
        self.assertEqual((asked["kind"], asked["step"], asked["line"]), ("stall", -1, 2))
        self.assertEqual(asked["source"], ("if True:  # " + "x" * 1000)[:200])
        self.assertEqual(other["file"], f"{name}/a?\n\x1b[2J\u00e9.py")
        self.assertEqual(other["source"], asked["source"])

    def lines_in(self, file):
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    unittest.main()
