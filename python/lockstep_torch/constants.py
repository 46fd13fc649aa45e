"""Numbers that the program computes with, and that ranks that train one model should hold alike: the weight of a loss,
means to normalise by, the places of items in a table, settings.

They are looked at before the first, the third and the 25th update, and told then, or where the program ends: what the
functions on the stack hold that are the program's own, their modules, and what these hold in dicts, namespaces, modules
and objects of the program's own classes. A number counts where the program's source computes with it, whatever its
name; so do settings that the program parsed, and tables. Left out are times, and what changes from look to look.
Numbers and tensors are also told as they were at the first look and as they are now; tensors, such as codes that are
moved by hand, by a hash. None of the program's code is called. The detectors are in
common/lockstep/diagnose/detectors: setup.cpp, which knows a rank's own numbers, and outside.cpp.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import dataclasses
import functools
import inspect
import linecache
import math
import os
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
MOST, MOST_ENTRIES, MOST_NUMBERS = 4_000, 1 << 16, 1 << 22  # values that are looked at; all tables'; all tensors'
ROWS = 4096     # of a tensor that are hashed one by one
LARGEST = 64    # numbers of a list or a tensor
SHOWN = 8       # of these, and of a table's entries
BORN = time.monotonic()
SETTINGS = (argparse.Namespace, types.SimpleNamespace, type)  # what stands in these, and in dataclasses
ESCAPE = re.compile(r"(\\[\\'\"\n])|\\.")  # the parser would warn of those that it does not know


def name_of(node: Any) -> Any:
    key = getattr(getattr(node, "slice", None), "value", None)  # a dict's
    return getattr(node, "id", None) or getattr(node, "attr", None) or key


def calls_python(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id)


@functools.cache
def used_in(file: str) -> set[Any]:
    """Names in arithmetic, and those that are given to a function that is not Python's. A mean of losses, which only
    its own next value is made of, is not used."""
    found: set[Any] = set()

    def read(node: Any, computes: bool, moved: frozenset[Any]) -> None:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and calls_python(node.value)):
            return  # what is printed or formatted
        if isinstance(node, ast.stmt):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            moved = frozenset(name_of(part) for target in targets if target for part in ast.walk(target))
        if computes and name_of(node) not in moved:
            found.add(name_of(node))
        calls = isinstance(node, ast.Call) and not calls_python(node)
        computes = (calls or isinstance(node, (ast.BinOp, ast.AugAssign))
                    or (computes and not isinstance(node, (ast.stmt, ast.Compare))))
        for child in ast.iter_child_nodes(node):
            method = calls and child is node.func and isinstance(child, ast.Attribute)
            read(node.func.value if method else child, computes, moved)
    if os.path.isfile(file) and os.path.getsize(file) <= 1 << 18:  # and no pipe
        text = ESCAPE.sub(lambda escape: escape[1] or "__", "".join(linecache.getlines(file)))
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            read(ast.parse(text), False, frozenset())
    return found


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
    if kind in SETTINGS or of_its_classes(kind):
        of_torch = torch.nn.Module.__annotations__  # as are its lists of parameters and hooks
        return {name: each for name, each in looking.attributes(value).items() if name not in of_torch}
    return {}


def locals_of(frame: Any) -> dict[str, Any]:
    """Up to Python 3.12 they are copied into a dict that the frame keeps, and that `locals()` gives: what it would keep
    alive is taken out again. A function that asks for it is let alone, and so is one in a debugger."""
    if frame.f_trace is not None or "locals" in frame.f_code.co_names:
        return {}
    copied = frame.f_locals
    held = dict(copied)
    if type(copied) is dict:
        copied.clear()
    return held


def frames() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Of the program's own functions and modules, the innermost first: what they hold, and their file."""
    modules: dict[int, tuple[str, dict[str, Any], str]] = {}
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if places.is_the_users(code.co_filename):
            modules.setdefault(id(frame.f_globals), ("", frame.f_globals, code.co_filename))
            if code.co_flags & inspect.CO_OPTIMIZED:
                yield f" in {code.co_name}()", locals_of(frame), code.co_filename
        frame = frame.f_back
    yield from modules.values()


def everything(used: set[Any]) -> Iterator[tuple[str, Any, str, bool]]:
    """By what name it is reached, where, and whether it is a setting. `used` gets the names that are used there."""
    left, seen, there = MOST, set[int](), list(frames())

    def inside(held: dict[Any, Any], before: str, of: str, deep: int, settings: bool) -> Any:
        nonlocal left
        for name, value in list(held.items()):
            if left == 0:
                return
            left -= 1
            if type(name) is str:
                yield before + name, value, of, settings
                if deep > 1 and id(value) not in seen and (more := held_by(value)):
                    seen.add(id(value))
                    kind = type(value)
                    its: Any = value if kind is types.ModuleType else sys.modules.get(module_of(kind))
                    used.update(used_in(its.__file__) if is_the_programs(its) else ())
                    yield from inside(more, f"{before}{name}.", of, deep - 1,
                                      settings or kind in SETTINGS or dataclasses.is_dataclass(kind))
    used.update(*(used_in(file) for _of, _held, file in there))
    for of, held, _file in there:
        yield from inside(held, "", of, DEEP, False)


