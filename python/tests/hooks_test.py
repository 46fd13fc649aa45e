"""The hooks in one process, by what they tell the recorder; a stand-in takes its place.

usage: python3 hooks_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import collections
import copy
import gc
import io
import itertools
import json
import linecache
import os
import pathlib
import pickle
import random
import signal
import sys
import tempfile
import unittest
import unittest.mock
import weakref

import numpy
import package

sys.path.insert(0, str(package.FOLDER))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)

from lockstep_torch import data as data_hooks
from lockstep_torch import evaluating, hooks, outside, places, recording, samples, schedules, settings, states, training
from lockstep_torch.extension import extension


class Rank:
    """Stands in for the recorder: what it is told, in order and by name, but for settings. It has made `steps`."""

    def __init__(self, *_who):
        self.told, self.heard, self.calls, self.set_up, self.steps = [], [], {}, {}, 0

    def step(self):
        return self.steps

    def probes(self):
        return True

    looks_at_generators = probes

    def settings(self, of, told):
        if told:
            self.set_up.setdefault(of, {}).update(told)

    def folder(self):
        return pathlib.Path("unused")

    def __getattr__(self, name):
        def call(*arguments):
            self.told.append(name)
            self.heard.append((name, *arguments))
            self.calls.setdefault(name, []).append(arguments)
        return call


class Stream(IterableDataset):
    """Without a length, and with two samples that are equal."""

    def __iter__(self):
        for number in (0, 1, 2, 3, 4, 2):
            yield {"input": torch.full((3, 40, 5), float(number)), "text": f"line {number}", "label": number}


class OwnFile(Dataset):
    def __init__(self, seed):
        self.lines = [f"{seed} {number}" for number in range(100)]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        raise AssertionError("a sample was drawn that nobody asked for")


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
        self.assertEqual(rank.calls["schedule"], [(1, 0)])  # the inner one's steps are not the run's
        rank.told.clear()
        inner[0].lr_lambdas[0] = lambda _epoch: 1 / 0
        self.assertRaises(ZeroDivisionError, outer.step)
        inner[1].step()
        inner[1].step()
        self.assertIn("schedule", rank.told)

    def test_schedules_one_after_another_are_as_long_as_they_are_together(self):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        warm, down, steps = LinearLR(optimizer, total_iters=4), CosineAnnealingLR(optimizer, 16), StepLR(optimizer, 3)
        self.assertEqual(schedules.length_of(SequentialLR(optimizer, [warm, down], milestones=[4])), 20)
        self.assertEqual(schedules.length_of(SequentialLR(optimizer, [warm, steps], milestones=[4])), 0)
        self.assertEqual([schedules.length_of(each) for each in (warm, down, steps)], [4, 16, 0])

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

    def test_pythons_and_numpys_generators_are_told_with_an_update(self):
        rank = self.here.begin(0, 2)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        for draw in (lambda: None, random.random, numpy.random.rand, lambda: None):
            draw()
            optimizer.step()
        told = [states for (states,) in rank.calls["generators"]]
        self.assertEqual([set(states) for states in told], [{"random", "numpy.random"}] * 4)
        changed = [[name for name in before if before[name] != after[name]]
                   for before, after in itertools.pairwise(told)]
        self.assertEqual(changed, [["random"], ["numpy.random"], []])

    def test_a_loader_that_trains_is_told_with_its_sampler(self):
        rank = self.here.begin(0, 2)
        data = TensorDataset(torch.zeros(12))
        with torch.no_grad():
            list(DataLoader(data, batch_size=6))
        self.assertNotIn("loader", rank.set_up)
        sampler = DistributedSampler(data, 2, 1, seed=5, shuffle=False)
        list(DataLoader(data, batch_size=4, drop_last=True, sampler=sampler))
        of = " of the loader of 12 samples"
        self.assertEqual(rank.set_up["loader"], {
            "batch_size" + of: "4", "drop_last" + of: "True", "workers" + of: "False",
            "batch_sampler" + of: "torch.utils.data.sampler.BatchSampler",
            "sampler" + of: "torch.utils.data.distributed.DistributedSampler",
            "sampler's num_replicas" + of: "2", "sampler's shuffle" + of: "False", "sampler's drop_last" + of: "False"})
        list(DataLoader(data, batch_size=2))  # another epoch's
        self.assertEqual(rank.set_up["loader"]["batch_size" + of], "4")

    def test_a_module_beside_the_model_is_told_once_it_is_called_and_the_model_s_inputs_where_nobody_wrapped_it(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5))
        target, unused = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            model.train(step < 2)
            inputs = torch.ones(4, 2)
            (model(inputs) - target(inputs).detach()).sum().backward()
            optimizer.step()
        told = [(holder, name) for holder, name, _ in rank.calls["outside"]]
        self.assertEqual(told, [("Linear", "weight"), ("Linear", "bias")])
        self.assertIs(rank.calls["outside"][0][2], target.weight)
        self.assertEqual(len(rank.calls["inputs"]), 1)  # in training mode, from the first update on
        self.assertEqual(rank.calls["forward"], [(True,), (False,)])
        self.assertIn("p=0.5", rank.set_up["model"]["1"])
        del unused
        self.assertFalse(target._forward_pre_hooks)

    def test_a_module_beside_the_model_that_draws_or_keeps_statistics_is_told(self):
        for layer, evaluates, expected in ((torch.nn.Dropout(0.5), False, ["Sequential"]),
                                           (torch.nn.BatchNorm1d(2), False, ["Sequential"]),
                                           (torch.nn.Dropout(0.5), True, []), (torch.nn.Dropout(0.0), False, []),
                                           (torch.nn.LayerNorm(2), False, [])):
            with self.subTest(layer=layer, evaluates=evaluates):
                self.setUp()
                rank = self.here.begin(0, 2)
                model, teacher = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), layer)
                teacher.train(not evaluates)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for _ in range(3):
                    with torch.no_grad():
                        wanted = teacher(torch.ones(4, 2))
                    (model(torch.ones(4, 2)) - wanted).sum().backward()
                    optimizer.step()
                self.assertEqual([holder for (holder,) in rank.calls.get("outside_in_training", [])], expected)

    def test_what_an_evaluation_is_given_is_told_in_any_order_and_not_what_trains(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        given = torch.arange(8.0).reshape(4, 2)

        def told(inputs):
            rank.calls.pop("evaluation_input", None)
            with torch.no_grad():
                model(inputs)
            return rank.calls.get("evaluation_input")

        for _ in range(2):
            model(given).sum().backward()
            optimizer.step()
        self.assertNotIn("evaluation_input", rank.calls)
        first = told(given)
        [(count, content)] = first
        self.assertEqual(count, 4)
        [(rows,)] = rank.calls.pop("evaluation_rows")
        self.assertEqual((len(rows), rows), (4, extension().some_rows([given])))
        self.assertEqual(told(given.flip(0)), first)
        self.assertNotEqual(told(given + 1)[0][1], content)
        for _ in range(20):
            last = told(given)
        self.assertIsNone(last)  # of one evaluation no more is needed
        model(given).sum().backward()
        self.assertEqual(told(given), first)

    def test_a_batch_that_fails_and_is_left_out_takes_its_positions_with_it(self):
        class Broken(Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                if index == 2:
                    raise ValueError("unreadable")
                return torch.tensor(float(index))
        rank = self.here.begin(0, 2)
        batches = iter(DataLoader(Broken(), batch_size=2))
        next(batches)
        self.assertRaises(ValueError, next, batches)
        self.assertEqual(next(batches).tolist(), [4, 5])
        self.assertEqual([ids for ids, *_ in rank.calls["dealt"]], [[0, 1], [4, 5]])

    def test_a_model_that_is_looked_at_in_each_step_is_told_no_longer(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Linear(2, 1)
        evaluating.hook(self.here, model)
        with unittest.mock.patch.object(samples, "given", return_value=(1, 2)) as given, torch.no_grad():
            for _ in range(100):
                model(torch.ones(1, 2))
                self.here.looks = 0  # a backward comes
        self.assertEqual(given.call_count, evaluating.MOST_EVALUATIONS)
        self.assertEqual(set(rank.calls["evaluation_input"]), {(1, 2)})

    def test_the_buffers_of_a_wrapped_model_are_looked_at_where_it_is_evaluated_without_its_wrapper(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.BatchNorm1d(2)
        self.here.models[model] = known = object()
        evaluating.hook(self.here, model)
        with torch.no_grad():
            model(torch.ones(2, 2))
            self.here.in_engine = True
            model.eval()(torch.ones(2, 2))
            self.assertNotIn("evaluates", rank.calls)
            self.here.in_engine = False
            model(torch.ones(2, 2))
        self.assertEqual(rank.calls["evaluates"], [(known,)])

    def test_a_model_that_is_wrapped_again_with_new_layers_is_told_with_them(self):
        rank = self.here.begin(0, 2)
        self.here.grouped = True
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        for _ in range(2):
            training.wrapping(None, model)
        model.append(torch.nn.Linear(2, 1))
        training.wrapping(None, model)
        first, again, grown = (model for (model,) in rank.calls["wrapping"])
        self.assertIs(again, first)
        self.assertIsNot(grown, first)

    def test_copies_and_modules_that_a_pickle_held_are_known_with_those_that_the_program_made(self):
        made = torch.nn.Sequential(torch.nn.Linear(2, 1))
        others = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
        for each in (made, *others):
            self.assertEqual([found for found in outside.modules_outside() if found is each], [each])

    def test_modules_are_looked_for_once_a_step_though_another_model_s_optimizer_steps_in_between(self):
        self.here.begin(0, 2)
        with unittest.mock.patch.object(outside, "modules_outside", return_value=[]) as looks:
            for _ in range(5):
                outside.look()
        self.assertEqual(looks.call_count, 1)

    def test_a_model_that_is_wrapped_once_more_is_the_one_that_trains(self):
        rank = self.here.begin(0, 2)
        first, other = torch.nn.Linear(2, 1), torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
        for module in (first, other):
            training.model_of(self.here, module)
        rank.steps = 5
        training.succeed(self.here, torch.nn.Linear(2, 1))
        self.assertEqual(list(self.here.models), [other])
        self.assertNotIn(optimizer, self.here.made)

    def outside(self, rank):
        """What was told outside the model, by holder."""
        told = {}
        for holder, name, _ in rank.calls.get("outside", []):
            told.setdefault(holder, []).append(name)
        return told

    def train(self, rank, model):
        rank.steps = 0
        self.train_on(rank, model)

    def train_on(self, rank, model):
        """Three updates."""
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
        for step in range(rank.steps, rank.steps + 3):
            rank.steps = step
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()

    def test_a_module_that_three_updates_do_not_call_is_told_as_kept_unless_there_are_two_of_a_class(self):
        rank = self.here.begin(0, 2)
        average = torch.nn.Sequential(torch.nn.Linear(2, 1))
        twins = [torch.nn.Bilinear(2, 2, 1) for _ in range(2)]
        self.train(rank, torch.nn.Linear(2, 1))
        self.assertEqual(self.outside(rank), {"kept Sequential": ["0.weight", "0.bias"]})
        self.assertIs(rank.calls["outside"][0][2], average[0].weight)
        self.assertEqual(len(twins), 2)

    def test_averages_in_a_dict_are_told_as_they_are_at_each_update_though_the_program_makes_new_tensors(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Sequential(torch.nn.Linear(2, 1))
        averages = {"step": 0, **{name: value.detach().clone() for name, value in model.named_parameters()}}
        state = model.state_dict()  # holds the model's own
        self.train(rank, model)
        self.assertEqual(self.outside(rank), {"kept averages": ["0.weight", "0.bias"]})
        told = rank.calls["outside"][1][2]
        averages["0.bias"] = averages["0.bias"] + 1
        model(torch.ones(4, 2)).sum().backward()
        rank.steps += 1
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        self.assertTrue(told.equal(averages["0.bias"]))
        self.assertEqual((len(rank.calls["outside"]), self.here.failed, len(state)), (2, set(), 2))

    def test_several_copies_of_a_model_are_not_told_apart_and_so_not_told(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Linear(2, 1)
        copies = [copy.deepcopy(model.state_dict()) for _ in range(2)]
        self.train(rank, model)
        self.assertEqual((self.outside(rank), len(copies)), ({}, 2))

    def test_what_is_frozen_in_a_model_that_nobody_wrapped_is_told_and_its_buffers_and_running_statistics(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        model[0].requires_grad_(False)
        model[2].register_buffer("scale", torch.ones(1))
        self.train(rank, model)
        self.assertEqual(self.outside(rank), {"frozen parameters": 2 * ["0.weight", "0.bias"],
                                              "buffers of the model": 2 * ["2.scale"],
                                              "statistics of the model": 2 * ["1.running_mean", "1.running_var",
                                                                              "1.num_batches_tracked"]})

    def test_of_a_wrapped_model_only_the_buffers_that_the_engine_ignores_are_told(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Linear(2, 1)
        model.register_buffer("scale", torch.ones(1))
        model.register_buffer("own", torch.ones(1))
        model._ddp_params_and_buffers_to_ignore = ["own"]
        self.here.models[model] = None
        self.here.wrapped = True
        self.train(rank, model)
        self.assertEqual(self.outside(rank), {"buffers of the model": 2 * ["own"]})

    def test_a_teacher_that_was_trained_before_is_told_with_its_buffers_once_the_model_is_wrapped(self):
        rank = self.here.begin(0, 2)
        teacher = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
        self.train(rank, teacher)
        self.assertEqual(list(self.outside(rank)), ["statistics of the model"])
        rank.calls.clear()
        student = torch.nn.Linear(2, 1)
        rank.steps = 3
        outside.look_again(self.here)
        self.here.wrapped = True
        self.here.models[student] = None
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for rank.steps in range(3, 6):
            (student(torch.ones(4, 2)) - teacher(torch.ones(4, 2)).detach()).sum().backward()
            optimizer.step()
        self.assertEqual(self.outside(rank), {
            "Sequential": ["0.weight", "0.bias", "1.weight", "1.bias"],
            "buffers of Sequential": ["1.running_mean", "1.running_var", "1.num_batches_tracked"]})

    def test_a_model_that_nobody_wraps_is_looked_at_again_where_another_one_trains_but_not_for_each_optimizer(self):
        rank = self.here.begin(0, 2)
        self.train(rank, torch.nn.Linear(2, 1))
        kept = torch.nn.Sequential(torch.nn.Linear(2, 1))
        rank.steps = 20  # looks may follow
        self.train_on(rank, torch.nn.Linear(2, 2))
        self.assertEqual(self.outside(rank), {})
        rank.steps = 60
        self.train_on(rank, torch.nn.Linear(2, 3))
        self.assertEqual(self.outside(rank), {"kept Sequential": ["0.weight", "0.bias"]})
        self.assertEqual((self.here.wrapped_at, self.here.looks_from), (0, 60))  # resumes go by the former
        with unittest.mock.patch.object(outside, "modules_outside", return_value=[]) as looks:
            for rank.steps in range(100, 2000, 10):
                model = torch.nn.Linear(2, 1)
                torch.optim.SGD(model.parameters(), lr=0.1)
                outside.look()
            self.assertLess(looks.call_count, 10)
        del kept

    def test_two_schedules_of_a_kind_on_one_optimizer_are_told_where_another_has_none(self):
        for idle in (False, True):
            with self.subTest(idle=idle):
                self.here = recording.recording = recording.Recording("unused")
                rank = self.here.begin(0, 2)
                first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
                of_first, of_second = torch.optim.Adam([first], lr=0.1), torch.optim.Adam([second], lr=0.1)
                schedules = [StepLR(of_first, 3), StepLR(of_first if idle else of_second, 3)]
                for _ in range(4):
                    for optimizer, parameter in ((of_first, first), (of_second, second)):
                        parameter.grad = torch.ones(1)
                        optimizer.step()
                    for schedule in schedules:
                        schedule.step()
                self.assertEqual(rank.calls.get("schedule_twins"), [("StepLR", 2)] if idle else None)

    def test_a_schedule_is_told_as_it_is_made(self):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        StepLR(optimizer, step_size=7)  # before anybody knows the rank
        rank = self.here.begin(0, 2)
        StepLR(optimizer, step_size=8)
        MultiStepLR(optimizer, milestones=[3, 2, 3])
        ReduceLROnPlateau(optimizer, patience=4)
        told = rank.set_up["optimizer"]
        self.assertEqual([told[key] for key in ("StepLR: step_size", "StepLR 2: step_size", "MultiStepLR: milestones",
                                                "StepLR: gamma", "ReduceLROnPlateau: patience")],
                         ["7", "8", "[2, 3, 3]", "0.1", "4"])
        self.assertFalse([key for key in told if "base_lrs" in key or "last_epoch" in key])

    def test_variables_that_are_no_settings_are_never_told(self):
        secret = {"HF_TOKEN": "hf_secret", "MASTER_ADDR": "10.1.2.3", "NCCL_SOCKET_IFNAME": "eth7",
                  "CUDA_VISIBLE_DEVICES": "GPU-77", "NCCL_ALGO": "/srv/secret", "NCCL_PROTO": "https://secret",
                  "NCCL_DEBUG_FILE": "/srv/secret", "TORCH_EXTENSIONS_DIR": "/srv/secret"}
        with unittest.mock.patch.dict("os.environ", {**secret, "OMP_NUM_THREADS": "3"}):
            told = self.here.begin(0, 2).set_up["program"]
        self.assertEqual((told["OMP_NUM_THREADS"], told["NCCL_P2P_DISABLE"]), ("3", "unset"))
        self.assertEqual(told["version of torch"], torch.__version__)
        for word in (*secret.values(), "secret", "/"):
            self.assertNotIn(word, json.dumps(told))

    def test_the_script_and_its_revision_are_told_by_their_hashes(self):
        commit, other = "0123456789abcdef" * 2 + "01234567", "f" * 40
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as name:
            script = pathlib.Path(name, "part", "train.py")
            script.parent.mkdir()
            script.write_text("print(1)\n")
            git = pathlib.Path(name, ".git")
            (git / "refs/heads").mkdir(parents=True)
            (git / "HEAD").write_text("ref: refs/heads/main\n")

            def told():
                with unittest.mock.patch.dict("sys.modules", __main__=unittest.mock.Mock(__file__=str(script))):
                    return settings.of_process()
            self.assertNotIn("git revision", told())
            (git / "packed-refs").write_text(f"# pack-refs\n{other} refs/heads/domain\n{commit} refs/heads/main\n")
            self.assertEqual(told()["git revision"], commit[:12])
            (git / "refs/heads/main").write_text(other)
            self.assertEqual(told()["git revision"], other[:12])
            (git / "HEAD").write_text(commit)
            self.assertEqual(told()["git revision"], commit[:12])
            (script.parent / ".git").write_text("gitdir: ../.git\n")  # of a worktree
            self.assertEqual(told()["git revision"], commit[:12])
            before = told()["hash of the script"]
            script.write_text("print(2)\n")
            self.assertNotEqual(told()["hash of the script"], before)
            (git / "HEAD").write_bytes(b"\xff")
            self.assertNotIn("git revision", told())

    def test_clipping_by_value_is_told_by_the_largest_number_and_changes_as_before(self):
        rank = self.here.begin(0, 2)
        plain, told = ([torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))] for _ in range(2))
        for first, second in (plain, told):
            first.grad, second.grad = torch.tensor([1.0, -7.0, 2.0]), torch.tensor([3.0, 0.5])
        torch.nn.utils.clip_grad_value_.__wrapped__(plain, 2)
        torch.nn.utils.clip_grad_value_((each for each in told), clip_value=2)  # a generator, which ends
        for one, other in zip(plain, told, strict=True):
            self.assertTrue(one.grad.equal(other.grad))
        [(allowed, largest)] = rank.calls["clip"]
        self.assertEqual((allowed, largest.item()), (2.0, 7.0))
        torch.nn.utils.clip_grad_value_(told[0], 0.5, foreach=False)
        self.assertEqual([(allowed, largest.item()) for allowed, largest in rank.calls["clip"][1:]], [(0.5, 2.0)])
        with unittest.mock.patch.object(Rank, "probes", return_value=False):
            torch.nn.utils.clip_grad_value_(told, 0.1)
        self.assertRaises(RuntimeError, torch.nn.utils.clip_grad_value_, [torch.nn.Parameter(torch.zeros(1))], 1)
        self.assertEqual((len(rank.calls["clip"]), self.here.failed), (2, set()))

    def test_the_autocast_that_a_rank_trains_with_is_told_at_its_first_update(self):
        def told(*dtypes):
            self.here = recording.recording = recording.Recording("unused")
            rank, parameter = self.here.begin(0, 2), torch.nn.Parameter(torch.ones(2, 2))
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
                parameter @ parameter  # an evaluation before
            with torch.autocast("cpu", enabled=False):
                pass
            for dtype in (*dtypes, None):
                with torch.autocast("cpu", dtype=dtype or torch.float16, enabled=dtype is not None):
                    (parameter @ parameter).sum().backward()
                self.assertNotIn("engine", rank.set_up)
            optimizer.step()
            with torch.autocast("cpu", dtype=torch.float16):
                optimizer.step()
            self.assertEqual(self.here.failed, set())
            return rank.set_up["engine"]
        self.assertEqual(told(), {"autocast": "off"})
        self.assertEqual(told(torch.bfloat16, torch.bfloat16), {"autocast": "cpu torch.bfloat16"})

    def model_and_file(self, folder):
        model = torch.nn.Linear(2, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        schedule = StepLR(optimizer, 7)
        return model, optimizer, schedule, pathlib.Path(folder, "last.pt")

    def test_what_is_held_is_told_where_a_model_is_saved(self):
        rank = self.here.begin(0, 2)
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            model, optimizer, schedule, path = self.model_and_file(folder)
            torch.save({"images": torch.zeros(5)}, path)
            torch.save({"optimizer": optimizer.state_dict()}, path)
            self.assertNotIn("training_state", rank.told)
            torch.save({"network": {f"module.{key}": value for key, value in model.state_dict().items()}}, path)
            schedule.step()
            schedule.step()
            torch.save(model.state_dict(), io.BytesIO())
        first, second = rank.calls["training_state"]
        self.assertEqual([first[0], list(first[1]), list(second[1])],
                         ["saved", ["model", "optimizer"], ["model", "optimizer", "scheduler"]])
        self.assertIs(first[1]["model"][0], model.weight)
        self.assertEqual([list(state) for state in first[1]["optimizer"][0]], [["momentum_buffer"]] * 2)

    def test_a_file_with_a_models_state_is_told_with_the_names_in_it(self):
        rank = self.here.begin(0, 2)
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            model, optimizer, _schedule, path = self.model_and_file(folder)
            torch.save({"optimizer": optimizer.state_dict(), "train": {"images": torch.zeros(5)}}, path)
            self.assertNotIn("saving", rank.calls)
            torch.save({"net": model.state_dict(), "optimizer": optimizer.state_dict(), 7: "seven"}, path)
            torch.load(path)
            torch.save(model.state_dict(), path)
        self.assertEqual(rank.calls["saved"], [(str(path), ["net", "optimizer", "7"]), (str(path), ["weight", "bias"])])
        self.assertEqual(rank.calls["loaded"], [(str(path), ["cpu"], ["cpu"], ["weight", "bias"])])

    def test_a_model_that_is_given_its_own_tensors_after_an_update_is_told(self):
        rank = self.here.begin(0, 2)
        model = torch.nn.Linear(2, 3)
        own, copied = model.state_dict(), {key: value.clone() for key, value in model.state_dict().items()}
        model.load_state_dict(own)  # before the first update
        rank.steps = 3
        model.load_state_dict(copied)
        model.load_state_dict(own | {"bias": torch.zeros(3)})
        model.load_state_dict({key: torch.zeros_like(value) for key, value in own.items()}, assign=True)
        norm = torch.nn.BatchNorm1d(3)
        norm.load_state_dict(norm.state_dict() | {"running_mean": torch.ones(3)})  # the mean of all ranks
        self.assertNotIn("own_tensors_loaded", rank.calls)
        own = model.state_dict()
        model.load_state_dict(own)
        self.assertEqual(rank.calls["own_tensors_loaded"], [("Linear",)])

    def test_a_process_goes_on_where_its_model_takes_a_file_before_the_first_update(self):
        rank = self.here.begin(0, 2)
        loader = DataLoader(TensorDataset(torch.zeros(4)))

        def train(skipped=0):
            for number, _ in enumerate(loader):
                if number >= skipped:
                    torch.ones((), requires_grad=True).backward()

        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            model, optimizer, schedule, path = self.model_and_file(folder)
            torch.save(model.state_dict(), path)
            rank.calls.clear()
            model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
            train()  # averaged weights, say: no file was read
            state = torch.load(path)
            train()
            model.load_state_dict(state)
            with torch.no_grad():
                list(loader)
            self.assertNotIn("training_state", rank.calls)
            train()
            train()
            [(moment, parts)] = rank.calls.pop("training_state")
            self.assertEqual((moment, parts["scheduler"]), ("resumed", [False, False]))
            self.assertLess(rank.told.index("training_state"), len(rank.told))
            rank.steps = 1  # it trains, and takes its best weights back
            model.load_state_dict(torch.load(path))
            copy.deepcopy(model).load_state_dict(torch.load(path))  # of no optimizer
            train()
            self.assertNotIn("training_state", rank.calls)
            states.job_ends()
            states.job_ends()
            [(moment, parts)] = rank.calls.pop("training_state")
            self.assertEqual((moment, list(parts)), ("loaded", ["model"]))
            self.assertIs(parts["model"][0], model.weight)
            model.load_state_dict(torch.load(path))
            optimizer.step()  # it trains on
            states.job_ends()
            self.assertNotIn("training_state", rank.calls)
            rank.steps = 0
            model.load_state_dict(torch.load(path))
            train(skipped=3)  # which it goes on with is not known
            self.assertNotIn("training_state", rank.calls)
            schedule.step(5)  # it is told where it stands
            torch.save(model.state_dict(), path)
        self.assertEqual(list(rank.calls["training_state"][0][1]), ["model", "optimizer"])

    def test_a_fused_optimizer_s_scaled_step_is_told_and_no_update_where_it_left_it_out(self):
        rank = self.here.begin(0, 2)
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for gradient in (float("inf"), 1.0):
            rank.told.clear()
            scaler.scale((parameter * torch.tensor([gradient, 1.0])).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            updates = [name for name in rank.told if name in ("scaled_step", "update_begins", "update_ended")]
            self.assertEqual(updates, ["scaled_step"] + ["update_begins", "update_ended"] * (gradient == 1.0))
        self.assertEqual(rank.calls["scaled_step"], [(4.0, True, False), (2.0, False, True)])
        parameter.grad = torch.ones(2)
        optimizer.step()  # without the scaler
        self.assertEqual(len(rank.calls["scaled_step"]), 2)

    def test_a_pass_before_the_rank_is_known_is_told_when_it_is_and_once(self):
        for _ in DataLoader(TensorDataset(torch.zeros(4)), batch_size=2):
            pass
        rank = self.here.begin(0, 2)
        self.here.begin(0, 2)
        self.assertEqual(rank.told, ["pass_begins", "dealt", "dealt", "pass_dealt"])

    def pass_over(self, loader):
        """What the recorder is told of it: sizes and what tells the data apart; the ids of each batch."""
        rank = self.here.begin(0, 2)
        rank.heard.clear()
        for _ in loader:
            pass
        begins = [call[2:] for call in rank.heard if call[0] == "pass_begins"]
        return begins[0], [call[1] for call in rank.heard if call[0] == "dealt"]

    def test_workers_that_stay_forget_what_they_fetched_for_a_pass_that_was_broken_off(self):
        loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=1, persistent_workers=True)
        self.here.begin(0, 2)
        for _ in loader:
            break
        self.assertEqual(self.pass_over(loader)[1], [[0, 1], [2, 3], [4, 5], [6, 7]])

    def test_samples_of_a_stream_go_by_their_content(self):
        first, batches = self.pass_over(DataLoader(Stream(), batch_size=4))
        self.assertEqual(first, (0, 0, 0))
        self.assertEqual([len(batch) for batch in batches], [4, 2])
        ids = [*batches[0], *batches[1]]
        self.assertTrue(all(-2**63 <= id_ < 0 for id_ in ids))
        self.assertEqual((len(set(ids)), ids[2]), (5, ids[5]))
        self.assertEqual(self.pass_over(DataLoader(Stream(), batch_size=2, num_workers=1))[1],
                         [ids[:2], ids[2:4], ids[4:]])
        self.assertEqual(self.here.failed, set())

    def test_samples_that_cannot_be_told_are_not_known(self):
        for collate in (lambda samples: [object() for _ in samples], lambda samples: torch.zeros(()), lambda _: None,
                        lambda samples: (torch.zeros(len(samples)), torch.zeros(7)),
                        lambda samples: torch.zeros(len(samples), 2, device="meta"),
                        lambda samples: torch.zeros(len(samples), 2).to_sparse()):
            _, batches = self.pass_over(DataLoader(Stream(), batch_size=4, collate_fn=collate))
            self.assertEqual(batches, [[], []])
        with torch.no_grad():
            self.assertEqual(self.pass_over(DataLoader(Stream(), batch_size=4))[1], [[], []])
        self.assertEqual(self.here.failed, set())

    def test_a_batch_says_which_data_set_it_is_of(self):
        rank = self.here.begin(0, 2)
        for _ in zip(*(DataLoader(TensorDataset(torch.zeros(size)), batch_size=2) for size in (2, 4)), strict=False):
            pass
        begins, sets = ([call[place:] for call in rank.heard if call[0] == name]
                        for name, place in (("pass_begins", 2), ("dealt", 4)))
        self.assertEqual([size for size, *_ in begins], [2, 4])
        self.assertEqual([of for of, in sets], begins)

    def test_what_stands_at_positions_is_told_where_it_is_trained_on(self):
        def contents(loader):
            self.pass_over(loader)
            return [call[2:4] for call in self.here.rank.heard if call[0] == "dealt"]
        data = TensorDataset(torch.tensor([[1.0], [2.0], [1.0], [2.0]]), torch.tensor([0, 0, 0, 1]))
        first, second = contents(DataLoader(data, batch_size=2))
        self.assertEqual((first[0], second[0]), ([0, 1], [2, 3]))
        self.assertEqual(first[1][0], second[1][0])
        self.assertEqual(len({*first[1], *second[1]}), 3)  # another target is another sample
        self.assertEqual(contents(DataLoader(data, batch_size=2, num_workers=1)), [first, second])
        self.assertEqual(contents(DataLoader(data, batch_size=2, collate_fn=lambda _: object())), [([], [])] * 2)
        many = TensorDataset(torch.zeros(20_000))
        self.assertEqual([each[0] for each in contents(DataLoader(many, batch_size=10_000))],
                         [list(range(0, 10_000, 3)), list(range(10_002, 20_000, 3))])
        with torch.no_grad():
            self.assertEqual(contents(DataLoader(data, batch_size=4)), [([], [])])
        self.here.contents = 65_536  # the most of a rank
        self.assertEqual(contents(DataLoader(data, batch_size=4)), [([], [])])
        self.assertEqual(self.here.failed, set())

    def test_a_wide_sample_is_looked_at_in_part_and_all_over(self):
        wide = torch.zeros(4, 512, 64)
        wide[1, 400:] = 1
        wide[2, :, 63] = 1
        ids = samples.content(wide)
        self.assertEqual(len(set(ids)), 3)
        self.assertEqual(ids, samples.content(wide.transpose(1, 2).contiguous().transpose(1, 2)))
        self.assertEqual(samples.content((torch.zeros(2, 0), torch.ones(2, dtype=torch.bool)))[0] < 0, True)

    def test_positions_in_other_data_are_told_apart(self):
        self.assertEqual(samples.identity(OwnFile(0)), samples.identity(OwnFile(0)))
        data = TensorDataset(torch.randn(60, 5), torch.arange(60))
        same = TensorDataset(*(tensor.clone() for tensor in data.tensors))
        other = TensorDataset(torch.randn(60, 5), torch.arange(60))
        whole = [OwnFile(0), OwnFile(1), data, other, ConcatDataset([data, other]), ConcatDataset([other, data]),
                 Subset(data, range(0, 60, 2)), Subset(data, range(1, 60, 2)), list(data), list(other),
                 {"path": "a"}, {"path": "b"}, {"seed": torch.Generator().manual_seed(1)},
                 {"seed": torch.Generator().manual_seed(2)}]
        self.assertEqual(len({samples.identity(one) for one in whole}), len(whole))
        self.assertEqual(samples.identity(data), samples.identity(same))
        self.assertEqual(samples.identity(Subset(data, [1, 2])), samples.identity(Subset(same, [1, 2])))

    def test_nothing_of_a_data_set_s_is_called_but_its_length(self):
        calls = []

        def called(name):
            def call(*_arguments, **_options):
                calls.append(name)
                raise AssertionError(name)
            return call

        def hostile(name, *bases, **members):
            methods = ["__repr__", "__str__", "__format__", "__iter__", "__getitem__", "__getattr__", "__eq__"]
            methods += ["__lt__", "__contains__", "__bool__", "__index__", "__int__", "__float__", "__fspath__", "keys"]
            methods += ["__array__", "values", "items", "__reversed__", "__torch_function__", "__call__"]
            own = {method: called(f"{name}.{method}") for method in methods}
            own["__doc__"] = property(called(f"{name}: a property"))
            if bases == (object,):  # torch itself asks a data set for its class
                own["__class__"] = own["__doc__"]
            return type(name, bases, {**own, "__hash__": None, "__len__": called(f"{name}.__len__"), **members})

        values = [hostile(f"Own{base.__name__}", base)() for base in
                  (object, int, float, str, bytes, list, tuple, dict, set, collections.UserDict, os.PathLike)]
        tensor = torch.ones(4).as_subclass(hostile("OwnTensor", torch.Tensor))
        held = {"values": values, "named": dict(enumerate(values)), "tensor": tensor, "path": pathlib.Path("a"),
                "names": ["a", "b", "c", "d"], "own": values[5]}
        kind = hostile("Data", Dataset, __len__=lambda _data: 4, epoch=property(called("Data.epoch")))
        own_sampler = hostile("Sampler", torch.utils.data.Sampler, __len__=lambda _sampler: 4,
                              __init__=lambda _sampler: None, __iter__=lambda _sampler: iter(range(4)))

        def made():
            data = kind()
            object.__setattr__(data, "__dict__", dict(held))
            return data

        rank = self.here.begin(0, 1)
        lengths = []
        for data in (made(), Subset(made(), [1, 2, 3, 0])):
            for sampler in (None, DistributedSampler(data, 1, 0, shuffle=False), own_sampler()):
                loader = DataLoader(data, 2, sampler=sampler)
                lengths.clear()
                with unittest.mock.patch.object(kind, "__len__", lambda _data: lengths.append(4) or 4):
                    data_hooks.pass_begins(loader)
                self.assertLessEqual(len(lengths), 1)
        samples.content([{"a": torch.ones(4), "b": values[0]}])
        samples.content(values)
        data_hooks.dealt(unittest.mock.Mock(), values)
        self.assertEqual((calls, self.here.failed), ([], set()))
        self.assertEqual(len(rank.calls["pass_begins"]), 6)

    def test_a_data_set_of_anything_is_looked_at_in_part(self):
        around = {"all": [[[number] * 900 for number in range(900)] for _ in range(50)]}
        around["itself"] = around
        with unittest.mock.patch.object(samples, "leaf", side_effect=samples.leaf) as looked:
            samples.identity(around)
        self.assertLess(looked.call_count, 3 * samples.BUDGET)

    @unittest.mock.patch.dict(os.environ, WORLD_SIZE="2")
    def test_a_part_goes_by_its_places_in_all_of_the_data_where_they_tell_the_order(self):
        data = TensorDataset(torch.arange(100))
        order = torch.randperm(100, generator=torch.Generator().manual_seed(3)).tolist()
        half = Subset(data, range(50, 100))
        (size, known, content), batches = self.pass_over(DataLoader(Subset(half, range(1, 50, 2)), batch_size=25))
        self.assertEqual((size, known, content), (50, samples.identity(data), 0))
        self.assertEqual(batches, [list(range(51, 100, 2))])
        mixed = Subset(data, order[:40])
        shuffled = self.pass_over(DataLoader(mixed, batch_size=40, shuffle=True))
        self.assertEqual((shuffled[0], sorted(shuffled[1][0])), ((80, samples.identity(data), 0), sorted(order[:40])))
        self.assertEqual(self.pass_over(DataLoader(mixed, batch_size=40)),
                         ((40, samples.identity(mixed), 0), [list(range(40))]))
        batched = DataLoader(mixed, batch_sampler=[[3, 1], [2, 0]])
        self.assertEqual(self.pass_over(batched), ((40, samples.identity(mixed), 0), [[3, 1], [2, 0]]))

    @unittest.mock.patch.dict(os.environ, WORLD_SIZE="2")
    def test_a_split_of_its_own_under_a_sampler_for_all_ranks_is_told(self):
        data = TensorDataset(torch.arange(100))
        told = []
        for seed in (1, 1, 2):
            part, _ = random_split(data, [80, 20], torch.Generator().manual_seed(seed))
            sampler = DistributedSampler(part, 2, 0, shuffle=False)
            told.append(self.pass_over(DataLoader(part, batch_size=40, sampler=sampler)))
        self.assertEqual(told[0], told[1])
        self.assertEqual({(size, known, *ids) for (size, known, _), (ids,) in told}, {(80, 0, *range(0, 80, 2))})
        self.assertNotIn(told[0][0][2], (0, told[2][0][2]))

    @unittest.mock.patch.dict(os.environ, WORLD_SIZE="2")
    def test_data_under_a_sampler_for_all_ranks_go_by_what_each_rank_holds(self):
        def told(data):
            (_size, *told), _ids = self.pass_over(DataLoader(data, 10, sampler=DistributedSampler(data, 2, 0)))
            return told

        class Files(Dataset):
            def __init__(self, paths):
                self.cache, self.paths = [None] * len(paths), [pathlib.Path(path) for path in paths]

            def __len__(self):
                return len(self.paths)

            def __getitem__(self, index):
                return index

        names = [f"{number}.png" for number in range(100)]
        here, there = (told(Files([f"/{folder}/{name}" for name in names])) for folder in ("here", "there"))
        self.assertEqual(here, there)
        self.assertNotIn(0, here)
        mixed = told(Files(names[::-1]))
        self.assertEqual((mixed[0], mixed[1] == here[1]), (here[0], False))
        self.assertNotEqual(told(Files(names[::2]))[0], told(Files(names[1::2]))[0])
        data = TensorDataset(torch.arange(100))
        self.assertEqual(told(data)[0], 0)
        self.assertEqual(told(data), told(TensorDataset(torch.arange(100))))
        self.assertNotEqual(told(data)[1], told(TensorDataset(torch.arange(100) + 1))[1])
        halves = [told(Subset(data, range(rank, 100, 2))) for rank in (0, 1)]
        self.assertNotIn(0, [*halves[0], *halves[1]])
        self.assertNotEqual(*halves)

        class Objects(Files):  # whose addresses differ, as may what they keep
            def __init__(self):
                super().__init__(names)
                self.paths, self.others = [(path, object()) for path in names], [{"a", path} for path in names]
                self.weights = list(torch.randn(100))

        self.assertEqual(told(Objects()), told(Objects()))
        node = DistributedSampler(data, 1, 0)  # each node has data of its own, and deals them to its own ranks
        self.assertEqual(self.pass_over(DataLoader(data, 10, sampler=node))[0][1:], (0, 0))

    def test_a_batch_sampler_of_the_program_s_own_numbers_its_passes(self):
        class Batches(list):
            epoch = 3

        self.pass_over(DataLoader(TensorDataset(torch.arange(4)), batch_sampler=Batches([[3, 1], [2, 0]])))
        self.assertEqual([call[1] for call in self.here.rank.heard if call[0] == "pass_begins"], [3])

    def test_data_without_a_length_are_recorded(self):
        data = OwnFile(0)
        with unittest.mock.patch.object(OwnFile, "__len__", side_effect=NotImplementedError), \
             unittest.mock.patch.object(OwnFile, "__getitem__", return_value=1):
            self.assertEqual(self.pass_over(DataLoader(data, batch_sampler=[[0, 1]])),
                             ((0, samples.identity(data), 0), [[0, 1]]))
        self.assertEqual(self.here.failed, set())

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

    def test_an_exception_has_its_line_and_text_whatever_it_is(self):
        class Mute(Exception):
            def __str__(self):
                raise ValueError

        class Broken(Dataset):
            def __len__(self):
                return 1

            def __getitem__(self, index):
                raise OSError("sample 0 cannot\nbe read")

        def draw():
            return list(DataLoader(Broken(), num_workers=1))

        def fail(error):
            raise error
        missing = ValueError("\nmissing keys:\n\tweight")
        for call, line, said in ((lambda: fail(KeyError(3)), "raise error", "KeyError: 3"),
                                 (lambda: fail(Mute()), "raise error", "Mute"),
                                 (lambda: fail(missing), "raise error", "ValueError: missing keys: weight"),
                                 (lambda: json.loads("{"), 'json.loads("{")', "JSONDecodeError: Expecting "),
                                 (draw, "raise OSError", "be read")):
            try:
                self.fail(call())
            except (Mute, OSError, LookupError, ValueError) as error:
                (file, number), text = places.origin_of(error)
            self.assertEqual(file, __file__)
            self.assertIn(line, linecache.getline(file, number))
            self.assertIn(said, text)
        self.assertEqual(places.origin_of(ValueError("never raised")), (None, "ValueError: never raised"))

    def test_a_rank_that_is_told_to_end_says_where_it_was_and_ends_as_without_it(self):
        for handler, code in (("", -signal.SIGTERM), ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))", 3)):
            with self.subTest(handler), tempfile.TemporaryDirectory(prefix="lockstep-test-") as name:
                program = pathlib.Path(name, "program.py")
                program.write_text(f"""import os, pathlib, signal, sys
