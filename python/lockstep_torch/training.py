"""The model and its steps: what DistributedDataParallel, backward and optimizers do."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from lockstep_torch import (
    constants,
    data,
    evaluating,
    gradients,
    looking,
    outside,
    parallel,
    recording,
    settings,
    states,
)
from lockstep_torch.extension import extension
from lockstep_torch.recording import Recording, in_place_of, in_turn, listens, wrap

# ---- the model ----

@listens("swapped tensors")
def let_go(here: Recording, *tensors: Any) -> None:
    """torch swaps no tensor that anybody else holds. What they are part of is recorded anew, as it is then."""
    gone = {id(tensor) for tensor in tensors}
    for module in list(here.models):
        if gone & {id(one) for one in (*module.parameters(), *module.buffers())}:
            here.models[module] = None
    for optimizer in list(here.optimizers):
        if gone & {id(one) for one in looking.parameters_of(optimizer)}:
            del here.optimizers[optimizer]
    for tensor in filter(states.is_hooked, tensors):
        del tensor._backward_hooks[states.OURS]
        if not tensor._backward_hooks:
            tensor._backward_hooks = None
    here.rank.let_go(list(tensors))


def model_of(here: Recording, module: torch.nn.Module) -> Any:
    if here.models.get(module) is None:
        here.models[module] = extension().Model(looking.of_engine(module), list(module.named_buffers()))
    return here.models[module]


def recorded(here: Recording, module: torch.nn.Module) -> Any:
    """The wrapped model; None of another one. It is recorded anew where it was let go."""
    if module in here.models and here.models[module] is None:
        gradients.hook_parameters(module.parameters())
        here.rank.wrapping(model_of(here, module))
    return here.models.get(module)


@listens("DistributedDataParallel's settings")
def engine_set_up(here: Recording, engine: Any) -> None:
    here.rank.settings("engine", settings.of_engine(engine))


def shapes_of(module: torch.nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, parameter.shape) for name, parameter in module.named_parameters()]


def succeed(here: Recording, module: torch.nn.Module) -> None:
    """A program that wraps such a model again trains that one from now on, such as one that it has loaded. The recorder
    lets go of the one before, which may live for a while, and of its optimizers."""
    shapes = shapes_of(module)
    for before in [each for each in here.models if each is not module and shapes_of(each) == shapes]:
        del here.models[before]
        gone = {id(parameter) for parameter in before.parameters()}
        for optimizer in [each for each in here.made if gone & {id(one) for one in looking.parameters_of(each)}]:
            del here.made[optimizer]


SIGNATURE = inspect.signature(DistributedDataParallel.__init__)


@listens("DistributedDataParallel")
def wrapping(here: Recording, *arguments: Any, **options: Any) -> None:
    given = SIGNATURE.bind_partial(*arguments, **options).arguments
    if (module := given.get("module")) is None:
        return
    here.places.note("wrapping", here.rank.step())
    mesh = given.get("device_mesh")
    parallel.replicas(here, given.get("process_group") or (mesh.get_group() if mesh else dist.group.WORLD))
    if parallel.any_part(here, list(module.parameters())):
        return
    gradients.hook_parameters(module.parameters())
    if here.rank.step() > 0:
        succeed(here, module)
    trained = [one for _, one in looking.of_engine(module)]
    if (known := here.models.get(module)) is not None and not known.is_of(trained):
        del here.models[module]  # it has other layers by now
    here.modes_told = False
    here.rank.wrapping(model_of(here, module))
    outside.modules_set_up(module)


@listens("DistributedDataParallel")
def wrapped(here: Recording, _result: Any, engine: Any, *_arguments: Any, **_options: Any) -> None:
    if here.sharded:
        return
    here.rank.wrapped(model_of(here, engine.module), "distributed_data_parallel")
    here.wrapped, here.wrapped_at = True, max(here.rank.step(), 0)
    outside.look_again(here)
    engine_set_up(engine)
    evaluating.hook(here, engine.module)


@listens("forwards")
def forward_begins(here: Recording, engine: Any, /, *inputs: Any, **named: Any) -> None:
    here.in_engine = True
    if (model := recorded(here, engine.module)) is not None:
        model.train(engine.module.training)
        if not here.modes_told:
            here.modes_told = engine.module.training
            model.set_modes({name: part.training for name, part in engine.module.named_modules()
                             if hasattr(part, "running_mean")})
        if engine.module.training and torch.is_grad_enabled():
            states.trains(here)
        if torch.is_grad_enabled():
            here.drawn = 0
        here.rank.forward_begins(model, parallel.readable_tensors([*inputs, *named.values()]))


@listens("forwards")
def forward_ended(here: Recording, _result: Any, engine: Any, /, *_inputs: Any, **_named: Any) -> None:
    here.in_engine = False
    if (model := here.models.get(engine.module)) is not None:
        here.rank.forward_ended(model)


@listens("no_sync")
def sync_gradients(here: Recording, wanted: bool) -> None:
    here.rank.sync_gradients(wanted)


def wrap_no_sync() -> None:
    original = DistributedDataParallel.no_sync

    @contextlib.contextmanager
    @functools.wraps(original)
    def no_sync(engine: Any) -> Iterator[None]:
        try:
            with original(engine):
                sync_gradients(False)
                yield
        finally:
            sync_gradients(engine.require_backward_grad_sync)
    DistributedDataParallel.no_sync = no_sync  # type: ignore[method-assign, assignment]


@listens("Join")
def shadowing(here: Recording, *_arguments: Any) -> None:
    here.inside.shadows = True


@listens("Join")
def shadowed(here: Recording, *_arguments: Any) -> None:
    here.rank.update_shadowed()


@listens("Join")
def has_shadowed(here: Recording, *_arguments: Any) -> None:
    here.inside.shadows = False


# ---- a step ----

@listens("backward", trains=True)
def backward_begins(here: Recording, tensors: Any, _gradients: Any = None, _retain: Any = None,
                    create_graph: bool = False, _older: Any = None, inputs: Any = None, **_options: Any) -> None:
    states.trains(here)
    here.only_looks = False
    here.looks = 0
    data.take_drawn(here)
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors  # never of a generator
    if parallel.is_readable(first):
        here.rank.backward(first, inputs is None and not create_graph)
    if (looks := here.rank.looks_at_gradients()) != here.looks_at_gradients:
        here.looks_at_gradients = looks
        gradients.switch_hooks(here, looks)
    if looks and not here.made:
        gradients.hook_parameters(here.rank.attached())
    here.places.note("backward", here.rank.step())


@listens("backward")
def grad_begins(here: Recording, outputs: Any, inputs: Any, _grads: Any = None, _retain: Any = None,
                create_graph: bool = False, **_options: Any) -> None:
    """A program without an optimizer may take its gradients so, and update by a rule of its own."""
    leaves = looking.members(inputs) or [inputs]
    if not here.made and not create_graph and all(looking.is_tensor(each) and each.is_leaf for each in leaves):
        backward_begins(outputs, inputs=inputs)


def options_of(group: dict[str, Any]) -> dict[str, str]:
    """All but its parameters and its rate."""
    return {key: repr(value) for key, value in group.items()
            if key not in ("params", "lr", "initial_lr") and settings.scalar(value)}


def optimizer_of(here: Recording, optimizer: torch.optim.Optimizer) -> Any:
    """Made again where parameters were added."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if optimizer not in here.optimizers or here.optimizers[optimizer][1] != sizes:
        kind = settings.name_of(type(optimizer))
        whole = parallel.whole(here, looking.parameters_of(optimizer))
        gradients.hook_parameters(whole)
        told = {id(parameter) for parameter in whole}
        groups = [([one for one in group["params"] if id(one) in told], float(group.get("lr") or 0),
                   options_of(group) | {"optimizer_class": kind}) for group in optimizer.param_groups]
        here.optimizers[optimizer] = extension().Optimizer(groups), sizes
    return here.optimizers[optimizer][0]


