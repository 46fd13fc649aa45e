"""Where torch is listened to. Each hook tells the C++ recorder (extension.Rank) what happened, and changes nothing.

The calls that are wrapped keep their signature and their result. What goes wrong in a hook is said once, and that hook
listens no longer; the program never sees it. A process that was forked from a recorded one records nothing.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lockstep_torch import calls, data, looking, parallel, recording, schedules, states, training
from lockstep_torch.extension import DoesNotFit, extension
from lockstep_torch.inside import say
from lockstep_torch.recording import Recording, active, in_place_of, listens, wrap


def kind_of(backend: Any) -> Any:
    return dist.Backend.backend_type_map.get(backend.name(), dist.ProcessGroup.BackendType.CUSTOM)


def observe_group(here: Recording, group: Any) -> None:
    """Puts the recorder around each backend of the group; two devices may share one.

    A group keeps the first backend that it was given of a type (c10d's ProcessGroup::setBackend), so the recorder's
    comes under a type that the group has none of.
    """
    kinds = dist.ProcessGroup.BackendType
    taken = {kind_of(group._get_backend(device)) for device in group._device_types}
    free = [kind for kind in (kinds.CUSTOM, kinds.MPI, kinds.UCC) if kind not in taken]
    observed: list[tuple[Any, Any, Any]] = []
    for device in group._device_types:
        backend = group._get_backend(device)
        known = [each for each in observed if each[0] is backend]
        if not known:
            known = [(backend, free[len(observed)], here.rank.observe(backend))]
            observed += known
            here.backends.setdefault(group.group_name, []).append((known[0][2], backend))
            here.had_group = True
        group._register_backend(device, known[0][1], known[0][2])


def inside_of(here: Recording, backend: Any) -> Any:
    """torch's backend, of one of the recorder's; else the same."""
    pairs = itertools.chain.from_iterable(here.backends.values())
    return next((inner for outer, inner in pairs if outer is backend), backend)


def wrap_get_backend() -> None:
    """Python asks a backend for what only its own class has, so it is shown torch's; c10d calls the recorder's."""
    groups: Any = dist.ProcessGroup
    original = groups._get_backend

    @in_place_of(original)
    def _get_backend(group: Any, device: Any) -> Any:
        backend = original(group, device)
        here = active()
        return inside_of(here, backend) if here else backend
    groups._get_backend = _get_backend


def begins_to_join(here: Recording, name: str, ranks: list[int]) -> None:
    if name not in here.groups:
        here.groups.add(name)
        here.rank.group("join", name, ranks)


@listens("who begins", early=True)
def job_begins(here: Recording, _backend: Any = None, init_method: Any = None, _timeout: Any = None,
               world_size: int = -1, rank: int = -1, *_more: Any, **_options: Any) -> None:
    """Before the ranks have found each other, which may never happen. Another init_method than env:// may tell the rank
    only afterwards."""
    if init_method in (None, "env://"):
        rank = int(os.environ.get("RANK", "-1")) if rank < 0 else rank
        world_size = int(os.environ.get("WORLD_SIZE", "-1")) if world_size < 0 else world_size
    if 0 <= rank < world_size:
        here.begin(rank, world_size)
        begins_to_join(here, "0", list(range(world_size)))


def name_of_group(more: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The argument after the backend and the store."""
    return str(more[2] if len(more) > 2 else options["group_name"])


@listens("who begins")
def group_begins(here: Recording, _size: int, _rank: int, ranks: list[int], *more: Any, **options: Any) -> None:
    """Ranks that will not be in it make it, too, unless its name is a hash. Of the first group `ranks` is empty."""
    if ranks and (name := name_of_group(more, options)).isdigit():
        begins_to_join(here, name, list(ranks))


@listens("process groups", early=True)
def group_made(here: Recording, result: Any, size: int, rank: int, ranks: list[int], *more: Any,
               **options: Any) -> None:
    group, name = result[0], name_of_group(more, options)
    if here.rank is None and ranks:
        return  # part of a job that began before anybody listened
    ranks = list(ranks) or list(range(size))
    if isinstance(group, dist.ProcessGroup):
        here.begin(rank, size)
        begins_to_join(here, name, ranks)
        observe_group(here, group)
        parallel.find_engines()
    here.rank.group("joined", name, ranks)


@listens("process groups")
def group_ends(here: Recording, group: Any = None) -> None:
    # A rank that raises must not wait for its tensors, which may wait for a collective that never ends.
    whole = group is None or group is dist.group.WORLD
    if whole and dist.is_initialized() and sys.exc_info()[0] is None:
        states.job_ends()
        here.rank.group("leave", "0", list(range(dist.get_world_size())))
        here.groups.clear()


@listens("process groups")
def groups_are_gone(here: Recording, _result: Any, group: Any = None) -> None:
    """Their threads end with them."""
    if not dist.is_initialized():
        here.backends.clear()
    elif isinstance(group, dist.ProcessGroup):
        here.backends.pop(group.group_name, None)


# Each asks first whether this rank is in the group. The functions themselves are left alone: torch.compile knows them
# by their identity.
COLLECTIVES = frozenset((
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "irecv", "isend", "monitored_barrier", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "scatter_object_list"))


@listens("the program's own collectives")
def collective_begins(here: Recording, *_arguments: Any) -> None:
    if sys._getframe(3).f_code.co_name in COLLECTIVES:  # behind `listens` and `wrap`
        here.places.note("collective", here.rank.step())


def install() -> None:
    wrap(distributed_c10d, "_rank_not_in_group", before=collective_begins)
    wrap((distributed_c10d, dist), "init_process_group", before=job_begins)
    wrap(distributed_c10d, "_new_process_group_helper", before=group_begins, after=group_made)
    wrap((distributed_c10d, dist), "destroy_process_group", group_ends, groups_are_gone)
    wrap_get_backend()


def tell(name: str, *arguments: Any) -> None:
    """A call of the program's own: does nothing where nobody records."""
    @listens(name)
    def told(here: Recording) -> None:
        if all(map(parallel.is_readable, filter(looking.is_tensor, arguments))):
            getattr(here.rank, name)(*arguments)
    told()


def say_once(text: str) -> None:
    """For a job: the first process says it, and those that it starts, which inherit the variable, do not. Ranks that
    were not started by Python leave it to the first one on their machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("LOCKSTEP_SAID") != text:
        os.environ["LOCKSTEP_SAID"] = text
        say(text)


def give_back(here: Recording) -> None:
    """Each group gets torch's backends again. The recorder's stays in it, and nobody calls it."""
    for group in list(distributed_c10d._world.pg_map):
        for device in group._device_types:
            now = group._get_backend(device)
            if (backend := inside_of(here, now)) is not now:
                group._register_backend(device, kind_of(backend), backend)


class Watched:
    """What `with` leaves: the recording ends, and the program goes on without it. An exception that leaves the block is
    told, as it is where it ends the process."""

    def __init__(self, here: Recording | None = None) -> None:
        self.here = here

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        here, self.here = self.here, None
        if here is None or active() is not here:
            return
        recording.ends_by(error)
        recording.end(error is None and (dist.is_initialized() or not here.had_group))
        try:
            give_back(here)
        except Exception as failed:  # noqa: BLE001 the program is not to notice
            say("lockstep: the recorder is still called, and records nothing: ", failed)


def watch(folder: str | os.PathLike[str]) -> Watched:
    if recording.recording is not None:
        return Watched()
    if recording.ended:
        say_once("lockstep: this process is not recorded a second time")
        return Watched()
    try:
        extension()
    except DoesNotFit as error:
        say_once(f"lockstep: this job is not recorded: {error}")
        return Watched()
    here = recording.start(os.fspath(folder))
    for part in (calls, training, schedules, data, states):
        part.install()
    install()
    if dist.is_available() and dist.is_initialized():
        for group in list(distributed_c10d._world.pg_map):
            everybody = group is dist.group.WORLD
            ranks = [] if everybody else dist.get_process_group_ranks(group)
            group_made((group,), group.size(), group.rank(), ranks, group_name=group.group_name)
    return Watched(here)
