"""Checkpoints: their files, and what a rank holds when it saves one, and when it goes on from one: its weights, its
optimizers' state, and whether its schedules have begun. These are read off the live objects, not off the file.

A process goes on from a checkpoint where its model or optimizer takes what torch.load gave, before the first update, or
before that of a model that it wraps anew: one that takes weights back while it trains may mean to begin anew.
Generators are no part of it, since few programs bring them back.
"""

from __future__ import annotations

import atexit
import os
import pickle
import random
import sys
import weakref
import zlib
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from lockstep_torch import parallel
from lockstep_torch.looking import PLAIN, buffers_in, parameters_in, parameters_of
from lockstep_torch.recording import Recording, in_turn, listens, wrap

AHEAD = 3  # batches, of a program that fetches while it trains
OURS = -1  # the key of our hooks in torch's lists, which count theirs from 0


def is_hooked(tensor: torch.Tensor) -> bool:
    return OURS in (tensor._backward_hooks or ())


def held_by_optimizers(here: Recording) -> list[torch.Tensor]:
    """What two hold stands there twice."""
    return [parameter for optimizer in here.made for parameter in parameters_of(optimizer)]


def of_generators() -> dict[str, int]:
    """A hash of the state of each global one that is not torch's. NumPy's is left out while another thread draws."""
    held: dict[str, Any] = {"random": random.getstate()}
    get_state = getattr(sys.modules.get("numpy.random"), "get_state", None)
    if get_state is not None:
        lock = get_state.__self__._bit_generator.lock
        if lock.acquire(blocking=False):
            try:
                held["numpy.random"] = get_state(legacy=False)
            finally:
                lock.release()
    return {name: zlib.crc32(pickle.dumps(state)) for name, state in held.items()}


def state_of(optimizer: Any) -> list[dict[str, Any]]:
    """In the order of its parameters. An option, such as a rate, is not part of it."""
    return [{key: value for key, value in (optimizer.state.get(parameter) or {}).items() if value is not None}
            for parameter in parameters_of(optimizer)]


def parts_of(here: Recording, moment: str) -> dict[str, Any]:
    """Nothing where a parameter is more than a tensor, such as a part of one."""
    # Of one that wraps another, such as ZeroRedundancyOptimizer, the inner one holds the state; it was made, too. It
    # may hold this rank's share of the parameters.
    made = [each for each in here.made if not isinstance(getattr(each, "optim", None), torch.optim.Optimizer)]
    parameters = list({id(each): each for each in held_by_optimizers(here)}.values())
    if not parameters or any(type(each) not in PLAIN for each in parameters):
        return {}
    parts: dict[str, Any] = {"model": parameters, "optimizer": [state_of(optimizer) for optimizer in made]}
    begun = [schedule.last_epoch > 1 for schedule in here.schedules]
    if any(begun) or (begun and moment == "resumed"):
        parts["scheduler"] = [any(begun), all(begun)]
    return parts


def tell(here: Recording, moment: str) -> bool:
    parts = {} if moment in here.tells else parts_of(here, moment)
    if parts:
        here.rank.training_state(moment, parts)
    return bool(parts) or moment in here.tells


@listens("training_state")
def told(here: Recording, moment: str, more: dict[str, Any]) -> None:
    """By the program, with parts that nobody else knows."""
    here.places.note("checkpoint", here.rank.step())
    here.rank.training_state(moment, {**parts_of(here, moment), **more})
    here.tells.add(moment)


def is_state(stored: Any) -> TypeGuard[dict[str, torch.Tensor]]:
    return isinstance(stored, dict) and bool(stored) and all(isinstance(each, torch.Tensor) for each in stored.values())


def dicts_of_tensors(stored: Any) -> list[dict[str, torch.Tensor]]:
    """A model's state is one: the whole file, or an entry of it."""
    each = [stored, *stored.values()] if isinstance(stored, dict) else []
    return [one for one in each if is_state(one)]


def has_model(here: Recording, stored: Any) -> bool:
    """By its tensors' shapes: names may have been changed, and data may be saved too."""
    shapes = {parameter.shape for parameter in held_by_optimizers(here) if parallel.is_readable(parameter)}
    return any(shapes <= {value.shape for value in state.values()} for state in dicts_of_tensors(stored))


def shares_memory(module: torch.nn.Module, state_dict: Any, strict: bool = True, assign: bool = False) -> bool:
    """All of its parameters are in the state, and these and its buffers there are the state's own."""
    if not isinstance(state_dict, dict) or assign:
        return False
    own: dict[str, torch.Tensor] = dict(parameters_in(module))
    if not own or not own.keys() <= state_dict.keys():
        return False
    own |= {name: buffer for name, buffer in buffers_in(module) if name in state_dict}
    return all(type(state_dict[name]) in PLAIN and parallel.is_readable(one) and one.layout == torch.strided
               and state_dict[name].data_ptr() == one.data_ptr() for name, one in own.items())


# ---- files ----

