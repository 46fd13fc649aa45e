"""Calls of the program's modules. Nothing is put on a module, where a copy, a pickle, a trace, an export or a fusion of
it would find that: torch's own function that calls a module is listened to, as others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lockstep_torch.looking import ByIdentity
from lockstep_torch.recording import Recording, in_place_of, listens, wrap

Tell = Callable[[Any, Any, dict[str, Any]], None]  # is given the module, its inputs, and those with names
numbers: set[int] = set()  # by id() the modules in Recording.heard, and some that are gone
modules = ByIdentity()  # that were made, copied or loaded since this file was installed, or were called


def listen(here: Recording, module: torch.nn.Module, tell: Tell) -> None:
    """Before each call from now on."""
    here.heard.setdefault(module, []).append(tell)
    numbers.add(id(module))


def leave(here: Recording, module: torch.nn.Module, tell: Tell) -> None:
    left = [each for each in here.heard.pop(module, []) if each is not tell]
    if left:
        here.heard[module] = left
    else:
        numbers.discard(id(module))


@listens("calls of modules")
def called(here: Recording, module: torch.nn.Module, inputs: Any, named: dict[str, Any]) -> None:
    for tell in here.heard.get(module, []):
        tell(module, inputs, named)


def made(_result: Any, module: torch.nn.Module, *_arguments: Any, **_options: Any) -> None:
    if not torch.compiler.is_compiling():
        modules[module] = None


def install() -> None:
    kind: Any = torch.nn.Module
    original = kind._call_impl

    @in_place_of(original)
    def _call_impl(module: Any, /, *inputs: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            if id(module) not in modules.held:
                modules[module] = None
            if id(module) in numbers:
                called(module, inputs, named)
        return original(module, *inputs, **named)
    kind._call_impl = _call_impl
    for name in ("__init__", "__setstate__"):  # a copy and an unpickled one take a state
        wrap(kind, name, after=made)