@listens("optimizers")
def optimizer_made(here: Recording, _result: Any, optimizer: Any, *_arguments: Any, **_options: Any) -> None:
    outside.begins_another(here, optimizer)
    here.rank.optimizer_made(optimizer_of(here, optimizer))


def is_stepping(optimizer: Any) -> bool:
    """Whether a step of it is on this thread's stack: torch tells no end of one that raised."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in ("wrapper", "step") and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


@listens("optimizers", early=True, trains=True)
def update_begins(here: Recording, optimizer: Any, _arguments: Any, _options: Any) -> None:
    if getattr(here.inside, "shadows", False):  # Join steps a sharded optimizer in a batch's place
        return
    outer = here.inside.outer() if hasattr(here.inside, "outer") else None
    if outer is not None and outer is not optimizer and is_stepping(outer):  # a ZeroRedundancyOptimizer steps its part
        return
    here.inside.outer = weakref.ref(optimizer)
    known, begins = optimizer in here.optimizers, here.rank is None
    rank, own = here.begin_alone(), optimizer_of(here, optimizer)
    if begins:
        data.take_drawn(here)
    if not known:
        rank.optimizer_made(own)
    states.trains(here)
    tell_autocasts()
    if leaves_out(optimizer):
        del here.inside.outer
        return
    here.places.note("update", rank.step())
    here.loaded = None
    outside.look()
    constants.look()
    rank.update_begins(own)


@listens("optimizers", trains=True)
def update_ended(here: Recording, optimizer: Any, _arguments: Any, _options: Any) -> None:
    if not hasattr(here.inside, "outer") or here.inside.outer() is not optimizer:
        return
    del here.inside.outer
    own = optimizer_of(here, optimizer)
    own.set_rates([float(group.get("lr") or 0) for group in optimizer.param_groups])
    outside.look_at_averages()
    look_at_generators()
    here.rank.update_ended(own)


@listens("random generators")
def look_at_generators(here: Recording) -> None:
    if here.rank.looks_at_generators():
        here.rank.generators(states.of_generators())


@listens("zero_grad")
def zero_grad(here: Recording, *_arguments: Any, **_options: Any) -> None:
    """Python's never detaches a view, as LibTorch's optimizers do; `not_detached` sees a program that does."""
    if recording.is_the_trainer(here, claims=False):
        here.rank.zero_grad("module")


@listens("zero_grad")
def not_detached(here: Recording, _error: BaseException, tensor: Any) -> None:
    """detach_() refuses a gradient that is a view of a bucket."""
    if any(parameter.grad is tensor for each in here.optimizers for parameter in looking.parameters_of(each)):
        here.rank.zero_grad("optimizer")


@listens("clip_grad_norm_")
def clip(here: Recording, _parameters: Any, max_norm: float, total_norm: torch.Tensor, *_more: Any,
         **_options: Any) -> None:
    if parallel.is_readable(total_norm):
        here.rank.clip(float(max_norm), total_norm)


@listens("clip_grad_value_")
def clip_values(here: Recording, parameters: list[Any], clip_value: float, *_more: Any, **_options: Any) -> None:
    """As a clip by the largest number there is. On a device it takes waiting, so only where values are recorded."""
    if not all(map(parallel.is_readable, parameters)) or not here.rank.probes():
        return
    largest = [parameter.grad.detach().abs().max() for parameter in parameters
               if parallel.is_readable(parameter.grad) and parameter.grad.numel() > 0]
    if largest:
        here.rank.clip(float(clip_value), torch.stack([each.cpu() for each in largest]).max())


def wrap_clip_grad_value() -> None:
    original = torch.nn.utils.clip_grad_value_

    @in_place_of(original)
    def clip_grad_value_(parameters: Any, *arguments: Any, **options: Any) -> None:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)  # it may be a generator
        clip_values(given, *arguments, **options)
        original(given, *arguments, **options)
    for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
        owner.clip_grad_value_ = clip_grad_value_  # type: ignore[attr-defined]


@listens("checkpoint")
def checkpointed(here: Recording, inputs: Any) -> None:
    """Of a reentrant activation checkpoint: where no input of it has a gradient, neither has what is inside. It runs
    without gradients by itself, so whether the program wants them is not known."""
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    if "checkpoint" not in here.tells and not any(one.requires_grad for one in tensors):
        here.tells.add("checkpoint")
        here.rank.checkpoint_without_gradient()


@listens("autocast", early=True)
def autocast_begins(here: Recording, _result: Any, context: Any) -> None:
    if here.autocasts is not None and context._enabled and torch.is_grad_enabled():
        here.autocasts.add(f"{context.device} {context.fast_dtype}")


@listens("autocast")
def tell_autocasts(here: Recording) -> None:
    """Those that the first update goes by."""
    if here.autocasts is not None:
        here.rank.settings("engine", {"autocast": ", ".join(sorted(here.autocasts)) or "off"})
        here.autocasts = None


def tell_scaled(here: Recording, scaler: Any, infinities: list[torch.Tensor]) -> bool:
    """Whether there are any, so that the step is left out."""
    found = any(value.item() for value in infinities)
    here.rank.scaled_step(scaler.get_scale(), found, not found)
    return found


@listens("GradScaler")
def scaled_step(here: Recording, scaler: Any, _optimizer: Any, state: Any, *_more: Any, **_options: Any) -> None:
    tell_scaled(here, scaler, list(state["found_inf_per_device"].values()))


@listens("GradScaler")
def scaler_steps(here: Recording, scaler: Any = None, *_arguments: Any, **_options: Any) -> None:
    here.inside.scaler = scaler


@listens("GradScaler")
def leaves_out(here: Recording, optimizer: Any) -> bool:
    """A fused optimizer decides by itself, on its device, whether a scaled step updates. Another device than the CPU is
    asked only in steps whose values are recorded."""
    scaler = getattr(here.inside, "scaler", None)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    values = list(scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())
    if not values or not (here.rank.probes() or all(value.is_cpu for value in values)):
        return False
    return tell_scaled(here, scaler, values)


def install() -> None:
    atexit.register(constants.program_ends)
    wrap(DistributedDataParallel, "__init__", wrapping, wrapped)
    wrap(DistributedDataParallel, "forward", forward_begins, forward_ended)
    wrap_no_sync()
    wrap(torch.distributed.algorithms.join.Join, "__exit__", before=shadowing, ended=has_shadowed)
    wrap(torch.nn.parallel.distributed._DDPJoinHook, "main_hook", after=shadowed)
    wrap(torch.autograd, "backward", before=backward_begins)
    wrap(torch.autograd, "grad", before=grad_begins)
    wrap(torch.optim.Optimizer, "__init__", after=in_turn(optimizer_made, states.optimizer_made))
    wrap(torch.optim.Optimizer, "zero_grad", before=zero_grad)
    wrap(torch.nn.Module, "zero_grad", before=zero_grad)
    wrap(torch.Tensor, "detach_", failed=not_detached)
    _global_optimizer_pre_hooks[states.OURS] = update_begins
    _global_optimizer_post_hooks[states.OURS] = update_ended
    wrap(torch.utils, "swap_tensors", before=let_go)
    wrap(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", before=clip)
    wrap_clip_grad_value()
    wrap(torch.utils.checkpoint, "check_backward_validity", before=checkpointed)
    wrap(torch.amp.autocast_mode.autocast, "__enter__", after=autocast_begins)
    wrap(torch.amp.grad_scaler.GradScaler, "_maybe_opt_step", before=scaled_step)
    wrap(torch.amp.grad_scaler.GradScaler, "step", before=scaler_steps, ended=lambda *_, **__: scaler_steps())