def state_in(stored: Any) -> dict[str, torch.Tensor]:
    """The model's state in what is saved or loaded: what stands under a usual name, itself, or the first entry
    with tensors named as a module's."""
    usual = ("model_state_dict", "state_dict", "model")
    named = [stored.get(name) for name in usual] if isinstance(stored, dict) else []
    of_modules = [each for each in dicts_of_tensors(stored) if any(f".{key}".endswith(".weight") for key in each)]
    return next((each for each in [*named, stored, *of_modules] if is_state(each)), {})


def of_state(name: str, tell: Callable[[Any, str, Any, dict[str, torch.Tensor]], None]) -> Callable[..., None]:
    """A hook of a file with a model's state in it; a data set's tensors are no checkpoint. `tell` is given the rank,
    the path, what the file holds, and that state."""
    @listens(name)
    def hook(here: Recording, obj: Any, f: Any, *_arguments: Any, **_options: Any) -> None:
        if isinstance(f, (str, os.PathLike)) and (state := state_in(obj)):
            here.places.note("checkpoint", here.rank.step())
            tell(here.rank, os.fspath(f), obj, state)
    return hook


def tell_loaded(rank: Any, path: str, _obj: Any, state: dict[str, torch.Tensor]) -> None:
    devices = sorted({str(tensor.device) for tensor in state.values()})
    rank.loaded(path, devices, devices, list(state))


def tell_saved(rank: Any, path: str, obj: Any, _state: Any) -> None:
    rank.saved(path, [str(key) for key in obj] if isinstance(obj, dict) else [])


file_begins = of_state("torch.save", lambda rank, path, _obj, _state: rank.saving(path))
file_saved = of_state("torch.save", tell_saved)
file_loaded = of_state("torch.load", tell_loaded)


# ---- states ----

@listens("optimizers' state", early=True)
def optimizer_made(here: Recording, _result: Any, optimizer: Any, *_arguments: Any, **_options: Any) -> None:
    here.made[optimizer] = None


@listens("what is saved")
def saved(here: Recording, _result: Any, obj: Any, *_arguments: Any, **_options: Any) -> None:
    if has_model(here, obj):
        tell(here, "saved")


@listens("what is loaded", early=True)
def loaded(here: Recording, obj: Any, *_arguments: Any, **_options: Any) -> None:
    here.read = here.read or bool(dicts_of_tensors(obj))


@listens("load_state_dict")
def state_comes(here: Recording, *_arguments: Any, **_options: Any) -> None:
    here.rank.parameters_change()


@listens("what is loaded", early=True)
def state_loaded(here: Recording, *_arguments: Any, **_options: Any) -> None:
    here.resumes = here.read


@listens("what is loaded")
def weights_taken(here: Recording, _result: Any, module: Any, *state: Any, **named: Any) -> None:
    """A trained model loads weights, such as its best ones. The last are told when the job ends, unless an update
    follows, or the model is gone by then."""
    parameters = [parameter for _, parameter in parameters_in(module)]
    if here.rank.step() > 0 and shares_memory(module, *state, **named):
        here.rank.own_tensors_loaded(type(module).__name__)
    trained = {id(parameter) for parameter in held_by_optimizers(here)}
    plain = all(type(each) in PLAIN for each in parameters)
    if here.rank.step() > 0 and plain and any(id(each) in trained for each in parameters):
        here.loaded = weakref.ref(module)


@listens("what is loaded")
def names_taken(here: Recording, result: Any, module: Any, *_state: Any, **_named: Any) -> None:
    missing, unexpected = (list(getattr(result, of, ())) for of in ("missing_keys", "unexpected_keys"))
    if missing or unexpected:  # else it fits
        names = [name for name, _ in parameters_in(module)]
        here.rank.state_taken(type(module).__name__, len(names), len(set(names) - set(missing)),
                              *((of or [""])[0] for of in (missing, unexpected)))


@listens("what is loaded")
def job_ends(here: Recording) -> None:
    """A rank that raised must not wait for its tensors, which may wait for a collective that never ends."""
    module, here.loaded = here.loaded() if here.loaded else None, None
    if module is not None and sys.exc_info()[0] is None and not hasattr(sys, "last_value"):
        here.rank.training_state("loaded", {"model": [parameter for _, parameter in parameters_in(module)]})


@listens("what is loaded")
def goes_on(here: Recording) -> None:
    here.resumes = not tell(here, "resumed") and here.rank.step() <= here.wrapped_at


def trains(here: Recording) -> None:
    """A program that was given more batches than a loader fetches ahead throws some away, such as those that it trained
    on before. Which of them it goes on with is not known, and so nothing is told."""
    if here.resumes and (here.drawn > AHEAD or here.rank.step() > here.wrapped_at):
        here.resumes = False
    if here.resumes:
        goes_on()


def install() -> None:
    atexit.register(job_ends)
    wrap((torch.serialization, torch), "save", file_begins,
         in_turn(lambda _result, *arguments, **options: file_saved(*arguments, **options), saved))
    wrap((torch.serialization, torch), "load", after=in_turn(file_loaded, loaded))
    wrap(torch.nn.Module, "load_state_dict", state_comes, in_turn(state_loaded, weights_taken, names_taken))
    wrap(torch.optim.Optimizer, "load_state_dict", after=state_loaded)
