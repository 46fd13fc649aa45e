"""What a rank's optimizers do, update by update: the record that the relations are made from."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lockstep_torch.looking import parameters_of
from lockstep_torch.proving.tilt import DETACH, Tilt, line_in

RANDN = torch.randn
CHUNK = 4096
MOST_IN_A_GRAPH = 50_000  # nodes that are looked at
MOST_BYTES = 2 << 30  # of parameters and gradients, in all updates of a rank
FEWEST = 3  # updates, before a rank ends for them
ASKS = frozenset(("get_rank", "get_world_size", "get_backend", "get_node_local_rank"))  # that call nobody
ALONE = 1000  # times as many updates without a call to other ranks, before a rank ends


def bytes_of(parameters: list[torch.Tensor]) -> int:
    """Of an update that is remembered: before it, its gradients, and after it."""
    return sum(3 * one.numel() * one.element_size() for one in parameters)


def copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """On the CPU, and its own."""
    if tensor is None:
        return None
    own = DETACH(tensor)
    own = own.to_dense() if own.is_sparse else own
    return own.to("cpu", copy=True)


def value_of(outputs: Any, gradients: Any) -> float:
    """What backward starts from."""
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    given = [gradients] if gradients is None or isinstance(gradients, torch.Tensor) else list(gradients)
    given += [None] * (len(outputs) - len(given))
    return sum(float((DETACH(one) if gradient is None else DETACH(one) * gradient).sum())
               for one, gradient in zip(outputs, given, strict=False))


def own_functions(outputs: Any) -> set[str]:
    """Functions in a loss's graph whose backward the program wrote itself."""
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    seen: set[Any] = set()
    found: set[str] = set()
    left = [one.grad_fn for one in outputs if one.grad_fn is not None]
    while left and len(seen) < MOST_IN_A_GRAPH:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = getattr(node, "_forward_cls", None)
        if kind is not None and not kind.__module__.startswith("torch."):
            found.add(kind.__name__)
        left += [next_node for next_node, _ in node.next_functions if next_node is not None]
    return found


@functools.cache
def chunk(place: int) -> torch.Tensor:
    return RANDN(CHUNK, generator=torch.Generator().manual_seed(place), dtype=torch.float64)


