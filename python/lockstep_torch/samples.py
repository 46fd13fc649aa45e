"""Which samples a loader gives, as numbers that ranks can be compared by: positions in a data set, with what tells that
set from another; and where there are no positions, hashes of the samples' content.

Nothing here draws a sample, reads all of the data, or waits for a device.
"""

from __future__ import annotations

import functools
import hashlib
import os
import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, SequentialSampler, Subset

from lockstep_torch.extension import extension

# ---- data sets ----

MOST = 64  # of a long list or tensor are looked at
LETTERS = 4096  # of a text
BUDGET = 4096  # parts, of a data set
NAMES = 65_536  # are all looked at


def places(count: int, most: int = MOST) -> list[int]:
    """Some of them, in ascending order; spread by a prime, since data have columns."""
    return list(range(count)) if count <= most else sorted({place * 2654435761 % count for place in range(most)})


@functools.lru_cache(maxsize=64)
def places_in(shape: torch.Size, most: int) -> Any:
    wanted = torch.tensor(places(shape.numel(), most), dtype=torch.long, device="cpu")
    return torch.unravel_index(wanted, shape)


def leaf(value: Any) -> Any:
    """A few numbers or letters that stand for it; None where it has parts."""
    if value is None or isinstance(value, (bool, int, float, complex)):
        return repr(value)
    if isinstance(value, (str, bytes)):
        return value if len(value) <= LETTERS else (len(value), [value[place] for place in places(len(value), LETTERS)])
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if isinstance(value, torch.Tensor):
        there = value.device.type == "cpu" and value.layout == torch.strided and not value.is_nested
        numbers = value.detach()[places_in(value.shape, MOST)].tolist() if there else []
        return value.dtype, tuple(value.shape), numbers
    if hasattr(type(value), "__array_interface__"):  # numpy's
        numbers = [] if value.dtype.hasobject else [value.flat[place].item() for place in places(value.size)]
        return value.dtype, value.shape, numbers
    if type(value).__module__.startswith("pandas.") and hasattr(value, "iloc"):
        return value.shape, value.iloc[places(len(value))].to_numpy().tolist()
    return None


def parts(value: Any, most: int) -> list[tuple[Any, Any]]:
    """What it keeps in C or in a file is not seen. A transform is no data."""
    if isinstance(value, (list, tuple, range)):
        return [("length", len(value)), *((place, value[place]) for place in places(len(value), most))]
    if isinstance(value, dict):
        keys = list(value)
        return [("length", len(keys)), *((keys[place], value[keys[place]]) for place in places(len(keys), most))]
    if callable(value) and not isinstance(value, Dataset):
        return []
    return sorted(getattr(value, "__dict__", {}).items())