from lockstep_torch import places
{handler}
here = places.Places(pathlib.Path(sys.argv[1]), 0)
if (child := os.fork()) == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)  # where the handler does not end it
os.waitpid(child, 0)
assert here.stack_file.stat().st_size == 0
os.kill(os.getpid(), signal.SIGTERM)  # here
""")
                done = package.run([sys.executable, program, name], 60)
                self.assertEqual(done.returncode, code, done.stderr)
                places.answered(pathlib.Path(name))
                self.assertEqual(list(pathlib.Path(name).glob("stack_*")), [])
                if handler:  # the signal is the program's
                    self.assertEqual(list(pathlib.Path(name).glob("places_*")), [])
                    continue
                [line] = self.lines_in(pathlib.Path(name, "places_0.jsonl"))
                self.assertEqual(line["kind"], "stall")
                self.assertEqual(line["source"], "os.kill(os.getpid(), signal.SIGTERM)  # here")

    def test_a_rank_that_is_recorded_no_further_is_not_asked_for_its_line(self):
        """The signal that asks would end it."""
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as name, \
             unittest.mock.patch.dict("os.environ", {places.ASKED: "1"}):
            folder, ended = pathlib.Path(name), places.Places(pathlib.Path(name), 0)
            self.assertEqual(len(list(folder.glob("stack_0_*.txt"))), 1)
            ended.end()
            self.assertEqual(places.ask(folder, [os.getpid()]), [])

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

    def test_lines_that_wrap_save_load_and_call_collectives_are_written_once(self):
        recording.recording = None  # the stand-in observes no group
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        recording.recording = self.here
        self.here.begin(0, 1)
        lines = pathlib.Path(__file__).read_text(encoding="utf-8").splitlines()

        def noted(kind):
            return sorted(lines[line - 1].strip() for of, (_, line) in self.here.places.seen if of == kind)
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            path = pathlib.Path(folder, "last.pt")
            model = DistributedDataParallel(torch.nn.Linear(2, 2))
            for _ in range(2):
                dist.all_reduce(torch.zeros(2))
                dist.all_gather_object([None], dist.get_rank())
                torch.save(model.module.state_dict(), path)
            state = torch.load(path)
            torch.save([1], path)
        self.assertEqual(set(state), {"weight", "bias"})
        self.assertEqual(noted("wrapping"), ["model = DistributedDataParallel(torch.nn.Linear(2, 2))"])
        self.assertEqual(noted("collective"), ["dist.all_gather_object([None], dist.get_rank())",
                                               "dist.all_reduce(torch.zeros(2))"])
        self.assertEqual(noted("checkpoint"), ["state = torch.load(path)",
                                               "torch.save(model.module.state_dict(), path)"])
        self.assertEqual(self.here.failed, set())

    def test_what_was_asked_becomes_a_line_and_any_name_can_be_written(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as name:
            folder = pathlib.Path(name)
            program = folder / "a\udcff\n\x1b[2J\u00e9.py"
            stack = folder / "stack_3_77.txt"
            program.write_text("\n\tif\tTrue:  # " + "x" * 1000, encoding="utf-8")
            stack.write_text(f'Stack:\n  File "{folder}/plain.py", line 2 in train\n', encoding="utf-8")
            program.with_name("plain.py").write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
            places.answered(folder)
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
