"""More than data parallelism: which ranks train one model, and whether each of them holds only a part of it.

Ranks are compared within the group that an engine reduces gradients in, and no values are recorded of parts. Engines
are listened to where the program has imported them; nothing is imported for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from lockstep_torch import looking
from lockstep_torch.extension import extension
from lockstep_torch.recording import Recording, listens, wrap

WHOLE: Any = torch.Tensor.__torch_dispatch__  # what a plain tensor has, and no class that stands for several


def is_part(value: Any) -> bool:
    """Of a tensor that several ranks hold, or one that stands for others."""
    return looking.is_a(value, torch.Tensor) and (
        getattr(type(value), "__torch_dispatch__", WHOLE) is not WHOLE or getattr(value, "_fsdp_flattened", False))


def is_readable(value: Any) -> bool:
    """A tensor whose numbers can be read (record/readable.h). Those of a part may take a collective, or crash; a module
    that was not called yet may have parameters without any."""
    return (looking.is_a(value, torch.Tensor) and not is_part(value) and not torch.nn.parameter.is_lazy(value)
            and bool(extension().is_readable(value)))


def readable_tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [value for value in values if is_readable(value)]


def kind_of(part: Any) -> str:
    if getattr(part, "_fsdp_flattened", False):
        return "fully_sharded"
    return "tensor_parallel" if hasattr(part, "device_mesh") else ""


def any_part(here: Recording, parameters: list[Any]) -> bool:
    """Tells of an engine that nobody saw."""
    if not here.sharded and (part := next(filter(is_part, parameters), None)) is not None:
        is_sharded(here, kind_of(part))
    return here.sharded


def whole(here: Recording, parameters: list[Any]) -> list[Any]:
    """Those that all ranks should hold alike. In a module that FSDP took over they are what was added later: nobody
    shards it or averages its gradients. Beside other parts a tensor may be a part, too."""
    if not any_part(here, parameters):
        return parameters
    inside = {id(each) for module in here.shards for _, each in looking.parameters_in(module)} - here.ignored
    return [each for each in parameters if id(each) in inside and not is_part(each)]


def took_over(here: Recording, modules: Iterable[Any], parameters: Iterable[Any]) -> None:
    """Whole parameters that are there by now, and not among these, are left alone on purpose."""
    known = {id(each) for each in parameters}
    for module in modules:
        here.shards[module] = None
        here.ignored |= {id(each) for _, each in looking.parameters_in(module) if not is_part(each)} - known


def is_sharded(here: Recording, kind: str) -> None:
    """Only the first engine tells."""
    if not here.sharded:
        here.sharded = True
        here.rank.sharded(kind)


def replicas(here: Recording, group: Any, ranks: list[int] | None = None) -> None:
    """The first group counts."""
    if not here.grouped:
        here.grouped = True
        here.rank.group("replicas", group.group_name if group else "", ranks or dist.get_process_group_ranks(group))


# ---- engines ----

@listens("fully_shard")
def fully_sharded(here: Recording, _result: Any, _engine: Any, parameters: Any, modules: Any, mesh_info: Any,
                  *_more: Any, **_options: Any) -> None:
    is_sharded(here, "fully_sharded")
    took_over(here, modules, parameters)
    replicas(here, None, mesh_info.mesh.mesh.flatten().tolist())


@listens("FullyShardedDataParallel")
def wrapped(here: Recording, _result: Any, engine: Any, *_arguments: Any, **_options: Any) -> None:
    """Where replicas are sharded within nodes, the group is one node's: it is then taken for all ranks."""
    is_sharded(here, "fully_sharded")
    took_over(here, [engine], [])
    within = getattr(engine, "_inter_node_pg", None) is None
    replicas(here, engine.process_group if within else dist.group.WORLD)


@listens("pipeline stages")
def stage_made(here: Recording, *_arguments: Any, **_options: Any) -> None:
    if not here.staged:
        here.staged = True
        here.rank.engine("pipeline")


@listens("DeepSpeed")
def deepspeed_begins(here: Recording, *_arguments: Any, **_options: Any) -> None:
    is_sharded(here, "deepspeed")


@listens("DeepSpeed")
def deepspeed_made(here: Recording, _result: Any, engine: Any, *_arguments: Any, **_options: Any) -> None:
    if isinstance(group := getattr(engine, "data_parallel_group", None), dist.ProcessGroup):
        replicas(here, group)


ENGINES: dict[tuple[str, str], dict[str, Any]] = {
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup"): {"after": fully_sharded},
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"): {"after": wrapped},
    ("torch.distributed.pipelining.stage", "_PipelineStageBase"): {"before": stage_made},
    ("deepspeed.runtime.engine", "DeepSpeedEngine"): {"before": deepspeed_begins, "after": deepspeed_made},
}
listened: set[tuple[str, str]] = set()


@listens("engines", early=True)
def find_engines(_here: Recording) -> None:
    for module, name in ENGINES.keys() - listened:
        if (owner := getattr(sys.modules.get(module), name, None)) is not None:
            listened.add((module, name))
            wrap(owner, "__init__", **ENGINES[module, name])
