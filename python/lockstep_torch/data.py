"""What DataLoader gives the program."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.data import dataloader as loaders

from lockstep_torch import looking, samples, settings
from lockstep_torch.looking import attribute, is_a
from lockstep_torch.recording import Recording, in_place_of, listens, wrap


@listens("what data are", early=True)
def identities(here: Recording, loader: Any, size: int) -> tuple[int, int]:
    """Looked at in the first passes alone; of a later one what is known of its data set."""
    here.identified += 1
    if here.identified <= IDENTIFIED:
        return samples.identities(loader, size)
    with contextlib.suppress(TypeError):  # of an object without weak references
        _size, content, as_set = here.sets.get(attribute(loader, "dataset"), UNKNOWN)
        return content, as_set
    return 0, 0


IDENTIFIED = 16  # passes
UNKNOWN = 0, 0, 0  # of a data set
MOST_OF_A_PASS = 8_192  # positions whose content is told, over all ranks
MOST_CONTENTS = 65_536  # of this rank, in all passes


@listens("content of samples", early=True)
def content(_here: Recording, batch: Any) -> list[int]:
    return samples.content(batch)


def contents(here: Recording, batch: Any, ids: list[int], data: Any) -> tuple[list[int], list[int]]:
    """Some positions of a batch to train on, and what stands there: another rank may hold other samples there."""
    if here.contents >= MOST_CONTENTS or not torch.is_grad_enabled():
        return [], []
    size, *_ = here.sets.get(data, UNKNOWN)
    one_of = max(1, -(-size // MOST_OF_A_PASS))  # in every pass the same positions, on every rank
    places = [place for place, id_ in enumerate(ids) if id_ % one_of == 0]
    hashes = (content(batch) or []) if places else []
    if len(hashes) != len(ids):
        return [], []
    here.contents += len(places)
    return [ids[place] for place in places], [hashes[place] for place in places]


@listens("DataLoader's settings", early=True)
def loader_begins(here: Recording, loader: Any, size: int) -> None:
    """Of those that train: an evaluation's may be a rank's own."""
    if not torch.is_grad_enabled():
        return
    told = settings.of_loader(loader, samples.sampler_of(loader), size)
    if here.loaders.isdisjoint(told) and len(here.loaders) < 1_000:
        here.loaders.update(told)
        here.of_data(lambda: here.rank.settings("loader", told))


@listens("DataLoader", early=True)
def pass_begins(here: Recording, loader: Any) -> None:
    if (stays := attribute(loader, "_iterator")) is not None:  # what it fetched for a pass before is thrown away
        here.queues.pop(stays, None)
    data = attribute(loader, "dataset")
    size = samples.length(data)
    loader_begins(loader, size)
    if is_a(data, IterableDataset):  # its length may be a guess, or one rank's
        epoch, size, told = attribute(data, "epoch"), 0, (0, 0)
    else:
        deal = (samples.sampler_of(loader), attribute(loader, "batch_sampler"))
        epoch = next((each for each in (attribute(one, "epoch") for one in deal) if each is not None), 0)
        told = identities(loader, size) or (0, 0)
        if samples.is_part(data, loader._index_sampler):
            size = min(size * samples.world_size(), samples.length(attribute(data, "dataset")))
        with contextlib.suppress(TypeError):  # of an object without weak references
            here.sets[data] = max(size, 0), *told
    epoch = epoch if type(epoch) is int else 0
    if torch.is_grad_enabled():
        here.drawn = 0
        if here.rank is not None:
            here.places.note("pass", here.rank.step())
    here.of_data(lambda: here.rank.pass_begins(epoch, max(size, 0), *told))


@listens("DataLoader's settings", early=True)
def workers_begin(here: Recording, iterator: Any, _loader: Any) -> None:
    """What they seed their generators with."""
    if torch.is_grad_enabled() and (seed := getattr(iterator, "_base_seed", None)) and iterator._num_workers > 0:
        here.of_data(lambda: here.rank.workers(seed))


@listens("DataLoader", early=True)
def dealt(here: Recording, iterator: Any, indices: Any) -> None:
    """The loader may be ahead of the program, by what its workers fetch."""
    ids = [indices] if (several := looking.members(indices)) is None else several
    if not getattr(iterator, "_in_order", True):
        return  # which batch comes next is not known
    if samples.is_part(iterator._dataset, iterator._index_sampler):
        ids = [samples.origin(iterator._dataset, samples.position(index))[1] for index in ids]
    places = [samples.position(index) for index in ids]
    # A sampler may give other things than positions: of such a batch nobody knows which samples it holds.
    here.queues.setdefault(iterator, deque()).append([] if None in places else places)


def was_looked_at(here: Recording) -> None:
    """The batch before, drawn without gradients, where neither a forward of DistributedDataParallel nor a backward
    came: the program evaluates."""
    if here.only_looks and here.rank is not None:
        here.rank.take_dealt(False)
    here.only_looks = False


@listens("DataLoader", early=True)
def failed(here: Recording, iterator: Any) -> None:
    """A batch that could not be fetched: the program may leave it out."""
    if queue := here.queues.get(iterator):
        queue.popleft()


@listens("DataLoader", early=True)
def drawn(here: Recording, batch: Any, iterator: Any) -> None:
    some: tuple[list[int], list[int]] = [], []
    if is_a(iterator._dataset, IterableDataset):
        ids = (content(batch) or []) if torch.is_grad_enabled() else []
    elif queue := here.queues.get(iterator):
        ids = queue.popleft()
        some = contents(here, batch, ids, iterator._dataset)
    else:
        return
    was_looked_at(here)
    of = here.sets.get(iterator._dataset, UNKNOWN)
    here.of_data(lambda: here.rank.dealt(ids, *some, of))
    if torch.is_grad_enabled():
        here.drawn += 1
    else:
        here.only_looks = True


def take_drawn(here: Recording) -> None:
    """What was drawn is trained on, but for what a forward of DistributedDataParallel took."""
    while here.drawn > 0:
        here.drawn -= 1
        here.rank.take_dealt(True)


@listens("DataLoader", early=True)
def all_drawn(here: Recording) -> None:
    was_looked_at(here)
    here.of_data(lambda: here.rank.pass_dealt())
    if here.rank is not None and torch.is_grad_enabled():
        here.rank.parameters_change()  # a rank may now evaluate with other weights


def wrap_loaders() -> None:
    iterators: Any = loaders._BaseDataLoaderIter
    next_index, next_batch = iterators._next_index, iterators.__next__

    @in_place_of(next_index)
    def _next_index(iterator: Any) -> Any:
        indices = next_index(iterator)
        dealt(iterator, indices)
        return indices

    @in_place_of(next_batch)
    def __next__(iterator: Any) -> Any:
        try:
            batch = next_batch(iterator)
        except StopIteration:
            all_drawn()
            raise
        except Exception:
            failed(iterator)
            raise
        drawn(batch, iterator)
        return batch

    iterators._next_index, iterators.__next__ = _next_index, __next__


@listens("DistributedSampler")
def set_epoch(here: Recording, _sampler: Any, epoch: int) -> None:
    here.rank.set_epoch(int(epoch))


def install() -> None:
    wrap(DataLoader, "__iter__", before=pass_begins, after=workers_begin)
    wrap_loaders()
    wrap(DistributedSampler, "set_epoch", before=set_epoch)
