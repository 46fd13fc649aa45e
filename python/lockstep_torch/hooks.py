"""Where torch is listened to. Each hook tells the C++ recorder (extension.Rank) what happened, and changes nothing.

The calls that are wrapped keep their signature and their result. What goes wrong in a hook is said once, and that hook
listens no longer; the program never sees it. A process that was forked from a recorded one records nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data import dataloader as loaders
from torch.utils.weak import WeakIdKeyDictionary

from lockstep_torch.extension import DoesNotFit, extension


class Recording:
    """This process, as a rank of its job. It begins with the first group, or with the first pass or update without."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.pid = os.getpid()
        self.rank: Any = None
        self.failed: set[str] = set()
        self.models: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()
        self.wrapped = False
        self.drawn = 0  # batches that the program was given, and no backward has seen
        self.early: list[Callable[[], None]] = []  # of passes before anybody knew which rank this is
        self.queues: weakref.WeakKeyDictionary[Any, deque[list[int]]] = weakref.WeakKeyDictionary()
        self.hooked = WeakIdKeyDictionary()  # parameters
        self.backends: list[tuple[Any, Any]] = []  # the recorder's, and torch's inside of it
        self.optimizers: weakref.WeakKeyDictionary[Any, tuple[Any, list[int]]] = weakref.WeakKeyDictionary()
        self.inside = threading.local()  # `outer`: the optimizer that steps, and may call others

    def begin(self, rank: int, world_size: int) -> Any:
        if self.rank is None:
            restarts, attempt = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("MAX_RESTARTS", "RESTART_COUNT"))
            self.rank = extension().Rank(self.folder, rank, world_size, attempt, restarts)
        return self.rank

    def begin_alone(self) -> Any:
        if self.rank is None:
            self.begin(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        for call in self.early:
            call()
        self.early.clear()
        return self.rank

    def of_data(self, call: Callable[[], None]) -> None:
        """A pass before the first group or update may be in a process that does not know its rank yet."""
        if self.rank is not None:
            call()
        elif len(self.early) < 10_000:
            self.early.append(call)


recording: Recording | None = None


def active() -> Recording | None:
    global recording
    if recording is not None and recording.pid != os.getpid() and recording.rank is None:
        recording = Recording(recording.folder)  # its parent had not begun: this may be a rank
    return recording if recording is not None and recording.pid == os.getpid() else None


def is_capturing() -> bool:
    """A CUDA graph: nothing may wait for the device meanwhile."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def leave_to_the_parent() -> None:
    """In a child that was forked from a rank. Its end must not end the parent's trace, so it never lets go of it."""
    if recording is not None and recording.rank is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(recording.rank))


