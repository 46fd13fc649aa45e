"""Hooks that raise, a disk that is full, and a CUDA graph that is captured, in one process: the job trains the same, to
the bit, and what is wrong is said once.

usage: python3 raises_test.py PACKAGE      the folder that holds lockstep_torch
"""

import contextlib
import io
import pathlib
import re
import resource
import signal
import sys
import tempfile
import unittest
import unittest.mock

import package

sys.path.insert(0, str(package.FOLDER))

import torch
import torch.distributed as dist
from hooks_test import Rank
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep_torch
from lockstep_torch import hooks, places, processes, recording
from lockstep_torch.extension import extension

STEPS = 2 * 5


class Raising(Rank):
    """Stands in for the recorder. Each call of `bad` raises."""

    bad = ""

    def __getattribute__(self, name):
        if name == Raising.bad:
            self.calls.setdefault(name, []).append(())
            raise ValueError(f"{name} is broken")
        return super().__getattribute__(name)


def train(batch=4):
    """The losses, as bits. It does all that is listened to."""
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(5 * batch, 6), torch.randint(0, 3, (5 * batch,)))
    layers = torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    sampler = DistributedSampler(data)
    losses = []
    with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
        path = pathlib.Path(folder, "last.pt")
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for number, (inputs, targets) in enumerate(DataLoader(data, batch, sampler=sampler)):
                optimizer.zero_grad()
                with model.no_sync() if number == 1 else contextlib.nullcontext(), \
                        torch.autocast("cpu", torch.bfloat16):
                    each = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none")
                    lockstep_torch.loss(each)
                    each.mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
                optimizer.step()
                losses.append(each.mean().item().hex())
            schedule.step()
            dist.all_reduce(torch.ones(1))
            lockstep_torch.metric("accuracy", "train", 1, 2)
            torch.save(model.module.state_dict(), path)
            model.module.load_state_dict(torch.load(path))
    return losses


class Raises(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # before anybody listens
        cls.addClassCleanup(dist.destroy_process_group)
        cls.plain = train()
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            hooks.watch(folder)
        recording.recording = None

    def recorded(self, steps=4):
        """The losses, what was said, and the recorder."""
        recording.recording = recording.Recording("unused")
        with unittest.mock.patch.object(recording, "extension", return_value=unittest.mock.Mock(Rank=Raising)), \
             contextlib.redirect_stderr(io.StringIO()) as said:
            rank = recording.recording.begin(0, 2)
            losses = train(steps)
        recording.recording = None
        return losses, said.getvalue().splitlines(), rank

    def test_each_call_of_the_recorder(self):
        Raising.bad = ""
        losses, said, rank = self.recorded()
        self.assertEqual((losses, said), (self.plain, []))
        called = [*rank.calls, "step", "probes", "settings"]
        self.assertGreater(len(called), 25, called)
        for bad in called:
            with self.subTest(bad):
                Raising.bad = bad
                losses, said, rank = self.recorded()
                self.assertEqual(losses, self.plain)
                names = [re.fullmatch(rf"lockstep: (.*): not recorded any further: {bad} is broken", line)[1]
                         for line in said]
                self.assertGreater(len(names), 0)
                self.assertEqual(len(set(names)), len(names), "said once")
                self.assertEqual(len(rank.calls[bad]), len(names), "that kind's recording stops")
        Raising.bad = ""

    def test_the_lines_of_the_program(self):
        Raising.bad = ""
        with unittest.mock.patch.object(places.Places, "note", side_effect=OSError("no line")) as noted:
            losses, said, _rank = self.recorded()
        self.assertEqual(losses, self.plain)
        self.assertEqual((noted.call_count, len(set(said))), (len(said), len(said)))
        self.assertGreater(len(said), 3)

    def test_what_a_graph_captures_is_left_out(self):
        """Without a GPU: torch is made to say that it captures."""
        Raising.bad = ""
        recording.recording = here = recording.Recording("unused")
        with unittest.mock.patch.object(recording, "extension", return_value=unittest.mock.Mock(Rank=Raising)):
            rank = here.begin(0, 2)
            rank.told.clear()
            with unittest.mock.patch("torch.cuda.is_initialized", return_value=True), \
                 unittest.mock.patch("torch.cuda.is_current_stream_capturing", return_value=True):
                self.assertEqual(train(), self.plain)
            self.assertEqual(rank.told, [])
            self.assertEqual(train(), self.plain)
        self.assertEqual(rank.told.count("update_ended"), STEPS)
        self.assertEqual(here.failed, set())
        recording.recording = None

    def test_a_trace_without_room_ends_and_the_job_does_not(self):
        Raising.bad = ""
        big = 20_000  # samples a batch, 8 bytes each
        plain = train(big)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.assertEqual(signal.getsignal(signal.SIGXFSZ), signal.SIG_IGN)  # as Python has it
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            recording.recording = here = recording.Recording(folder)
            try:
                here.begin(0, 2)
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
                losses = train(big)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            here.rank.end(False)
            recording.recording = None
            file = pathlib.Path(folder, "rank_0.trace")
            self.assertEqual(losses, plain)
            self.assertEqual(processes.head(file).truncated, 1)
            self.assertLess(processes.head(file).length, 1 << 20)
            self.assertEqual(here.failed, set())
            self.assertNotIn("violation", [one["severity"] for one in lockstep_torch.diagnose(folder)["findings"]])

    def test_a_sample_takes_eight_bytes(self):
        """As docs/python-recorded.md says."""
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            rank, file = extension().Rank(folder, 0, 2), pathlib.Path(folder, "rank_0.trace")
            rank.pass_begins(0, 100_000, 0, 0)
            before = processes.head(file).length
            for batch in range(100):
                rank.dealt(range(1_000 * batch, 1_000 * (batch + 1)), [], [], (100_000, 0, 0))
                rank.take_dealt(True)
            grown = (processes.head(file).length - before) / 100_000
        self.assertGreater(grown, 8)
        self.assertLess(grown, 8.2)


if __name__ == "__main__":
    unittest.main()
