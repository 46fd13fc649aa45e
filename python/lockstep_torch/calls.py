"""Calls of the program's modules. Nothing is put on a module, where a copy, a pickle, a trace, an export or a fusion of
it would find that: torch's own function that calls a module is listened to, as others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lockstep_torch.recording import Recording, in_place_of, listens

Tell = Callable[[Any, Any, dict[str, Any]], None]  # is given the module, its inputs, and those with names
numbers: set[int] = set()  # by id() the modules in Recording.heard, and some that are gone


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


def install() -> None:
    modules: Any = torch.nn.Module
    original = modules._call_impl

    @in_place_of(original)
    def _call_impl(module: Any, /, *inputs: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling() and id(module) in numbers:
            called(module, inputs, named)
        return original(module, *inputs, **named)
    modules._call_impl = _call_impl
