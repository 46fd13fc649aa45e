"""A program that asks for CUDA gets the CPU in its place."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def is_cuda(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.split(":")[0] == "cuda")


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, _types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = {name: CPU if is_cuda(value) else value for name, value in (options or {}).items()}
        if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return arguments[0]
        if function is torch.Tensor.to and len(arguments) > 1 and type(arguments[1]) is int:
            arguments = (arguments[0], CPU, *arguments[2:])
        if type(options.get("device")) is int:
            options["device"] = CPU
        if function is torch.device and any(map(is_cuda, arguments)):
            return CPU
        return function(*(CPU if is_cuda(value) else value for value in arguments), **options)


def number() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def nothing(*_arguments: Any, **_options: Any) -> None:
    return None


def without_devices(original: Any) -> Any:
    @functools.wraps(original)
    def begin(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *more: Any,
              **options: Any) -> None:
        original(self, module, None, None, *more, **options)
    return begin


def to_cpu(load: Any) -> Any:
    @functools.wraps(load)
    def loads(file: Any, _map_location: Any = None, *more: Any, **options: Any) -> Any:
        options.pop("map_location", None)
        return load(file, "cpu", *more, **options)
    return loads


def on_cpu() -> None:
    """All that computes. What asks a GPU about itself is not answered."""
    mode: Any = OnCpu()
    mode.__enter__()
    cuda: Any = torch.cuda
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(cuda, name, nothing)
    cuda.is_available, cuda.current_device = lambda: True, number
    cuda.device, cuda.get_device_name = contextlib.nullcontext, lambda *_device: "CPU"
    batch_norm: Any = torch.nn.SyncBatchNorm
    batch_norm.convert_sync_batchnorm = classmethod(lambda _kind, module, *_group: module)
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    engine: Any = DistributedDataParallel
    engine.__init__ = without_devices(engine.__init__)
    modules: Any = torch.nn.Module
    modules.cuda = lambda self, *_device: self
    torch.load = to_cpu(torch.load)
