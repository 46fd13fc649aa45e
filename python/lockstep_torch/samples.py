"""Which samples a loader gives, as numbers that ranks can be compared by: positions in a data set, with what tells that
set from another; and where there are no positions, hashes of the samples' content.

Nothing here draws a sample, reads all of the data, waits for a device, or calls a method of the program's but a data
set's __len__.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import pathlib
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, SequentialSampler, Subset

from lockstep_torch import looking, parallel
from lockstep_torch.extension import extension
from lockstep_torch.looking import attribute, is_a

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
    kind = type(value)
    if value is None:
        return "None"
    for base in (bool, int, float, complex):
        if is_a(value, base):
            return base.__repr__(value)
    if is_a(value, str, bytes):
        plain: Any = str.__str__(value) if is_a(value, str) else bytes.__getitem__(value, slice(None))
        return plain if len(plain) <= LETTERS else (len(plain), [plain[place] for place in places(len(plain), LETTERS)])
    if is_path(value):
        return str(value)
    if kind is torch.Generator:
        return value.initial_seed()
    if kind in looking.PLAIN:
        there = is_here(value) and value.layout == torch.strided
        numbers = value.detach()[places_in(value.shape, MOST)].tolist() if there else []
        return value.dtype, () if value.is_nested else tuple(value.shape), numbers
    if looking.is_numpys(value):
        numbers = [] if value.dtype.hasobject else [value.flat[place].item() for place in places(value.size)]
        return value.dtype, value.shape, numbers
    if looking.is_pandas(value):
        rows = value.iloc[places(len(value))].to_numpy().tolist()
        return value.shape, [[leaf(each) for each in row] if type(row) is list else leaf(row) for row in rows]
    return None


def is_here(value: Any) -> bool:
    """A tensor of torch's own that is read without waiting for a device."""
    return type(value) in looking.PLAIN and value.is_cpu and parallel.is_readable(value)


def is_path(value: Any) -> bool:
    return looking.module_of(type(value)).partition(".")[0] == "pathlib" and is_a(value, pathlib.PurePath)


def parts(value: Any, most: int) -> list[tuple[Any, Any]]:
    """What it keeps in C or in a file is not seen. A transform is no data."""
    count = looking.rows_in(value)
    if looking.is_row(value):
        return [("length", count), *((place, looking.row(value, place)) for place in places(count, most))]
    if count >= 0:
        items = looking.items(value)
        return [("length", count), *(items[place] for place in places(count, most))]
    if callable(value) and not is_a(value, Dataset):
        return []
    return sorted(looking.attributes(value).items(), key=operator.itemgetter(0))


def feed(digest: Any, value: Any, budget: int) -> None:
    digest.update(str(type.__dict__["__qualname__"].__get__(type(value))).encode())
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
    """-1: not known. The one method of the program's that is called for a data set: samplers call it as well."""
    if (count := looking.rows_in(dataset)) >= 0:
        return count
    if looking.is_numpys(dataset) or type(dataset) in looking.PLAIN:
        return int(dataset.shape[0]) if dataset.ndim > 0 else -1
    if is_a(dataset, Subset) and type(dataset).__len__ is Subset.__len__:
        return length(attribute(dataset, "indices"))
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # a batch sampler may know how much there is
        return -1


def position(index: Any) -> int | None:
    """None of what is none."""
    if is_a(index, int):
        return int.__index__(index)
    if (looking.is_numpys(index) or type(index) in looking.PLAIN) and index.ndim == 0 and is_whole(index):
        return int(index)
    return None


def is_whole(index: Any) -> bool:
    return is_here(index) if type(index) in looking.PLAIN else index.dtype.kind in "iu"


def sampler_of(loader: Any) -> Any:
    sampler = attribute(loader, "sampler")
    return sampler if is_a(sampler, DistributedSampler) else inner(attribute(loader, "batch_sampler"), sampler)


def inner(sampler: Any, default: Any) -> Any:
    """That of a batch sampler."""
    return looking.attributes(sampler).get("sampler", default)


def index_in(indices: Any, place: int) -> Any:
    """Of a Subset, by whatever it keeps them in; None where that is the program's own."""
    if looking.is_row(indices):
        return looking.row(indices, place)
    return indices[place] if looking.is_numpys(indices) or is_here(indices) else None


def origin(dataset: Any, index: Any = None) -> tuple[Any, Any]:
    """The data set that a Subset, or a Subset of one, was taken from, and the place in it."""
    while is_a(dataset, Subset):
        index = index if index is None else position(index_in(attribute(dataset, "indices"), index))
        dataset = attribute(dataset, "dataset")
    return dataset, index