def is_number(value: Any) -> bool:
    kind = type(value)
    return kind is float or (module_of(kind) == "numpy" and issubclass(kind, sys.modules["numpy"].floating))


def numbers_in(value: Any) -> list[tuple[str, float]]:
    """The value, or of several in a row some, with their places; of a list that grows they are others at each look."""
    kind = type(value)
    if is_number(value):
        return [("", float(value))]
    row: list[float] = []
    if (kind is torch.Tensor and not value.requires_grad and value.is_floating_point() and 0 < value.numel() <= LARGEST
            and parallel.is_readable(value) and max([*value.shape, 1]) == value.numel()):
        row = value.detach().reshape(-1).tolist()
    elif kind in (list, tuple) and len(value) <= LARGEST and all(type(each) is float for each in value):
        row = list(value)
    if kind is torch.Tensor and len(row) == 1:
        return [("", row[0])]
    shown, of = min(SHOWN, len(row)), f" of {len(row)}" if kind is list else ""
    some = sorted({place * (len(row) - 1) // max(shown - 1, 1) for place in range(shown)})
    return [(f"[{place}{of}]", row[place]) for place in some]


def is_hashed(value: Any, left: int) -> bool:
    """A tensor of several numbers that are not all the same: zeros or ones are equal on all ranks anyway."""
    if (type(value) is not torch.Tensor or value.requires_grad or not value.is_floating_point()
            or value.element_size() == 1 or not parallel.is_readable(value) or value.layout != torch.strided
            or not 1 < value.numel() <= left):
        return False
    least, greatest = value.aminmax()
    return bool(least < greatest)


def rows_of(table: Any, left: int) -> list[tuple[str, str]]:
    """Of one that numbers its keys from 0, the rows of some: those with the smallest hashes, which are the same on
    another rank that has these keys."""
    if type(table) is not dict or not SHOWN <= len(table) <= left:
        return []
    if (any(type(key) not in (int, str) or type(row) is not int for key, row in table.items())
            or sorted(table.values()) != list(range(len(table)))):
        return []
    hashes = sorted((zlib.crc32(repr(key).encode("utf-8", "replace")), value) for key, value in table.items())
    return [(f"the row of key {key:08x} in ", f"row {row}") for key, row in hashes[:SHOWN]]


class Look:
    """At all that the program holds now: names and texts."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.settings: set[str] = set()  # of these names
        self.moving: dict[str, str] = {}  # a number, or a tensor's hash
        self.entries_left, self.numbers_left = MOST_ENTRIES, MOST_NUMBERS
        used: set[Any] = set()
        for name, value, of, settings in everything(used):
            if settings or name.rpartition(".")[2] in used:
                self.at(value, name, of)
            if settings and type(value) is int and value != torch.initial_seed():
                self.settings.add(f"{name}{of}")
                self.found.setdefault(f"{name}{of}", str(value))
            for key, row in rows_of(value, self.entries_left):
                self.entries_left -= len(value) // SHOWN
                self.found.setdefault(f"{key}{name}{of}", row)

    def at(self, value: Any, name: str, of: str) -> None:
        for place, number in numbers_in(value):
            is_a_time = abs(number - time.time()) < 3e7 or BORN - 60 <= number <= time.monotonic() + 1
            if math.isfinite(number) and not is_a_time:
                self.found.setdefault(f"{name}{place}{of}", f"{number:.9g}")
                if is_number(value) and number != 0:
                    self.moving.setdefault(f"{name}{of}", f"{number:.9g}")
        if f"{name}{of}" not in self.moving and is_hashed(value, self.numbers_left):
            self.numbers_left -= value.numel()
            rows = value.detach() if len(value) <= ROWS else value.detach().reshape(1, -1)
            self.moving[f"{name}{of}"] = f"{samples.given([rows])[1]:016x}"


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
        moving = [(name, here.moving[name], now) for name, now in there.moving.items() if name in here.moving]
        if moving:
            here.rank.moving(moving)
    if since == LOOKS[-1]:
        tell(here)


def tell(here: Recording) -> None:
    found, here.constants = here.constants or {}, {}
    here.rank.settings("constants", {name: text for name, text in found.items() if name not in here.settings})
    here.rank.settings("settings", {name: text for name, text in found.items() if name in here.settings})


@listens("the program's constants")
def program_ends(here: Recording) -> None:
    """Before it has made so many updates."""
    if here.constants and here.constants_at == LOOKS[1]:
        tell(here)