def feed(digest: Any, value: Any, budget: int) -> None:
    digest.update(type(value).__qualname__.encode())
    if (short := leaf(value)) is not None:
        digest.update(repr(short).encode(errors="surrogatepass"))
        return
    found = parts(value, min(MOST, max(1, budget // 8)))
    share = budget // (len(found) + 1)
    for name, part in found if share > 0 else []:
        digest.update(repr(leaf(name)).encode(errors="surrogatepass"))
        feed(digest, part, share)


def identity(data: Any) -> int:
    """Equal for equal data. It is another one where anything differs that is kept beside them, such as the rank."""
    digest = hashlib.blake2b(digest_size=8)
    feed(digest, data, BUDGET)
    return int.from_bytes(digest.digest(), "little")


def length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # a batch sampler may know how much there is
        return 0


def sampler_of(loader: Any) -> Any:
    sampler = loader.sampler
    return sampler if isinstance(sampler, DistributedSampler) else getattr(loader.batch_sampler, "sampler", sampler)


def origin(dataset: Any, index: Any = None) -> tuple[Any, Any]:
    """The data set that a Subset, or a Subset of one, was taken from, and the place in it."""
    while isinstance(dataset, Subset):
        index = index if index is None else dataset.indices[index]
        dataset = dataset.dataset
    return dataset, index


def is_in_order(part: Any) -> bool:
    there = [int(origin(part, place)[1]) for place in places(len(part))]
    return there == sorted(there)


def is_part(dataset: Any, sampler: Any) -> bool:
    """A Subset that is drawn whole may be this rank's share: its samples then go by their places in the data. Not where
    it has an order of its own and is drawn in that: it would look shuffled."""
    if not isinstance(dataset, Subset) or not torch.is_grad_enabled():
        return False
    each = getattr(sampler, "sampler", sampler)
    if isinstance(each, RandomSampler):
        return not each.replacement
    return isinstance(each, SequentialSampler) and is_in_order(dataset)


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def names_in(item: Any) -> list[str]:
    """File names without their folders, which may differ between machines; of a (file, class), the file's."""
    parts = item[:COLUMNS] if isinstance(item, (tuple, list)) else [item]
    return [os.path.basename(os.fspath(part)) for part in parts if isinstance(part, (str, os.PathLike))]


def is_table(value: Any, count: int) -> bool:
    """A tensor, an array or a table of pandas with a row for each sample."""
    if isinstance(value, (str, bytes, list, tuple, dict)) or leaf(value) is None:
        return False
    return list(getattr(value, "shape", ()))[:1] == [count]


def samples_in(dataset: Any) -> tuple[int, int]:
    """Hashes of what it has an item of for each sample: of the names, whatever their order; and of names and numbers,
    in order. 0: there are none. Of other objects nothing is known."""
    count = length(dataset)
    held = list(getattr(dataset, "__dict__", {}).values())
    for value in list(held):
        if isinstance(value, (list, tuple, dict)) and len(value) <= COLUMNS:
            held += value.values() if isinstance(value, dict) else value
    lists = {id(value): value for value in held if isinstance(value, (list, tuple)) and len(value) == count > 0}
    named = [value for value in lists.values() if names_in(value[0])]
    some = [[names_in(value[place]) for place in places(count)] for value in named]
    tables = [value for value in held if count > 0 and is_table(value, count)]
    content = identity([some, tables]) if some or tables else 0
    if not named:
        return 0, content
    if count > NAMES:
        return content, content
    return sum(zlib.crc32(name.encode(errors="surrogatepass"))
               for value in named for item in value for name in names_in(item)), content


def dealt_by_a_sampler(dataset: Any) -> tuple[int, int]:
    """As `identities`. A DistributedSampler takes positions for the same samples on all ranks: a rank's own share goes
    by other ids, and data that should be the same are of other content."""
    if not isinstance(dataset, Subset):
        return samples_in(dataset)
    is_share = is_in_order(dataset) and len(dataset) * world_size() < length(origin(dataset)[0]) + world_size()
    content = identity(dataset.indices)
    return content if is_share else 0, content


def identities(loader: Any) -> tuple[int, int]:
    """Of what positions are of; and of the samples at these positions. 0: not known."""
    dataset = loader.dataset
    if isinstance(sampler := sampler_of(loader), DistributedSampler):
        return dealt_by_a_sampler(dataset) if sampler.num_replicas == world_size() else (0, 0)
    return identity(origin(dataset)[0] if is_part(dataset, loader._index_sampler) else dataset), 0


# ---- content of samples ----

COLUMNS = 16


def columns(batch: Any) -> list[torch.Tensor] | None:
    """The batch's tensors with a row for each sample; None where it holds other things too, or they are on a device."""
    if batch is None:
        return []
    if isinstance(batch, torch.Tensor):
        there = batch.device.type == "cpu" and batch.layout == torch.strided and not batch.is_nested
        return [batch.detach()] if there and batch.dim() > 0 else None
    if isinstance(batch, (list, tuple)) and batch and all(isinstance(item, (str, bytes)) for item in batch):
        hashes = [hashlib.blake2b(repr(leaf(item)).encode(errors="surrogatepass"), digest_size=8) for item in batch]
        return [torch.tensor([list(each.digest()) for each in hashes], dtype=torch.uint8, device="cpu")]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, (list, tuple)) or len(batch) > COLUMNS:
        return None
    found: list[torch.Tensor] = []
    for item in batch:
        inner = columns(item)
        if inner is None:
            return None
        found += inner
    return found


def content(batch: Any) -> list[int]:
    """For each sample a hash of its content, less than 0, equal for equal samples. Empty where it cannot be told."""
    found = columns(batch) or []
    if not found or len(found) > COLUMNS or len({len(column) for column in found}) > 1:
        return []
    hashes: list[int] = extension().hash_samples(found)
    return [(each | 1 << 63) - (1 << 64) for each in hashes]


def given(tensors: list[torch.Tensor]) -> tuple[int, int]:
    """How many samples a forward is given, and a number that is equal for equal samples in any order. (0, 0): not
    known."""
    tensors = [each for each in tensors if each.layout == torch.strided and not each.is_nested and each.dim() > 0]
    if len({len(each) for each in tensors}) > 1:  # not all of them have a row for each sample
        tensors = [each.reshape(1, -1) for each in tensors]
    hashes: list[int] = extension().hash_samples(tensors)
    return len(hashes), sum(hashes) % (1 << 64)