def is_in_order(part: Any) -> bool:
    there = [origin(part, place)[1] for place in places(max(length(part), 0))]
    return None not in there and there == sorted(there)


def is_part(dataset: Any, sampler: Any) -> bool:
    """A Subset that is drawn whole may be this rank's share: its samples then go by their places in the data. Not where
    it has an order of its own and is drawn in that: it would look shuffled."""
    if not is_a(dataset, Subset) or not torch.is_grad_enabled():
        return False
    each = inner(sampler, sampler)
    if is_a(each, RandomSampler):
        return attribute(each, "replacement") is False
    return is_a(each, SequentialSampler) and is_in_order(dataset)


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def names_in(item: Any) -> list[str]:
    """File names without their folders, which may differ between machines; of a (file, class), the file's."""
    parts = (looking.members(item) or [])[:COLUMNS] if is_a(item, tuple, list) else [item]
    return [os.path.basename(str(leaf(part))) for part in parts if is_a(part, str) or is_path(part)]


def is_table(value: Any, count: int) -> bool:
    """A tensor, an array or a table of pandas with a row for each sample."""
    if looking.is_numpys(value) or looking.is_pandas(value) or is_here(value):
        return list(value.shape)[:1] == [count]
    return False


def samples_in(dataset: Any, count: int) -> tuple[int, int]:
    """Hashes of what it has an item of for each sample: of the names, whatever their order; and of names and numbers,
    in order. 0: there are none. Of other objects nothing is known."""
    held = list(looking.attributes(dataset).values())
    for value in list(held):
        if 0 <= looking.rows_in(value) <= COLUMNS and not is_a(value, range):
            held += looking.members(value) or []
    rows = [value for value in held if is_a(value, list, tuple) and looking.rows_in(value) == count > 0]
    lists = {id(value): value for value in rows}
    named = [value for value in lists.values() if names_in(looking.row(value, 0))]
    some = [[names_in(looking.row(value, place)) for place in places(count)] for value in named]
    tables = [value for value in held if count > 0 and is_table(value, count)]
    content = identity([some, tables]) if some or tables else 0
    if not named:
        return 0, content
    if count > NAMES:
        return content, content
    return sum(zlib.crc32(name.encode(errors="surrogatepass"))
               for value in named for item in looking.members(value) or [] for name in names_in(item)), content


def dealt_by_a_sampler(dataset: Any, size: int) -> tuple[int, int]:
    """As `identities`. A DistributedSampler takes positions for the same samples on all ranks: a rank's own share goes
    by other ids, and data that should be the same are of other content."""
    if not is_a(dataset, Subset):
        return samples_in(dataset, size)
    is_share = is_in_order(dataset) and size * world_size() < length(origin(dataset)[0]) + world_size()
    content = identity(attribute(dataset, "indices"))
    return content if is_share else 0, content


def identities(loader: Any, size: int) -> tuple[int, int]:
    """Of what positions are of, so many; and of the samples at these positions. 0: not known."""
    dataset = attribute(loader, "dataset")
    if is_a(sampler := sampler_of(loader), DistributedSampler):
        return dealt_by_a_sampler(dataset, size) if attribute(sampler, "num_replicas") == world_size() else (0, 0)
    return identity(origin(dataset)[0] if is_part(dataset, loader._index_sampler) else dataset), 0


# ---- content of samples ----

COLUMNS = 16


def columns(batch: Any) -> list[torch.Tensor] | None:
    """The batch's tensors with a row for each sample; None where it holds other things too, or they are on a device."""
    if batch is None:
        return []
    if is_a(batch, torch.Tensor):
        return [batch.detach()] if is_here(batch) and batch.layout == torch.strided and batch.dim() > 0 else None
    held = looking.members(batch)
    if held and is_a(batch, list, tuple) and all(is_a(item, str, bytes) for item in held):
        hashes = [hashlib.blake2b(repr(leaf(item)).encode(errors="surrogatepass"), digest_size=8) for item in held]
        return [torch.tensor([list(each.digest()) for each in hashes], dtype=torch.uint8, device="cpu")]
    if held is None or len(held) > COLUMNS:
        return None
    found: list[torch.Tensor] = []
    for item in held:
        inside = columns(item)
        if inside is None:
            return None
        found += inside
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
    tensors = [each for each in tensors if each.layout == torch.strided and each.dim() > 0]
    if len({len(each) for each in tensors}) > 1:  # not all of them have a row for each sample
        tensors = [each.unsqueeze(0) for each in tensors]
    hashes: list[int] = extension().hash_samples(tensors)
    return len(hashes), sum(hashes) % (1 << 64)
