"""Numbers of 64 bits in place of the program's narrower ones: what is left of a difference is then a fault."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lockstep_torch import looking

WIDE = torch.float64
NARROW = frozenset((torch.float32, torch.float16, torch.bfloat16))


def widened(value: Any, deep: int = 8) -> Any:
    """The same with wide tensors, in the containers that files and batches are made of."""
    if looking.is_tensor(value):
        return value.data.to(WIDE).requires_grad_(value.requires_grad) if value.dtype in NARROW else value
    if deep == 0:
        return value
    if type(value) in (list, tuple):
        return type(value)(widened(each, deep - 1) for each in value)
    if isinstance(value, dict):
        for name, each in list(value.items()):
            value[name] = widened(each, deep - 1)
    return value


def returns_wide(owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def wide(*arguments: Any, **options: Any) -> Any:
        return widened(original(*arguments, **options))
    setattr(owner, name, wide)


def is_off(owner: type, *places: str) -> None:
    """`enabled` is False, whatever the program says."""
    original = owner.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def off(self: Any, *arguments: Any, **options: Any) -> None:
        given = dict(zip(places, arguments, strict=False)) | options
        original(self, **(given | {"enabled": False}))
    owner.__init__ = off  # type: ignore[misc]


def widen() -> None:
    torch.set_default_dtype(WIDE)
    storages: Any = torch.storage  # they keep what they are asked first, and are to know the dtypes by their own names
    storages._dtype_to_storage_type_map()
    storages._storage_type_to_dtype_map()
    for name in ("float", "float32", "half", "float16", "bfloat16"):
        setattr(torch, name, WIDE)
    for name in ("FloatTensor", "HalfTensor", "BFloat16Tensor"):
        setattr(torch, name, torch.DoubleTensor)
    for owner in (torch.Tensor, torch.nn.Module):
        for name in ("float", "half", "bfloat16"):
            setattr(owner, name, owner.double)
    for name in ("from_numpy", "tensor", "as_tensor", "asarray", "load"):
        returns_wide(torch, name)
    is_off(torch.amp.autocast_mode.autocast, "device_type", "dtype", "enabled", "cache_enabled")
    is_off(torch.amp.grad_scaler.GradScaler, "device", "init_scale", "growth_factor", "backoff_factor",
           "growth_interval", "enabled")
