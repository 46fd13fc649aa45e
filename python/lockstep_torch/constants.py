"""Numbers that the program holds, and that ranks that train one model should hold alike: the weight of a loss, means to
normalise by, the places of items in a table, settings.

They are looked at before the first, the third and the 25th update, and told then, or where the program ends: what the
functions on the stack hold that are the program's own, their modules, and what these hold in dicts, namespaces, modules
and objects of the program's own classes. What has changed meanwhile is no constant. Left out are times, and what is a
rank's own by its name. None of the program's code is called, and no more is looked at than MOST, MOST_ENTRIES and
MOST_NUMBERS say.

Numbers and tensors in the same places are also told as they were at the first look and as they are now; tensors by a
hash. Such are codes that are moved by hand: ranks that began with the same ones should still have the same. The
detector is in common/lockstep/diagnose/detectors/outside.cpp.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import re
import sys
import time
import types
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from lockstep_torch import looking, parallel, places, samples
from lockstep_torch.looking import module_of
from lockstep_torch.recording import Recording, listens

LOOKS = (0, 2, 24)  # the looks are so many updates after `looks_from`
DEEP = 3        # a name of a function's, what stands in it, and what stands in that
MOST = 4_000    # values that are looked at
MOST_ENTRIES = 1 << 16  # of tables, all together
MOST_NUMBERS = 1 << 22  # of tensors, all together
ROWS = 4096     # of a tensor that are hashed one by one
LARGEST = 64    # numbers of a list or a tensor
SHOWN = 8       # of these, and of a table's entries
DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))  # of tensors that are hashed
BORN = time.monotonic()

# A name of these words is a rank's own, or of what is measured.
WORDS = frozenset("""
    rank ranks local own mine my shard share part seed seeds rng dice generator device port host pid node worker
    time timer times started began tic toc now clock elapsed duration second seconds sec secs ms took speed throughput
    memory noise sample samples batch input inputs target targets label labels""".split())
LAST_WORDS = frozenset("""
    loss losses acc accuracy score scores metric metrics best error errors norm norms grad grads gradient gradients
    ppl perplexity auc f1 iou start end begin total sum count counts size sizes length lengths number""".split())
# A number that moves and has a name of these words is measured, too.
MEASURED = frozenset("avg val value top prec precision recall ema running mean std".split())
# Of a setting, a name of these words is of what a rank has or does beside its training.
BESIDE = frozenset("""
    log logs print verbose save every interval workers threads main master gpu cuda id index rows offset steps per
    hostname procid localid nodeid role version""".split())
SETTINGS = frozenset("args arguments conf config configuration options settings hparams hyperparameters".split())
CONTAINERS = (argparse.Namespace, types.SimpleNamespace)


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]


def is_a_ranks_own(name: str) -> bool:
    words = [word for word in words_of(name) if not word.isdigit()]
    return not WORDS.isdisjoint(words) or not LAST_WORDS.isdisjoint(words[-1:])


# ---- what there is ----

def is_the_programs(module: Any) -> bool:
    file = vars(module).get("__file__") if type(module) is types.ModuleType else None
    return type(file) is str and places.is_the_users(file)


def of_its_classes(kind: type) -> bool:
    return is_the_programs(sys.modules.get(module_of(kind)))


def held_by(value: Any) -> dict[Any, Any]:
    """What stands in it, by name; nothing where that is not the program's own, or would take a call of its code."""
    kind = type(value)
    if kind is dict:
        return value if len(value) <= LARGEST and all(type(key) is str for key in value) else {}
    if kind is types.ModuleType:
        return vars(value) if is_the_programs(value) else {}
    if kind is type:
        return dict(type.__getattribute__(value, "__dict__")) if of_its_classes(value) else {}
    if kind in CONTAINERS or of_its_classes(kind):
        return looking.attributes(value)
    return {}


def locals_of(frame: Any) -> dict[str, Any]:
    """Up to Python 3.12 they are copied into a dict that the frame keeps, and that `locals()` gives: what it would keep
    alive is taken out again, and a function that asks for it is let alone."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED or "locals" in code.co_names:
        return {}
    copied = frame.f_locals
    held = dict(copied)
    if type(copied) is dict and sys.getrefcount(copied) <= 3:  # the frame's, this one, and the call's
        copied.clear()
    return held


def frames() -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the program's own functions and modules, the innermost first."""
    modules: list[dict[str, Any]] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if places.is_the_users(frame.f_code.co_filename):
            yield f" in {frame.f_code.co_name}()", locals_of(frame)
            if not any(frame.f_globals is known for known in modules):
                modules.append(frame.f_globals)
        frame = frame.f_back
    for module in modules:
        yield "", module


# ---- what is a constant ----

def is_a_time(number: float) -> bool:
    """By one of the clocks, in this process."""
    return abs(number - time.time()) < 3e7 or BORN - 60 <= number <= time.monotonic() + 1


def is_number(value: Any) -> bool:
    kind = type(value)
    return kind is float or (module_of(kind) == "numpy" and issubclass(kind, sys.modules["numpy"].floating))


def is_setting(name: str, value: Any) -> bool:
    """A whole number. A text may be a secret, and is not told."""
    return type(value) is int and BESIDE.isdisjoint(words_of(name))


def holds_settings(value: Any) -> bool:
    """Elsewhere only a name in capitals is a setting; others may be counters."""
    kind = type(value)
    return kind in CONTAINERS or (of_its_classes(kind) and dataclasses.is_dataclass(kind)
                                  and not SETTINGS.isdisjoint(words_of(kind.__name__)))


