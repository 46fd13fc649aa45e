"""Moves parameters a little along a direction, for one step, while the loss is computed: its central difference is what
the gradient must be. What the program holds constant there stays as it was: what it computes without gradients goes by
the parameters before the move, and `detach` gives what it gave in the run that was not moved."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from lockstep_torch.looking import parameters_of

MOST_DETACHED = 1 << 26  # numbers that are kept
DETACH = torch.Tensor.detach
SET_GRAD: Any = torch._C._set_grad_enabled


def line_in(folder: str) -> str | None:
    """The program's, in its working folder."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if (file := frame.f_code.co_filename).startswith(folder):
            return f"{file.removeprefix(folder)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class Tilt:
    """`probes`: of each, the number of its first update, whether that step calls a model, and for each optimizer by
    number its parameters' directions."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lines: set[str] = set()  # that detached something since the last update
        self.constant: set[str] = set()  # those before a backward
        self.size = 0.0
        self.probes: list[dict[str, Any]] = []
        self.moved: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # parameters, as they were, where to
        self.until = -1  # the update before which they come back
        self.prepared: list[tuple[torch.Tensor, torch.Tensor]] = []  # parameters that will be, and where to
        self.is_moved = False
        self.inside = False  # of what runs without gradients and is run again with them
        self.windows: list[list[torch.Tensor | None]] = [[]]  # by update: what detach gave
        self.kept: list[list[torch.Tensor | None]] = []  # the same of the run that was not moved
        self.numbers = 0
        self.place = 0  # in the window

    def begin(self, number: int, optimizers: list[Any]) -> None:
        """Before update `number`."""
        self.windows.append([])
        self.place = 0
        for probe in self.probes:
            if probe["first"] == number:
                self.until = number
                self.prepared = [(one, direction.to(one.device, one.dtype) * self.size)
                              for place, directions in probe["directions"].items()
                              for one, direction in zip(parameters_of(optimizers[place]), directions, strict=True)]
                if not probe["calls"]:
                    self.start()

    def start(self) -> None:
        """A model is called that the step trains, or nobody calls one."""
        if self.prepared:
            self.moved = [(one, one.data.clone(), by) for one, by in self.prepared]
            self.prepared = []
            self.move()

    def move(self) -> None:
        for one, _as_it_was, by in self.moved:
            one.data.add_(by)
        self.is_moved = True

    def put_back(self) -> None:
        for one, as_it_was, _by in self.moved:
            one.data.copy_(as_it_was)
        self.is_moved = False

    def end(self, number: int) -> None:
        if number == self.until:
            if self.is_moved:
                self.put_back()
            self.moved, self.prepared = [], []

    def gradients_wanted(self, wanted: bool) -> None:
        if not self.moved or self.inside:
            return
        if not wanted and self.is_moved:
            self.put_back()
        elif wanted and not self.is_moved:  # the program may have changed them meanwhile
            self.moved = [(one, one.data.clone(), by) for one, _as_it_was, by in self.moved]
            self.move()

    def detached(self, tensor: torch.Tensor) -> torch.Tensor:
        own = DETACH(tensor)
        if not tensor.requires_grad:
            return own
        caller = sys._getframe(2)
        if (file := caller.f_code.co_filename).startswith(self.folder):
            self.lines.add(f"{file.removeprefix(self.folder)}:{caller.f_lineno}")
        if tensor.is_leaf:
            return own  # and not a copy: the program may write to it
        if self.moved or self.prepared:
            window = self.kept[self.until] if self.until < len(self.kept) else []
            place, self.place = self.place, self.place + 1
            kept = window[place] if place < len(window) else None
            return own if kept is None or kept.shape != own.shape else kept.to(own.device, own.dtype).clone()
        self.numbers += own.numel()
        if not self.probes:
            self.windows[-1].append(own.cpu().clone() if self.numbers < MOST_DETACHED else None)
        return own

    def used(self) -> None:
        """A backward begins."""
        self.constant |= self.lines

    def forget(self) -> None:
        self.lines.clear()

    def install(self) -> None:
        @functools.wraps(DETACH)
        def detach(tensor: torch.Tensor) -> torch.Tensor:
            return self.detached(tensor)
        tensors: Any = torch.Tensor
        tensors.detach = detach
        if not self.probes:
            return

        def set_grad_enabled(wanted: bool) -> None:
            changes = torch.is_grad_enabled() != wanted  # torch turns them off for hooks of saved tensors by itself
            SET_GRAD(wanted)
            if changes:
                self.gradients_wanted(wanted)
        torch._C._set_grad_enabled = set_grad_enabled  # type: ignore[assignment]
        wrap_inference(self)
        wrap_checkpoint(self)


def wrap_inference(tilt: Tilt) -> None:
    mode: Any = torch.inference_mode
    enter, leave = mode.__enter__, mode.__exit__

    @functools.wraps(enter)
    def enters(self: Any) -> None:
        tilt.gradients_wanted(not self.mode)
        enter(self)

    @functools.wraps(leave)
    def leaves(self: Any, *error: Any) -> None:
        leave(self, *error)
        tilt.gradients_wanted(torch.is_grad_enabled())
    mode.__enter__, mode.__exit__ = enters, leaves


def wrap_checkpoint(tilt: Tilt) -> None:
    """An activation checkpoint's forward runs without gradients, and is part of the loss."""
    function: Any = torch.utils.checkpoint.CheckpointFunction
    original = function.forward

    def forward(*arguments: Any) -> Any:
        before, tilt.inside = tilt.inside, True
        try:
            return original(*arguments)
        finally:
            tilt.inside = before
    function.forward = staticmethod(functools.wraps(original)(forward))
