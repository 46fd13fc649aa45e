"""Data and checkpoints: what DataLoader gives the program, and which states it saves and loads."""

from __future__ import annotations

import functools
import operator
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler, Subset
from torch.utils.data import dataloader as loaders

from lockstep_torch import settings, states
from lockstep_torch.recording import Recording, listens, wrap

# ---- data ----

def sampler_of(loader: Any) -> Any:
    sampler = loader.sampler
    return sampler if isinstance(sampler, DistributedSampler) else getattr(loader.batch_sampler, "sampler", sampler)


def part_in(dataset: Any, sampler: Any) -> Any:
    """The Subset that is drawn whole. It may be this rank's share: its samples then go by their places in the data."""
    each = getattr(sampler, "sampler", sampler)
    whole = isinstance(each, SequentialSampler) or (isinstance(each, RandomSampler) and not each.replacement)
    return dataset if whole and isinstance(dataset, Subset) and torch.is_grad_enabled() else None


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


@listens("DataLoader's settings", early=True)
def loader_begins(here: Recording, loader: Any) -> None:
    """Of those that train: an evaluation's may be a rank's own."""
    if not torch.is_grad_enabled():
        return
    told = settings.of_loader(loader, sampler_of(loader))
    if here.loaders.isdisjoint(told) and len(here.loaders) < 1_000:
        here.loaders.update(told)
        here.of_data(lambda: here.configuration("loader", told))


@listens("DataLoader", early=True)
def pass_begins(here: Recording, loader: Any) -> None:
    loader_begins(loader)
    if here.resumes and torch.is_grad_enabled():
        states.goes_on()
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return  # it has no indices
    epoch, size = int(getattr(sampler_of(loader), "epoch", 0)), len(loader.dataset)
    if (part := part_in(loader.dataset, loader._index_sampler)) is not None:
        size = min(size * world_size(), len(part.dataset))
    if torch.is_grad_enabled():
        here.drawn = 0
        if here.rank is not None:
            here.places.note("pass", here.rank.step())
    here.of_data(lambda: here.rank.pass_begins(epoch, size))


@listens("DataLoader", early=True)
def dealt(here: Recording, iterator: Any, indices: Any) -> None:
    """The loader may be ahead of the program, by what its workers fetch."""
    ids = indices if isinstance(indices, (list, tuple)) else [indices]
    try:
        if (part := part_in(iterator._dataset, iterator._index_sampler)) is not None:
            ids = [part.indices[index] for index in ids]
        here.queues.setdefault(iterator, deque()).append([operator.index(index) for index in ids])
    except TypeError:
        pass  # a sampler of other things than positions


@listens("DataLoader", early=True)
def drawn(here: Recording, _batch: Any, iterator: Any) -> None:
    queue = here.queues.get(iterator)
    if not queue:
        return
    ids = queue.popleft()
    here.of_data(lambda: here.rank.dealt(ids))
    if torch.is_grad_enabled():
        here.drawn += 1


@listens("DataLoader", early=True)
def all_drawn(here: Recording) -> None:
    here.of_data(lambda: here.rank.pass_dealt())
    if here.rank is not None and torch.is_grad_enabled():
        here.rank.parameters_change()  # a rank may now evaluate with other weights


def wrap_loaders() -> None:
    iterators: Any = loaders._BaseDataLoaderIter
    next_index, next_batch = iterators._next_index, iterators.__next__

    @functools.wraps(next_index)
    def _next_index(iterator: Any) -> Any:
        indices = next_index(iterator)
        dealt(iterator, indices)
        return indices

    @functools.wraps(next_batch)
    def __next__(iterator: Any) -> Any:
        try:
            batch = next_batch(iterator)
        except StopIteration:
            all_drawn()
            raise
        drawn(batch, iterator)
        return batch

    iterators._next_index, iterators.__next__ = _next_index, __next__


@listens("DistributedSampler")
def set_epoch(here: Recording, _sampler: Any, epoch: int) -> None:
    here.rank.set_epoch(int(epoch))


# ---- checkpoints ----

def state_in(stored: Any) -> dict[str, torch.Tensor]:
    """The model's state in what is saved or loaded: itself, or what stands under one of the usual names."""
    candidates = [stored] if isinstance(stored, dict) else []
    candidates += [stored[key] for key in ("model", "state_dict", "model_state_dict")
                   if isinstance(stored, dict) and isinstance(stored.get(key), dict)]
    for candidate in reversed(candidates):
        if candidate and all(isinstance(value, torch.Tensor) for value in candidate.values()):
            return candidate
    return {}


def of_state(name: str, tell: Callable[[Any, str, dict[str, torch.Tensor]], None]) -> Callable[..., None]:
    """A hook of a file with a model's state in it; a data set's tensors are no checkpoint."""
    @listens(name)
    def hook(here: Recording, obj: Any, f: Any, *_arguments: Any, **_options: Any) -> None:
        if isinstance(f, (str, os.PathLike)) and (state := state_in(obj)):
            tell(here.rank, os.fspath(f), state)
    return hook


def tell_loaded(rank: Any, path: str, state: dict[str, torch.Tensor]) -> None:
    devices = sorted({str(tensor.device) for tensor in state.values()})
    rank.loaded(path, devices, devices, list(state))


saving = of_state("torch.save", lambda rank, path, _state: rank.saving(path))
saved = of_state("torch.save", lambda rank, path, _state: rank.saved(path))
loaded = of_state("torch.load", tell_loaded)


def install() -> None:
    wrap(DataLoader, "__iter__", before=pass_begins)
    wrap_loaders()
    wrap(DistributedSampler, "set_epoch", before=set_epoch)
    wrap((torch.serialization, torch), "save", saving,
         lambda _result, *arguments, **options: saved(*arguments, **options))
    wrap((torch.serialization, torch), "load", after=loaded)