def spread(number: int) -> list[int]:
    """As many places as are shown, of so many."""
    return sorted({place * (number - 1) // max(min(SHOWN, number) - 1, 1) for place in range(min(SHOWN, number))})


def numbers_in(value: Any) -> list[tuple[str, float]]:
    """The value, or of several in a row some, with their places; of a list that grows they are others at each look."""
    kind = type(value)
    if is_number(value):
        return [("", float(value))]
    if kind is torch.Tensor:
        if (value.requires_grad or not value.is_floating_point() or not 0 < value.numel() <= LARGEST
                or not parallel.is_readable(value) or max([*value.shape, 1]) != value.numel()):
            return []
        row = value.detach().reshape(-1).tolist()
        single = value.numel() == 1
    elif kind in (list, tuple) and 0 < len(value) <= LARGEST and all(type(each) is float for each in value):
        row, single = list(value), False
    else:
        return []
    of = f" of {len(row)}" if kind is list else ""
    return [("" if single else f"[{place}{of}]", float(row[place])) for place in spread(len(row))]


def is_hashed(value: Any, left: int) -> bool:
    """A tensor of several numbers that are not all the same: zeros or ones are equal on all ranks anyway."""
    if (type(value) is not torch.Tensor or value.dtype not in DTYPES or value.requires_grad
            or not parallel.is_readable(value) or value.layout != torch.strided or not 1 < value.numel() <= left):
        return False
    least, greatest = value.aminmax()
    return bool(least < greatest)


def rows_of(table: Any, left: int) -> list[tuple[str, str]]:
    """Of one that numbers its keys from 0, the rows of some: those with the smallest hashes, which are the same on
    another rank that has these keys."""
    if type(table) is not dict or not SHOWN <= len(table) <= left:
        return []
    if any(type(value) is not int for value in table.values()) or len(set(table.values())) != len(table):
        return []
    if max(table.values()) != len(table) - 1 or min(table.values()) != 0:
        return []
    if any(type(key) not in (int, str) for key in table):
        return []
    hashes = sorted((zlib.crc32(repr(key).encode("utf-8", "replace")), value) for key, value in table.items())
    return [(f"the row of key {key:08x} in ", f"row {row}") for key, row in hashes[:SHOWN]]


class Look:
    """At all that the program holds now: names and texts."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.settings: set[str] = set()  # of these names
        self.moving: dict[str, str] = {}  # a number, or a tensor's hash
        self.seen: set[int] = set()
        self.left, self.entries_left, self.numbers_left = MOST, MOST_ENTRIES, MOST_NUMBERS
        for of, held in frames():
            self.into(held, "", of, DEEP)

    def into(self, held: dict[Any, Any], before: str, of: str, deep: int, settings: bool = False) -> None:
        for name, value in list(held.items()):
            if self.left <= 0:
                return
            self.left -= 1
            if type(name) is str and not name.startswith("_") and not is_a_ranks_own(name):
                self.at(value, before + name, of, deep)
                if (settings or (name.isupper() and len(name) > 2)) and is_setting(name, value):
                    self.settings.add(f"{before}{name}{of}")
                    self.found.setdefault(f"{before}{name}{of}", str(value))

    def at(self, value: Any, name: str, of: str, deep: int) -> None:
        for place, number in numbers_in(value):
            if math.isfinite(number) and not is_a_time(number):
                self.found.setdefault(f"{name}{place}{of}", f"{number:.9g}")
                if is_number(value) and number != 0 and MEASURED.isdisjoint(words_of(name)):
                    self.moving.setdefault(f"{name}{of}", f"{number:.9g}")
        if f"{name}{of}" not in self.moving and is_hashed(value, self.numbers_left):
            self.numbers_left -= value.numel()
            rows = value.detach() if len(value) <= ROWS else value.detach().reshape(1, -1)
            self.moving[f"{name}{of}"] = f"{samples.given([rows])[1]:016x}"
        keys = rows_of(value, self.entries_left)
        self.entries_left -= len(value) if keys else 0
        for key, row in keys:
            self.found.setdefault(f"{key}{name}{of}", row)
        if deep > 1 and id(value) not in self.seen and (held := held_by(value)):
            self.seen.add(id(value))
            self.into(held, f"{name}.", of, deep - 1, holds_settings(value))


@listens("the program's constants")
def look(here: Recording) -> None:
    since = here.rank.step() - here.looks_from
    if since not in LOOKS or here.constants_at == since or (here.constants is None and since > LOOKS[0]):
        return
    here.constants_at = since
    there = Look()
    if here.constants is None:
        here.constants, here.moving = there.found, there.moving
    here.constants = {name: text for name, text in here.constants.items() if there.found.get(name) == text}
    here.settings = there.settings
    if since > LOOKS[0]:
        here.configuration("moving", {name: f"{here.moving[name]} {now}"
                                      for name, now in there.moving.items() if name in here.moving})
    if since == LOOKS[-1]:
        tell(here)


def tell(here: Recording) -> None:
    found, here.constants = here.constants or {}, {}
    here.configuration("constants", {name: text for name, text in found.items() if name not in here.settings})
    here.configuration("settings", {name: text for name, text in found.items() if name in here.settings})


@listens("the program's constants")
def program_ends(here: Recording) -> None:
    """Before it has made so many updates."""
    if here.constants and here.constants_at == LOOKS[1]:
        tell(here)
