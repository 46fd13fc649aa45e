"""What a watched process must not notice: memory, threads, files, exceptions and warnings are as without watching.

usage: python3 leaves_alone_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import contextlib
import gc
import io
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import threading
import unittest
import warnings
import weakref

import package

sys.path.insert(0, str(package.FOLDER))

import torch
import torch.distributed as dist

import lockstep_torch
from lockstep_torch import recording
from lockstep_torch.module_hook import ModuleHook


def train(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model


class LeavesAlone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        cls.addClassCleanup(folder.cleanup)
        lockstep_torch.watch(pathlib.Path(folder.name, "traces"))
        store = dist.FileStore(os.path.join(folder.name, "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)
        cls.model = train(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))

    def test_models_that_the_program_lets_go_are_freed(self):
        """But for the last that was recorded."""
        made = []
        for _ in range(6):
            teacher, model = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
            with torch.no_grad():
                teacher(torch.ones(1, 4))
            made += [weakref.ref(teacher.weight), weakref.ref(train(model).weight)]
        del teacher, model
        gc.collect()
        self.assertLessEqual(sum(each() is not None for each in made), 1)

    def test_a_model_that_is_saved_whole_is_read_where_functions_are_refused(self):
        model = torch.nn.Linear(2, 1)
        handle = ModuleHook.put_on(model, print, with_kwargs=True)
        file = io.BytesIO()
        torch.save({"model": model}, file)
        self.assertIn(handle.id, model._forward_pre_hooks)
        self.assertIn(handle.id, model._forward_pre_hooks_with_kwargs)
        file.seek(0)
        with torch.serialization.safe_globals([torch.nn.Linear]):
            read = torch.load(file)["model"]
        self.assertEqual((len(read._forward_pre_hooks), len(read._forward_pre_hooks_with_kwargs)), (0, 0))

    def test_modules_that_compute_otherwise_with_a_hook_get_none(self):
        layer = torch.nn.TransformerEncoderLayer(4, 1, 4)
        self.assertIsNone(ModuleHook.put_on(layer, print))
        self.assertEqual(len(layer._forward_pre_hooks), 0)

    def test_trained_tensors_are_pickled_without_a_word(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pickle.dumps(self.model[0].weight)

    def test_an_exception_of_the_program_s_signal_handler_reaches_it(self):
        class Preempted(Exception):
            pass

        def leave(_number, _frame):
            raise Preempted
        before = signal.signal(signal.SIGUSR1, leave)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        hook = recording.listens("a signal")(lambda _here: signal.raise_signal(signal.SIGUSR1))
        self.assertRaises(Preempted, hook)
        other = recording.listens("a fault")(lambda _here: 1 / 0)
        with contextlib.redirect_stderr(io.StringIO()):
            other()

    def test_the_threads_of_a_destroyed_group_end(self):
        def threads():
            return len(os.listdir("/proc/self/task"))
        before = threads()
        for _ in range(4):
            group = dist.new_group([0], backend="gloo")
            dist.all_reduce(torch.ones(1), group=group)
            dist.destroy_process_group(group)
            del group
        self.assertEqual(threads(), before)
        dist.all_reduce(torch.ones(1))


class SeveralThreads(unittest.TestCase):
    def test_that_train_without_an_engine_end_the_recording(self):
        """Their gradients come and go while others are read."""
        script = ("import threading, torch\n"
                  "torch.set_num_threads(1)\n"
                  "both = threading.Barrier(2)\n"
                  "def train():\n"
                  "    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(100)))\n"
                  "    optimizer = torch.optim.SGD(model.parameters(), 1e-3)\n"
                  "    both.wait()\n"
                  "    for _ in range(20):\n"
                  "        optimizer.zero_grad()\n"
                  "        model(torch.ones(2, 4)).sum().backward()\n"
                  "        optimizer.step()\n"
                  "    both.wait()\n"
                  "threads = [threading.Thread(target=train) for _ in range(2)]\n"
                  "[each.start() for each in threads]\n"
                  "[each.join() for each in threads]\n"
                  "print('trained')\n")
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            done = package.run([sys.executable, "-c", script], 90, LOCKSTEP_TRACE=folder)
        self.assertEqual((done.returncode, done.stdout), (0, "trained\n"), done.stderr)
        self.assertEqual(done.stderr.count("several threads of this process train"), 1, done.stderr)

    def test_one_after_another_are_one(self):
        here = recording.Recording("unused")
        said = []
        for _ in range(2):
            thread = threading.Thread(target=lambda: said.append(recording.is_the_trainer(here, claims=True)))
            thread.start()
            thread.join()
        self.assertEqual(said, [True, True])


if __name__ == "__main__":
    unittest.main()
