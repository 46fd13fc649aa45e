"""What ranks that train one model should have alike outside its trained parameters: modules that the program calls or
keeps, such as a teacher or averaged weights, and what is frozen in the model.

Each is told to the recorder once, which records it after updates. The detector goes by the holder's name
(common/lockstep/diagnose/detectors/outside.cpp): the class of a module that training calls; "kept CLASS" of one that it
does not call, or "kept averages" of a dict; "frozen parameters" of the model; "buffers of CLASS" or "buffers of the
model". The running statistics of a model that nobody wrapped are "statistics of the model" (batch_norm.cpp).
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from lockstep_torch import calls, constants, data, evaluating, looking, parallel, settings, states
from lockstep_torch.recording import Recording, listens

STATISTICS = "statistics of the model"
LOOKS = (0, 2)  # the looks are so many updates after `looks_from`; what is made later is not seen
MODELS = 8  # that nobody wraps, and after which no more are looked for: a look goes through all modules


def modules_outside() -> list[torch.nn.Module]:
    """Those that are part of no other. A compiled one is called by its own rules, so then there are none."""
    found = list(calls.modules)
    compiler = sys.modules.get("torch._dynamo.eval_frame")  # once somebody compiles
    if compiler and any(looking.is_a(each, compiler.OptimizedModule) for each in found):
        return []
    parts = {id(part) for module in found for part in (looking.attribute(module, "_modules") or {}).values()}
    return [module for module in found if id(module) not in parts and not looking.is_a(module, DistributedDataParallel)]


def are_trained(parameters: list[torch.Tensor], held: set[int]) -> bool:
    """By an optimizer that is still there: another one may have made the module what it is."""
    return any(parameter.requires_grad and id(parameter) in held for parameter in parameters)


@listens("modules' settings")
def modules_set_up(here: Recording, module: Any) -> None:
    here.rank.settings("model", {name: settings.of_module(part) for name, part in looking.parts_of(module) if name})


@listens("modules outside the model")
def look(here: Recording) -> None:
    """A module that trains is the model, where nobody has wrapped it, and tells what it is given. Another one, such as
    a target network, is gone by as soon as it is called; or where two updates did without it, as it is kept."""
    since = here.rank.step() - here.looks_from
    if here.sharded or since not in LOOKS or here.looked_at == here.rank.step():
        return
    here.looked_at = here.rank.step()
    held = {id(parameter) for parameter in states.held_by_optimizers(here)}
    models, uncalled = list(here.models), []
    for module in modules_outside():
        parameters = [parameter for _, parameter in looking.parameters_in(module)]
        if not parameters or any(map(parallel.is_part, parameters)):
            continue
        trains = are_trained(parameters, held)
        if trains and not here.wrapped:
            models.append(module)
        if module in here.outside:
            uncalled += [module] if here.outside[module] is not None and not trains else []
        elif not (trains and here.wrapped):
            here.outside[module] = is_fed if trains else is_called
            calls.listen(here, module, here.outside[module])
    here.one_trains = len(models) == 1
    if here.one_trains or here.wrapped:  # else in an order that is not known
        of_models(here, models)
    if here.one_trains and not here.wrapped and since == LOOKS[0]:
        modules_set_up(models[0])
    if since == LOOKS[-1]:
        are_kept(here, uncalled)
        find_averages(here, models)


def tell(here: Recording, holder: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """The tensor itself, by which the recorder knows what it was told before; as many as there is room for, since each
    number is looked at in each step whose values are recorded."""
    for name, tensor in tensors:
        if parallel.is_readable(tensor) and tensor.numel() <= here.outside_left:
            here.outside_left -= tensor.numel()
            here.rank.outside(holder, name, tensor)


def are_kept(here: Recording, modules: list[torch.nn.Module]) -> None:
    """Two of a class cannot be told from each other."""
    number = Counter(type(module) for module in modules)
    for module in modules:
        if number[type(module)] == 1:
            tell(here, f"kept {type(module).__name__}", looking.parameters_in(module))


def copy_of(models: list[torch.nn.Module]) -> dict[str, torch.Tensor] | None:
    """A dict that holds a tensor like each trained parameter of the model, by the same names, as hand-written averages
    do. Several models or copies cannot be told from each other."""
    if len(models) != 1:
        return None
    trained = {name: one for name, one in looking.parameters_in(models[0])
               if one.requires_grad and parallel.is_readable(one)}

    def is_copy(held: Any) -> bool:
        return len(held) >= len(trained) and trained.keys() <= held.keys() and all(
            type(held[name]) is torch.Tensor and held[name].shape == one.shape and held[name].device == one.device
            and parallel.is_readable(held[name]) and held[name].layout == one.layout == torch.strided
            and held[name].untyped_storage().data_ptr() != one.untyped_storage().data_ptr()
            for name, one in trained.items())
    # Not of a class of the program's own: looking at one would call its code.
    copies = {id(each): each for _name, each, _of, _settings in constants.everything(set())
              if type(each) in (dict, OrderedDict) and is_copy(each)}
    return next(iter(copies.values())) if trained and len(copies) == 1 else None


def find_averages(here: Recording, models: list[torch.nn.Module]) -> None:
    tensors = {name: each for name, each in (copy_of(models) or {}).items()
               if type(each) is torch.Tensor and parallel.is_readable(each)}
    if tensors and sum(each.numel() for each in tensors.values()) <= here.outside_left:
        here.averages = {name: each.clone() for name, each in tensors.items()}
        tell(here, "kept averages", here.averages.items())


@listens("averages of the model")
def look_at_averages(here: Recording) -> None:
    """The program may make new tensors in each step; the recorder is told of those that they are copied to."""
    if here.averages is not None and here.rank.probes():
        fed = [module for module, tells in here.outside.items() if tells is is_fed]
        held = copy_of([*here.models, *fed]) or {}
        for name, copy in here.averages.items():
            now = held.get(name)
            if type(now) is torch.Tensor and now.shape == copy.shape and parallel.is_readable(now):
                copy.copy_(now)


def own_statistics(module: torch.nn.Module) -> set[str]:
    """Running means and what belongs to them, which each rank may keep for itself."""
    held = {of: list((looking.attribute(part, "_buffers") or {}).keys()) for of, part in looking.parts_of(module)}
    return {f"{of}.{name}" if of else name for of, names in held.items() if "running_mean" in names for name in names}


def of_models(here: Recording, models: list[torch.nn.Module]) -> None:
    """Of buffers those that DistributedDataParallel does not keep alike."""
    for module in models:
        ignored = looking.attribute(module, "_ddp_params_and_buffers_to_ignore") or ()
        frozen = [(name, one) for name, one in looking.of_engine(module) if not one.requires_grad]
        of_norms = own_statistics(module)
        wanted = [(name, one) for name, one in looking.buffers_in(module)
                  if module not in here.models or name in ignored]
        buffers = [(name, one) for name, one in wanted if name not in of_norms]
        statistics = [(name, one) for name, one in wanted if name in of_norms and module not in here.models]
        for holder, tensors in (("frozen parameters", frozen), ("buffers of the model", buffers),
                                (STATISTICS, statistics)):
            tell(here, holder, tensors)


@listens("modules outside the model")
def is_called(here: Recording, module: Any, _inputs: Any, _named: Any) -> None:
    if not here.only_looks:
        calls.leave(here, module, is_called)
        here.outside[module] = None
        tell(here, type(module).__name__, looking.parameters_in(module))
        tell(here, f"buffers of {type(module).__name__}", looking.buffers_in(module))
        if all(one.grad is None for _, one in looking.parameters_in(module)) and any(
                part.training and moves(part) for _, part in looking.parts_of(module)):
            here.rank.outside_in_training(type(module).__name__)


def moves(layer: Any) -> bool:
    """Of torch's: in training mode it draws, or keeps statistics."""
    if looking.is_a(layer, torch.nn.modules.batchnorm._NormBase):
        return bool(layer.track_running_stats)
    drops = looking.is_a(layer, torch.nn.modules.dropout._DropoutNd)
    if not drops and not looking.is_a(layer, torch.nn.RNNBase, torch.nn.MultiheadAttention):
        return False
    rate = layer.p if drops else layer.dropout
    return isinstance(rate, (int, float)) and rate > 0