def weights(number: int) -> torch.Tensor:
    """Of a random projection. The first ones are the same for each number, so zeros at the end do not count."""
    return torch.cat([chunk(place) for place in range(number // CHUNK + 1)])[:number]


def numbers_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options."""
    found = {}
    for name, value in group.items():
        if name != "params":
            single = isinstance(value, torch.Tensor) and value.numel() == 1
            found[name] = float(value) if single else value if isinstance(value, (int, float, bool)) else repr(value)
    return found


def digest_of(optimizer: Any) -> list[dict[str, float]]:
    """A number for each part of the state of each parameter."""
    inner = getattr(optimizer, "optim", optimizer)  # a ZeroRedundancyOptimizer's
    found = []
    for one in parameters_of(inner):
        held = {name: DETACH(value).to("cpu", torch.float64) if isinstance(value, torch.Tensor) else value
                for name, value in inner.state.get(one, {}).items()}
        found.append({name: float((value.reshape(-1) * weights(value.numel())).sum())
                      if isinstance(value, torch.Tensor) else float(value)
                      for name, value in held.items() if isinstance(value, (torch.Tensor, int, float))})
    return found


class Steps:
    """Counts updates of all optimizers from 0. `ends` is called when there are enough."""

    def __init__(self, tilt: Tilt, most: int, ends: Any) -> None:
        self.tilt, self.most, self.ends, self.folder = tilt, most, ends, tilt.folder
        self.updates: list[dict[str, Any]] = []
        self.optimizers: list[Any] = []
        self.has_enough: Callable[[], bool] = lambda: False
        self.drawn: list[tuple[str, int]] = []  # by random generators that are not made neutral
        self.made: list[int] = []  # updates of each, behind a call to other ranks
        self.alone: list[int] = []  # the others
        self.is_left_out = False  # the update that is made, since there are enough such alone
        self.depth = 0  # a step may call another optimizer's
        self.loss, self.grads, self.backwards, self.joined = 0.0, 0.0, 0, False
        self.cleared: set[int] = set()  # optimizers whose gradients were cleared behind a backward
        self.rows: list[torch.Tensor] = []
        self.given: list[int] = []  # loaders that gave a batch since the last update
        self.trained: set[int] = set()  # loaders whose batches were trained on
        self.functions: set[str] = set()
        self.before_clip: dict[int, torch.Tensor | None] = {}
        self.forced: list[dict[str, Any]] | None = None  # another run's updates
        self.bytes = 0
        self.names: dict[int, str] = {}  # of parameters, by identity, as modules that were called have them

    def begins(self, optimizer: Any, _arguments: Any, _options: Any) -> None:
        self.depth += 1
        if self.depth > 1:
            return
        if not any(each is optimizer for each in self.optimizers):
            self.optimizers.append(optimizer)
            self.made.append(0)
            self.alone.append(0)
        parameters = parameters_of(optimizer)
        place = next(place for place, each in enumerate(self.optimizers) if each is optimizer)
        (self.made if self.joined else self.alone)[place] += 1
        self.is_left_out = not self.joined and self.alone[place] > self.most
        if self.is_left_out:
            self.forget()
            return
        self.tilt.end(len(self.updates))
        self.bytes += bytes_of(parameters)
        if self.bytes > MOST_BYTES:
            self.ends("" if len(self.updates) >= FEWEST else
                      f"{FEWEST} updates of {len(parameters)} parameters are larger than {MOST_BYTES >> 30} GiB")
        self.updates.append({
            "optimizer": place, "loss": self.loss if self.backwards else self.grads,
            "backwards": self.backwards + (self.grads != 0), "rows": self.rows,
            "before": [copied(one) for one in parameters], "gradients": [copied(one.grad) for one in parameters],
            "unclipped": [self.before_clip.get(id(one), copied(one.grad)) for one in parameters],
            "options": [numbers_of(group) for group in optimizer.param_groups], "digest": digest_of(optimizer),
            "drawn": self.drawn, "trains": [one.requires_grad for one in parameters],
            "cleared": id(optimizer) in self.cleared,
            "line": line_in(self.folder),
            "sharded": any(hasattr(one, "to_local") or hasattr(one, "_is_flat_param") for one in parameters),
            "hooked": any(one._backward_hooks or getattr(one, "_post_accumulate_grad_hooks", None)
                          for one in parameters)})
        self.trained.update(self.given if self.backwards else ())
        self.given = []
        for one in parameters:
            self.before_clip.pop(id(one), None)
        self.forget()
        self.force(parameters)

    def let_go(self, number: int) -> None:
        """Of an update that is not looked at any more, only its figures stay."""
        self.bytes -= bytes_of(self.updates[number]["before"])
        self.updates[number].update(before=[], gradients=[], unclipped=[], after=[])

    def forget(self) -> None:
        self.loss, self.grads, self.backwards, self.joined, self.rows = 0.0, 0.0, 0, False, []
        self.cleared.clear()
        self.tilt.forget()

    def force(self, parameters: list[torch.Tensor]) -> None:
        """Another run's parameters and gradients, so that this update is its, too, and the next step begins there."""
        number = len(self.updates) - 1
        if self.forced is None or number >= len(self.forced):
            return
        own, other = self.updates[number], self.forced[number]
        if own["optimizer"] != other["optimizer"] or [one.shape for one in own["before"]] != [
                one.shape for one in other["before"]]:
            self.forced = None
            return
        with torch.no_grad():
            for parameter, value, gradient in zip(parameters, other["before"], other["gradients"], strict=True):
                parameter.data.copy_(value)
                if gradient is None:
                    parameter.grad = None
                elif parameter.grad is None or parameter.grad.is_sparse:
                    parameter.grad = gradient.to(parameter.device, parameter.dtype)
                else:
                    parameter.grad.data.copy_(gradient)

    def force_on(self, parameters: list[torch.Tensor]) -> None:
        """What the other run goes on with: it may have moved by other options."""
        number = len(self.updates) - 1
        if self.forced is not None and number < len(self.forced):
            for parameter, value in zip(parameters, self.forced[number]["after"], strict=True):
                parameter.data.copy_(value)

    def ended(self, optimizer: Any, _arguments: Any, _options: Any) -> None:
        self.depth -= 1
        if self.depth > 0:
            return
        if not self.is_left_out:
            self.updates[-1]["closure"] = self.backwards > 0
            self.force_on(parameters_of(optimizer))
            self.updates[-1]["after"] = [copied(one) for one in parameters_of(optimizer)]
            self.tilt.begin(len(self.updates), self.optimizers)
        used_up = self.forced is not None and len(self.updates) >= len(self.forced)
        if max(self.made) >= self.most or used_up or self.has_enough() or sum(self.alone) >= ALONE * self.most:
            self.ends("")

    def backward(self, outputs: Any, gradients: Any = None) -> None:
        self.tilt.used()
        self.before_clip.clear()
        self.loss += value_of(outputs, gradients)
        self.backwards += 1
        self.functions |= own_functions(outputs)

    def takes_gradients(self, outputs: Any, gradients: Any) -> None:
        """By torch.autograd.grad, of parameters: they count where no backward follows before the update."""
        self.tilt.used()
        self.grads += value_of(outputs, gradients)
        self.functions |= own_functions(outputs)

    def clears(self, optimizer: Any) -> None:
        if self.backwards > 0:
            self.cleared.add(id(optimizer))

    def clips(self, parameters: Any) -> None:
        for one in parameters:
            self.before_clip.setdefault(id(one), copied(one.grad))

    def install(self) -> None:
        register_optimizer_step_pre_hook(self.begins)
        register_optimizer_step_post_hook(self.ended)
        wrap_backward(self)
        wrap_clips(self)
        wrap_calls(self)
        optimizers: Any = torch.optim.Optimizer
        zero_grad = optimizers.zero_grad

        @functools.wraps(zero_grad)
        def clears(optimizer: Any, *arguments: Any, **options: Any) -> None:
            self.clears(optimizer)
            zero_grad(optimizer, *arguments, **options)
        optimizers.zero_grad = clears


def wrap_backward(steps: Steps) -> None:
    autograd: Any = torch.autograd
    backward, grad = autograd.backward, autograd.grad

    @functools.wraps(backward)
    def starts(tensors: Any, grad_tensors: Any = None, *more: Any, **options: Any) -> None:
        tensors = tensors if isinstance(tensors, torch.Tensor) else list(tensors)
        steps.backward(tensors, grad_tensors)
        backward(tensors, grad_tensors, *more, **options)
    autograd.backward = starts

    @functools.wraps(grad)
    def of_leaves(outputs: Any, inputs: Any, grad_outputs: Any = None, *more: Any, **options: Any) -> Any:
        outputs = outputs if isinstance(outputs, torch.Tensor) else list(outputs)
        inputs = inputs if isinstance(inputs, torch.Tensor) else list(inputs)
        leaves = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        creates = options.get("create_graph", more[1] if len(more) > 1 else False)
        if not creates and all(isinstance(one, torch.nn.Parameter) for one in leaves):
            steps.takes_gradients(outputs, grad_outputs)
        return grad(outputs, inputs, grad_outputs, *more, **options)
    autograd.grad = of_leaves


def wrap_clips(steps: Steps) -> None:
    utils: Any = torch.nn.utils
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        original = getattr(utils.clip_grad, name, None)
        if original is None:
            continue

        def clip(parameters: Any, *more: Any, original: Any = original, **options: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            steps.clips(parameters)
            return original(parameters, *more, **options)
        for owner in (utils, utils.clip_grad):
            setattr(owner, name, functools.wraps(original)(clip))


def wrap_calls(steps: Steps) -> None:
    """Whether this rank calls others."""
    asks: Any = distributed_c10d._rank_not_in_group
    engine: Any = DistributedDataParallel.forward

    @functools.wraps(asks)
    def is_left_out(group: Any) -> Any:
        steps.joined = steps.joined or sys._getframe(1).f_code.co_name not in ASKS
        return asks(group)
    distributed_c10d._rank_not_in_group = is_left_out

    @functools.wraps(engine)
    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        steps.joined = steps.joined or dist.is_initialized()
        return engine(self, *inputs, **named)
    DistributedDataParallel.forward = forward  # type: ignore[method-assign]