def listens(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A hook that tells of `name`: nothing that goes wrong in it gets out."""
    def decorate(hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def quiet(*arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or is_capturing():
                return None
            here = active()
            if here is None or name in here.failed:
                return None
            try:
                return hook(here, *arguments, **options)
            except Exception as error:  # noqa: BLE001 the program is not to notice
                here.failed.add(name)
                print(f"lockstep: {name}: not recorded any further: {error}", file=sys.stderr)
                return None
        return quiet
    return decorate


def wrap(owners: Any, name: str, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None) -> None:
    """Calls before(*arguments) and after(result, *arguments) around owner.name; `after` only where it returned. One
    wrapper for all owners, or it could not be pickled."""
    owners = owners if isinstance(owners, tuple) else (owners,)
    original = getattr(owners[0], name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        if before is not None:
            before(*arguments, **options)
        result = original(*arguments, **options)
        if after is not None:
            after(result, *arguments, **options)
        return result
    for owner in owners:
        setattr(owner, name, wrapped)


# ---- groups ----

def observe_group(here: Recording, group: Any) -> None:
    """Puts the recorder around each backend of the group; two devices may share one.

    A group keeps the first backend that it was given of a type (c10d's ProcessGroup::setBackend), so the recorder's comes
    under a type that the group has none of.
    """
    kinds = dist.ProcessGroup.BackendType
    free = [kinds.CUSTOM, kinds.MPI, kinds.UCC]
    observed: list[tuple[Any, Any, Any]] = []
    for device in group._device_types:
        backend = group._get_backend(device)
        known = [each for each in observed if each[0] is backend]
        if not known:
            known = [(backend, free[len(observed)], here.rank.observe(backend))]
            observed += known
            here.backends.append((known[0][2], backend))
        group._register_backend(device, known[0][1], known[0][2])


def wrap_get_backend() -> None:
    """Python asks a backend for what only its own class has, so it is shown torch's; c10d calls the recorder's."""
    groups: Any = dist.ProcessGroup
    original = groups._get_backend

    def _get_backend(group: Any, device: Any) -> Any:
        backend = original(group, device)
        here = active()
        return next((inner for outer, inner in here.backends if outer is backend), backend) if here else backend
    groups._get_backend = _get_backend


@listens("process groups")
def group_made(here: Recording, result: Any, _size: int, _rank: int, ranks: list[int], *_more: Any, **_options: Any) -> None:
    """Of the first group `ranks` is empty: it has all."""
    group = result[0]
    if not isinstance(group, dist.ProcessGroup):
        return  # this rank is not in it
    if here.rank is None and ranks:
        return  # part of a job that began before anybody listened
    ranks = list(ranks) or list(range(group.size()))
    recorder = here.begin(group.rank(), group.size())
    recorder.group("join", group.group_name, ranks)
    observe_group(here, group)
    recorder.group("joined", group.group_name, ranks)


@listens("process groups")
def group_ends(here: Recording, group: Any = None) -> None:
    # A rank that raises must not wait for its tensors, which may wait for a collective that never ends.
    if here.rank is not None and group is None and dist.is_initialized() and sys.exc_info()[0] is None:
        here.rank.group("leave", "0", list(range(dist.get_world_size())))


# ---- the model ----

def settings_of(module: torch.nn.Module) -> str:
    """torch's own modules with their options; of others the class alone, since they may print anything."""
    kind = type(module)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}({module.extra_repr()})" if kind.__module__.startswith("torch.nn.") else name


def hook_parameters(here: Recording, parameters: Any) -> None:
    """A hook of Python's beside the program's own: one of C++ would take their place."""
    for parameter in parameters:
        if parameter.requires_grad and parameter.is_leaf and parameter not in here.hooked:
            here.hooked[parameter] = parameter.register_hook(functools.partial(local_gradient, weakref.ref(parameter)))


@listens("local gradients")
def local_gradient(here: Recording, parameter: Any, gradient: torch.Tensor) -> None:
    if here.rank is not None and (alive := parameter()) is not None:
        here.rank.local_gradient(alive, gradient)


def model_of(here: Recording, module: torch.nn.Module) -> Any:
    if module not in here.models:
        here.models[module] = extension().Model(list(module.named_parameters()), list(module.named_buffers()))
    return here.models[module]


@listens("DistributedDataParallel")
def wrapping(here: Recording, _engine: Any, module: Any = None, *_arguments: Any, **_options: Any) -> None:
    if here.rank is None or module is None:
        return
    parts = [(name, settings_of(part)) for name, part in module.named_modules() if name]
    here.rank.configuration("model", [name for name, _ in parts], [text for _, text in parts])
    hook_parameters(here, module.parameters())
    here.rank.wrapping(model_of(here, module))


@listens("DistributedDataParallel")
def wrapped(here: Recording, _result: Any, engine: Any, *_arguments: Any, **_options: Any) -> None:
    if here.rank is not None:
        here.rank.wrapped(model_of(here, engine.module), "distributed_data_parallel")
        here.wrapped = True


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


@listens("forwards")
def forward_begins(here: Recording, engine: Any, /, *inputs: Any, **named: Any) -> None:
    if here.rank is not None and engine.module in here.models:
        model = here.models[engine.module]
        model.train(engine.module.training)
        here.rank.forward_begins(model, tensors_in([*inputs, *named.values()]))


@listens("forwards")
def forward_ended(here: Recording, _result: Any, engine: Any, /, *_inputs: Any, **_named: Any) -> None:
    if here.rank is not None and engine.module in here.models:
        here.rank.forward_ended(here.models[engine.module])


@listens("no_sync")
def sync_gradients(here: Recording, wanted: bool) -> None:
    if here.rank is not None:
        here.rank.sync_gradients(wanted)


def wrap_no_sync() -> None:
    original = DistributedDataParallel.no_sync

    @contextlib.contextmanager
    @functools.wraps(original)
    def no_sync(engine: Any) -> Iterator[None]:
        try:
            with original(engine):
                sync_gradients(False)
                yield
        finally:
            sync_gradients(engine.require_backward_grad_sync)
    DistributedDataParallel.no_sync = no_sync  # type: ignore[method-assign, assignment]


@listens("Join")
def shadowed(here: Recording, *_arguments: Any) -> None:
    if here.rank is not None:
        here.rank.update_shadowed()


# ---- a step ----

def take_drawn(here: Recording) -> None:
    """Where DistributedDataParallel's forward does not say it: what was drawn is trained on."""
    while here.drawn > 0:
        here.drawn -= 1
        if not here.wrapped:
            here.rank.take_dealt()


@listens("backward")
def backward_begins(here: Recording, tensors: Any, *_arguments: Any, **_options: Any) -> None:
    if here.rank is None:
        return
    take_drawn(here)
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors  # never of a generator
    if isinstance(first, torch.Tensor):
        here.rank.backward(first)


def optimizer_of(here: Recording, optimizer: torch.optim.Optimizer) -> Any:
    """Made again where parameters were added."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if optimizer not in here.optimizers or here.optimizers[optimizer][1] != sizes:
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        hook_parameters(here, [parameter for group in optimizer.param_groups for parameter in group["params"]])
        groups = [(group["params"], float(group.get("lr") or 0),
                   {"optimizer_class": kind, **{key: repr(value) for key, value in group.items()
                                      if key not in ("params", "lr", "initial_lr") and scalar(value)}})
                  for group in optimizer.param_groups]
        here.optimizers[optimizer] = extension().Optimizer(groups), sizes
    return here.optimizers[optimizer][0]


def scalar(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(scalar(item) for item in value)
    return value is None or isinstance(value, (bool, int, float))


@listens("optimizers")
def optimizer_made(here: Recording, _result: Any, optimizer: Any, *_arguments: Any, **_options: Any) -> None:
    if here.rank is not None:
        here.rank.optimizer_made(optimizer_of(here, optimizer))


@listens("optimizers")
def update_begins(here: Recording, optimizer: Any, _arguments: Any, _options: Any) -> None:
    if getattr(here.inside, "outer", optimizer) is not optimizer:  # a ZeroRedundancyOptimizer steps its part
        return
    here.inside.outer = optimizer
    known, begins = optimizer in here.optimizers, here.rank is None
    rank, own = here.begin_alone(), optimizer_of(here, optimizer)
    if begins:
        take_drawn(here)
    if not known:
        rank.optimizer_made(own)
    rank.update_begins(own)


@listens("optimizers")
def update_ended(here: Recording, optimizer: Any, _arguments: Any, _options: Any) -> None:
    outer: Any = getattr(here.inside, "outer", None)
    if outer is not optimizer or here.rank is None:
        return
    del here.inside.outer
    own = optimizer_of(here, optimizer)
    own.set_rates([float(group.get("lr") or 0) for group in optimizer.param_groups])
    here.rank.update_ended(own)


@listens("zero_grad")
def zero_grad(here: Recording, by: str) -> None:
    if here.rank is not None:
        here.rank.zero_grad(by)


@listens("clip_grad_norm_")
def clip(here: Recording, _parameters: Any, max_norm: float, total_norm: torch.Tensor, *_more: Any, **_options: Any) -> None:
    if here.rank is not None:
        here.rank.clip(float(max_norm), total_norm)


@listens("GradScaler")
def scaled_step(here: Recording, scaler: Any, _optimizer: Any, state: Any, *_more: Any, **_options: Any) -> None:
    if here.rank is not None:
        found = any(value.item() for value in state["found_inf_per_device"].values())
        here.rank.scaled_step(scaler.get_scale(), found, not found)


@listens("schedulers")
def scheduled(here: Recording, _result: Any, scheduler: Any, *_arguments: Any, **_options: Any) -> None:
    # Each takes a step when it is made, and nobody knows yet whether another will hold it.
    if here.rank is not None and scheduler._step_count > 1 and not getattr(here.inside, "schedulers", 0):
        length = getattr(scheduler, "total_steps", None) or getattr(scheduler, "T_max", None) or 0
        here.rank.schedule(int(scheduler.last_epoch), int(length))


@listens("schedulers")
def several_step(here: Recording, change: int) -> None:
    """The schedulers inside of a SequentialLR or ChainedScheduler are not the run's."""
    here.inside.schedulers = getattr(here.inside, "schedulers", 0) + change


# ---- data ----

def sampler_of(loader: Any) -> Any:
    sampler = loader.sampler
    return sampler if isinstance(sampler, DistributedSampler) else getattr(loader.batch_sampler, "sampler", sampler)


@listens("DataLoader")
def pass_begins(here: Recording, loader: Any) -> None:
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return  # it has no indices
    epoch, size = int(getattr(sampler_of(loader), "epoch", 0)), len(loader.dataset)
    if torch.is_grad_enabled():
        here.drawn = 0
    here.of_data(lambda: here.rank.pass_begins(epoch, size))


@listens("DataLoader")
def dealt(here: Recording, iterator: Any, indices: Any) -> None:
    """The loader may be ahead of the program, by what its workers fetch."""
    ids = indices if isinstance(indices, (list, tuple)) else [indices]
    try:
        here.queues.setdefault(iterator, deque()).append([operator.index(index) for index in ids])
    except TypeError:
        pass  # a sampler of other things than positions


@listens("DataLoader")
def drawn(here: Recording, _batch: Any, iterator: Any) -> None:
    queue = here.queues.get(iterator)
    if not queue:
        return
    ids = queue.popleft()
    here.of_data(lambda: here.rank.dealt(ids))
    if torch.is_grad_enabled():
        here.drawn += 1


@listens("DataLoader")
def all_drawn(here: Recording) -> None:
    here.of_data(lambda: here.rank.pass_dealt())


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
    if here.rank is not None:
        here.rank.set_epoch(int(epoch))


# ---- checkpoints ----

def path_of(file: Any) -> str | None:
    return os.fspath(file) if isinstance(file, (str, os.PathLike)) else None


@listens("torch.save")
def saving(here: Recording, obj: Any, f: Any, *_arguments: Any, **_options: Any) -> None:
    if here.rank is not None and state_in(obj) and (path := path_of(f)):
        here.rank.saving(path)


@listens("torch.save")
def saved(here: Recording, _result: Any, obj: Any, f: Any, *_arguments: Any, **_options: Any) -> None:
    if here.rank is not None and state_in(obj) and (path := path_of(f)):
        here.rank.saved(path)


def state_in(loaded: Any) -> dict[str, torch.Tensor]:
    """The model's state in what was loaded: itself, or what stands under one of the usual names."""
    candidates = [loaded] if isinstance(loaded, dict) else []
    candidates += [loaded[key] for key in ("model", "state_dict", "model_state_dict")
                   if isinstance(loaded, dict) and isinstance(loaded.get(key), dict)]
    for candidate in reversed(candidates):
        if candidate and all(isinstance(value, torch.Tensor) for value in candidate.values()):
            return candidate
    return {}


@listens("torch.load")
def loaded(here: Recording, result: Any, f: Any, *_arguments: Any, **_options: Any) -> None:
    state = state_in(result)  # a data set's tensors are no checkpoint
    if here.rank is not None and state and (path := path_of(f)):
        devices = sorted({str(tensor.device) for tensor in state.values()})
        here.rank.loaded(path, devices, devices, list(state))


# ---- all of them ----

def tell(name: str, *arguments: Any) -> None:
    """A call of the program's own: does nothing where nobody records."""
    @listens(name)
    def told(here: Recording) -> None:
        if here.rank is not None:
            getattr(here.rank, name)(*arguments)
    told()


def install() -> None:
    wrap(distributed_c10d, "_new_process_group_helper", after=group_made)
    wrap((distributed_c10d, dist), "destroy_process_group", before=group_ends)
    wrap_get_backend()
    wrap(DistributedDataParallel, "__init__", wrapping, wrapped)
    wrap(DistributedDataParallel, "forward", forward_begins, forward_ended)
    wrap_no_sync()
    wrap(torch.nn.parallel.distributed._DDPJoinHook, "main_hook", after=shadowed)
    wrap(torch.autograd, "backward", before=backward_begins)
    wrap(torch.optim.Optimizer, "__init__", after=optimizer_made)
    wrap(torch.optim.Optimizer, "zero_grad", before=lambda *_, **__: zero_grad("optimizer"))
    wrap(torch.nn.Module, "zero_grad", before=lambda *_, **__: zero_grad("module"))
    register_optimizer_step_pre_hook(update_begins)
    register_optimizer_step_post_hook(update_ended)
    wrap(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", before=clip)
    wrap(torch.amp.grad_scaler.GradScaler, "_maybe_opt_step", before=scaled_step)
    wrap(torch.optim.lr_scheduler.LRScheduler, "step", after=scheduled)
    for kind in (torch.optim.lr_scheduler.SequentialLR, torch.optim.lr_scheduler.ChainedScheduler):
        wrap(kind, "step", lambda *_, **__: several_step(1), lambda *_, **__: several_step(-1))
    wrap(DataLoader, "__iter__", before=pass_begins)
    wrap_loaders()
    wrap(DistributedSampler, "set_epoch", before=set_epoch)
    wrap((torch.serialization, torch), "save", saving, saved)
    wrap((torch.serialization, torch), "load", after=loaded)
    os.register_at_fork(after_in_child=leave_to_the_parent)


def watch(folder: str | os.PathLike[str]) -> None:
    global recording
    if recording is not None:
        return
    try:
        extension()
    except DoesNotFit as error:
        print(f"lockstep: this process is not recorded: {error}", file=sys.stderr)
        return
    recording = Recording(os.fspath(folder))
    install()
    if dist.is_available() and dist.is_initialized():
        for group in list(distributed_c10d._world.pg_map):
            everybody = group is dist.group.WORLD
            group_made((group,), group.size(), group.rank(), [] if everybody else dist.get_process_group_ranks(group))
