"""Looks at each parameter's local gradient, before it is reduced: by a hook of the parameter, in steps whose values are
recorded."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

import torch

from lockstep_torch import looking, parallel, recording, states
from lockstep_torch.recording import Recording, listens


def hook_parameters(parameters: Any) -> None:
    """A hook of Python's beside the program's own: one of C++ would take their place. It is put in by hand: torch
    numbers the hooks of a process, and the numbers are in the program's pickles. It holds an address: torch swaps no
    tensor that has a weak reference."""
    for parameter in parameters:
        if (parameter.requires_grad and parameter.is_leaf and not states.is_hooked(parameter)
                and parallel.is_readable(parameter)):
            hook = functools.partial(gradient_comes, parameter._cdata)
            hook.__torch_unserializable__ = True  # type: ignore[attr-defined] # else torch warns where it is left out
            if parameter._backward_hooks is None:
                parameter._backward_hooks = OrderedDict()
            parameter._backward_hooks[states.OURS] = hook


def switch_hooks(here: Recording, on: bool) -> None:
    """A hook takes time in every backward. It stays where the program has its own beside it, and comes back before
    those that came meanwhile: what it sees depends on their order."""
    of_models = (parameter for module in here.models for _, parameter in looking.parameters_in(module))
    of_optimizers = (parameter for optimizer in here.optimizers for parameter in looking.parameters_of(optimizer))
    parameters = parallel.whole(here, [*of_models, *of_optimizers])
    if on:
        off = [parameter for parameter in parameters if not states.is_hooked(parameter)]
        hook_parameters(off)
        for parameter in filter(states.is_hooked, off):
            hooks: Any = parameter._backward_hooks
            hooks.move_to_end(states.OURS, last=False)
    else:
        for parameter in parameters:
            if list(parameter._backward_hooks or ()) == [states.OURS]:
                parameter._backward_hooks = None


def gradient_comes(address: int, gradient: torch.Tensor) -> None:
    """It has to be fast. It holds no recording: a trace ends with its own."""
    here = recording.recording
    if here is not None and here.looks_at_gradients:
        local_gradient(address, gradient)


@listens("local gradients")
def local_gradient(here: Recording, address: int, gradient: torch.Tensor) -> None:
    here.rank.local_gradient(address, gradient)