@listens("what the model is given")
def is_fed(here: Recording, module: Any, inputs: Any, named: dict[str, Any]) -> None:
    if module.training and torch.is_grad_enabled():
        states.trains(here)
        data.take_drawn(here)
        here.rank.inputs(parallel.readable_tensors([*inputs, *named.values()]))
    if not module.training:
        here.rank.evaluates_statistics(STATISTICS)
    evaluating.looks(module, inputs, named)
    if here.one_trains:
        here.rank.forward(module.training)


def begins_another(here: Recording, optimizer: torch.optim.Optimizer) -> None:
    """Where nobody wraps a model, another one begins with an optimizer whose parameters no optimizer had. A program may
    make such an optimizer in each step, so the looks at the last model must be over."""
    over = here.rank.step() - here.looks_from > constants.LOOKS[-1]
    if here.wrapped or not over or here.models_begun == MODELS:
        return
    if not here.rank.has_optimizer(looking.parameters_of(optimizer)):
        here.models_begun += 1
        look_again(here)


def look_again(here: Recording) -> None:
    """A model was wrapped, or another one begins: what trained before, such as a teacher, may be outside it."""
    here.looks_from = max(here.rank.step(), 0)
    here.looked_at, here.constants, here.constants_at = -1, None, -1
    for module, tell in here.outside.items():
        calls.leave(here, module, tell)
    here.outside.clear()
