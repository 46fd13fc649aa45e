"""Hooks that the recorder puts on modules of the program's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


class ModuleHook:
    """A hook of one of the program's modules. It may be copied and pickled with it, and be read where there is no
    Lockstep: the copy has a function that does nothing. torch.save leaves it out: torch.load refuses functions."""

    REFUSED_BY = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)  # they compute otherwise with a hook

    def __init__(self, tell: Callable[..., Any]) -> None:
        self.tell = tell

    def __call__(self, *arguments: Any) -> None:
        self.tell(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    @classmethod
    def put_on(cls, module: torch.nn.Module, tell: Callable[..., Any], with_kwargs: bool = False) -> Any:
        """None where it is not put on."""
        if isinstance(module, cls.REFUSED_BY):
            return None
        return module.register_forward_pre_hook(cls(tell), with_kwargs=with_kwargs)

    @classmethod
    def leave(cls, module: torch.nn.Module) -> list[tuple[torch.nn.Module, int, Any, bool]]:
        """For what refuses modules with hooks; those that were there."""
        left = []
        for part in module.modules():
            for key, hook in list(part._forward_pre_hooks.items()):
                if isinstance(hook, cls) or isinstance(getattr(hook, "__self__", None), contextlib.nullcontext):
                    del part._forward_pre_hooks[key]
                    left.append((part, key, hook, part._forward_pre_hooks_with_kwargs.pop(key, False)))
        return left

    @classmethod
    @contextlib.contextmanager
    def aside(cls, modules: list[torch.nn.Module]) -> Iterator[None]:
        left = [each for module in modules for each in cls.leave(module)]
        try:
            yield
        finally:
            for part, key, hook, with_kwargs in left:
                part._forward_pre_hooks[key] = hook
                if with_kwargs:
                    part._forward_pre_hooks_with_kwargs[key] = True
