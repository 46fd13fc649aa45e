"""Which numbers of a program are compared between ranks: those that it computes with and does not change.

usage: python3 constants_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import argparse
import collections
import dataclasses
import io
import sys
import tempfile
import time
import types
import unittest
import warnings

import package

sys.path.insert(0, str(package.FOLDER))

import torch

from lockstep_torch import constants

DECAY = 0.97
UNUSED = 0.96


def train_on(*numbers, **more):
    """The program computes with what it is given."""
    return (numbers or more) and DECAY * 2


class Settings:
    dropout = 0.15
    width = 64

    def __init__(self):
        self.options = argparse.Namespace(alpha=0.3)
        self.strength, self.idle = 0.4, 0.6

    def strong(self, loss):
        return self.strength * loss


@dataclasses.dataclass
class Options:
    layers: int = 2


class Touchy:
    """Says so where its code is called."""

    touched = 0

    def __init__(self):
        self.weight = 0.9
        train_on(self.weight)

    @property
    def rate(self):
        Touchy.touched += 1
        return 0.1

    def __getattr__(self, name):
        Touchy.touched += 1
        raise AttributeError(name)


def texts():
    """Of the function that calls it: by name."""
    of = f" in {sys._getframe(1).f_code.co_name}()"
    return {name.removesuffix(of): text for name, text in constants.Look().found.items() if name.endswith(of)}


class Recorder:
    """Stands in for the recording."""

    def __init__(self):
        self.rank = types.SimpleNamespace(step=lambda: self.steps, settings=self.set_up, moving=self.move)
        self.constants, self.constants_at, self.looks_from, self.told = None, -1, 0, []
        self.steps, self.moved = 0, []

    def set_up(self, of, told):
        if told:
            self.told.append((of, told))

    def move(self, values):
        self.moved.append({name: (first, now) for name, first, now in values})


class Constants(unittest.TestCase):
    def test_floats_rows_of_them_and_what_stands_in_containers_are_found(self):
        weight, means, light = 0.7, [0.25, 0.5], torch.tensor(3.5)
        scales = torch.tensor([[0.5], [0.125]])
        settings, plain = Settings(), types.SimpleNamespace(gamma=0.2, more={"beta": 0.1})
        table = {"rate": 0.8, "idle": 1.5}
        self.assertEqual(texts(), {
            "weight": "0.7", "means[0 of 2]": "0.25", "means[1 of 2]": "0.5", "light": "3.5", "scales[0]": "0.5",
            "scales[1]": "0.125", "settings.options.alpha": "0.3", "settings.strength": "0.4", "plain.gamma": "0.2",
            "plain.more.beta": "0.1", "table.rate": "0.8"})
        found = constants.Look().found
        self.assertEqual((found["DECAY"], found["Settings.dropout"], found["Settings.width"]), ("0.97", "0.15", "64"))
        self.assertNotIn("UNUSED", found)
        train_on(weight, means, scales=scales, light=light, plain=plain, settings=settings, rate=table["rate"])

    def test_a_name_decides_nothing(self):
        own_rank_seed_loss, _timer, val_loss, rows = 0.1, 0.2, 0.3, torch.tensor([0.5, 0.25])
        self.assertEqual(texts(), {"own_rank_seed_loss": "0.1", "_timer": "0.2", "val_loss": "0.3", "rows[0]": "0.5",
                                   "rows[1]": "0.25"})
        self.assertLess(own_rank_seed_loss - _timer / 2, train_on(val_loss) + rows[0].item() * 2)

    def test_what_is_only_compared_printed_or_made_anew_of_itself_is_left_out(self):
        lowest, shown, mean_of = 0.1, 0.2, 0.3
        self.assertEqual(texts(), {})
        if lowest < DECAY:
            print(shown, f"{shown / 2:.0f}", file=io.StringIO())
        mean_of = 0.9 * mean_of + 0.1
        mean_of *= 2
        lowest = min(lowest, 1.0)

    def test_whole_numbers_are_found_where_they_are_settings(self):
        torch.manual_seed(30)
        options = argparse.Namespace(accumulate=4, optimizer="adamw", log_every=10, token="hf_a", debug=True, seed=30)
        chosen, WIDTH, updates = Options(), 64, 7
        self.assertEqual(texts(), {"options.accumulate": "4", "options.log_every": "10", "chosen.layers": "2"})
        train_on(options, chosen, WIDTH, updates)

    def test_a_table_that_numbers_its_keys_is_known_by_rows_that_another_rank_would_choose_too(self):
        catalogue = {f"item {number}": number for number in range(40)}
        mine = texts()
        self.assertEqual(len(mine), constants.SHOWN)
        self.assertTrue(all(text.startswith("row ") for text in mine.values()))
        catalogue = {f"item {number}": (number + 1) % 40 for number in range(40)}
        other = texts()
        self.assertEqual(set(other), set(mine))
        self.assertTrue(all(other[name] != mine[name] for name in mine))
        del catalogue

    def test_what_is_no_table_that_numbers_keys_is_none(self):
        shares = [{f"item {number}": 3 * number for number in range(20)}, {number: number + 5 for number in range(20)}]
        few = {"a": 0, "b": 1}
        self.assertEqual(texts(), {})
        del shares, few

    def test_what_is_a_time_or_trained_or_large_is_left_out(self):
        started_at, moment, tick = time.time(), time.time() - 60, time.perf_counter()
        trained, gradient_of, whole = torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(1)), 3
        large, table, text = torch.full((65,), 0.5), torch.full((3, 3), 0.5), "0.5"
        nothing, many = float("nan"), [0.5] * 65
        self.assertEqual(texts(), {})
        train_on(started_at, moment, tick, trained, gradient_of, whole, large, table, text, nothing, many)

    def test_a_source_that_cannot_be_read_is_none(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            for name, text in (("broken.py", "a = (b * c"), ("escapes.py", "a = 'a\\d\\'' + b * c")):
                with open(f"{folder}/{name}", "w") as file:
                    file.write(text)
            self.assertEqual(constants.used_in(f"{folder}/broken.py"), set())
            with self.assertNoLogs(), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                self.assertEqual(constants.used_in(f"{folder}/escapes.py"), {"b", "c"})
            self.assertEqual(said, [])
        self.assertEqual(constants.used_in("/dev/stdin"), set())

    def test_no_code_of_the_program_is_called(self):
        touchy, counted = Touchy(), collections.Counter("aab")
        Touchy.touched = 0
        self.assertEqual(texts(), {"touchy.weight": "0.9"})
        self.assertEqual(Touchy.touched, 0)
        del touchy, counted

    def test_a_function_that_asks_for_its_locals_is_let_alone(self):
        weight = 0.7
        mine = locals()
        later = 0.8
        self.assertEqual(texts(), {})
        self.assertNotIn("later", mine)
        train_on(weight, later)

    def test_nothing_is_kept_alive(self):
        class Large:
            alive = 0

            def __init__(self):
                Large.alive += 1

            def __del__(self):
                Large.alive -= 1
        large = Large()
        constants.Look()
        self.assertEqual(Large.alive, 1)
        del large
        self.assertEqual(Large.alive, 0)

    def test_only_so_much_is_looked_at(self):
        rows = [types.SimpleNamespace(**{f"a{number}": 0.5 for number in range(100)}) for _ in range(100)]
        holder = types.SimpleNamespace(**{f"row{number}": row for number, row in enumerate(rows)})
        there = list(constants.everything(set()))
        self.assertEqual(len(there), constants.MOST)
        del holder

    def train(self, here, updates):
        steady, moving, of_a_round = 0.7, 0.1, 0.3
        for here.steps in (0, 0, 1, 2, 2, 3, 24, 24)[:updates]:  # two optimizers step in some
            moving += 0.05
            of_a_round += 0.1 if here.steps == 24 else 0
            constants.look.__wrapped__(here)
            train_on(steady, moving * 2, of_a_round)

    def test_a_tensor_that_the_program_moves_is_told_as_it_was_and_is(self):
        here = Recorder()
        codes, ones, strength = torch.randn(8, 3), torch.ones(4), 0.5
        weight, since, mean_of = torch.randn(5, requires_grad=True), 0.0, 1.0
        for here.steps in (0, 2, 24):
            constants.look.__wrapped__(here)
            codes += 1
            strength = 2 * strength
            since += 0.5
            mean_of = 0.5 * mean_of + 0.25
            train_on(codes, ones, weight * strength, since)
        of = f" in {sys._getframe(0).f_code.co_name}()"
        self.assertEqual([sorted(name for name in values if name.endswith(of)) for values in here.moved],
                         2 * [[f"codes{of}", f"strength{of}"]])
        self.assertEqual([values[f"strength{of}"] for values in here.moved], [("0.5", "1"), ("0.5", "2")])
        (first, third), (again, later) = (values[f"codes{of}"] for values in here.moved)
        self.assertEqual(first, again)
        self.assertEqual(len({first, third, later}), 3)

    def test_what_changes_before_the_25th_update_is_not_told(self):
        here = Recorder()
        self.train(here, 8)
        told = dict(here.told)["constants"]
        self.assertEqual(told["steady in train()"], "0.7")
        self.assertTrue({"moving in train()", "of_a_round in train()"}.isdisjoint(told))

    def test_a_list_that_grows_holds_no_constants(self):
        drawn, weights, found = [0.25, 0.5], [0.7, 0.3], []
        for _ in range(2):
            found.append(texts())
            drawn.append(0.125)
        self.assertEqual(found[0].items() & found[1].items(),
                         {("weights[0 of 2]", "0.7"), ("weights[1 of 2]", "0.3")})
        train_on(drawn, weights)

    def test_a_program_that_ends_before_that_tells_what_did_not_change_until_the_third(self):
        here = Recorder()
        self.train(here, 5)
        self.assertEqual(here.told, [])
        constants.program_ends.__wrapped__(here)
        told = dict(here.told)["constants"]
        self.assertIn("of_a_round in train()", told)
        self.assertNotIn("moving in train()", told)


if __name__ == "__main__":
    unittest.main()
