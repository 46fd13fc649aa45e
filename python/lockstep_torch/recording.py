"""What the hooks share: this process as a rank, and how a function of torch's is listened to."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing.process
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lockstep_torch import places, settings
from lockstep_torch.extension import extension
from lockstep_torch.inside import is_of_a_signal, say
from lockstep_torch.looking import ByIdentity

MOST_OUTSIDE = 1 << 28  # numbers outside the trained parameters that are recorded, all together


class Recording:
    """This process, as a rank of its job. It begins with its first group, or with its first update without one."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.pid = os.getpid()
        self.rank: Any = None  # the C++ recorder
        self.places: places.Places  # as soon as there is a rank
        self.alone = False  # so far
        self.failed: set[str] = set()
        self.models = ByIdentity()
        self.wrapped = self.modes_told = False
        self.wrapped_at = 0  # the step
        self.looks_from = 0  # the step of the model's first update: from there the looks are counted
        self.looked_at = -1  # the step of the last look
        self.models_begun = 0  # models that nobody wrapped, after the first
        self.heard = ByIdentity()  # modules: what their calls tell
        self.sharded = self.grouped = self.staged = False  # as parallel.py told
        self.shards = ByIdentity()  # modules with parts that FSDP made
        self.ignored: set[int] = set()  # parameters in them that it was told to leave alone
        self.identified = 0  # passes whose data set was looked at
        self.contents = 0  # samples with positions whose content was told
        self.drawn = 0  # batches that the program was given, and no backward has seen
        self.only_looks = False  # the last batch was drawn without gradients
        self.in_engine = False  # a forward of a wrapper runs
        self.looks = 0  # forwards of the model without gradients since it trained
        self.evaluations = 0  # in which there were any
        self.early: list[Callable[[], None]] = []  # of passes before anybody knew which rank this is
        self.queues = ByIdentity()  # of loaders' iterators: positions that were dealt, and not drawn
        self.sets = ByIdentity()  # data sets: how many samples, and hashes of what tells them from others
        self.looks_at_gradients = True  # in this step
        self.trainer: threading.Thread | None = None
        self.mixed_up = False  # another thread trains, too
        self.one_trains = False  # a model that nobody wrapped, and no other
        self.outside = ByIdentity()  # modules: what their calls tell; None: they were called
        self.outside_left = MOST_OUTSIDE
        self.averages: dict[str, torch.Tensor] | None = None  # copies of the program's
        self.backends: dict[str, list[tuple[Any, Any]]] = {}  # of groups: the recorder's, and torch's inside of it
        self.had_group = False
        self.groups: set[str] = set()  # that this rank began to join
        self.optimizers = ByIdentity()
        self.schedules = ByIdentity()  # that count their own steps
        self.schedules_made: Counter[str] = Counter()  # by class
        self.scheduled = ByIdentity()  # optimizers
        self.twins_told = False  # schedules of one kind and one optimizer
        self.loaders: set[str] = set()  # whose settings were told
        self.constants: dict[str, str] | None = None  # so far; empty: told
        self.settings: set[str] = set()  # of these names
        self.moving: dict[str, str] = {}  # what the program held before the first update
        self.constants_at = -1  # the update before which they were looked at last
        self.autocasts: set[str] | None = set()  # with gradients, before the first update; None: told
        self.made = ByIdentity()  # optimizers, in order
        self.tells: set[str] = set()  # moments of which the program tells the training's state itself
        self.loaded: weakref.ref[torch.nn.Module] | None = None  # a model that took weights since the last update
        self.read = self.resumes = False  # a checkpoint's file; and a model or optimizer has taken it
        self.inside = threading.local()  # `outer`: the optimizer that steps, and may call others

    def begin(self, rank: int, world_size: int) -> Any:
        """The first call says who this is; what was held back until then is told now. A process that nobody told its
        rank begins anew with its group."""
        if self.rank is None or (self.alone and world_size > 1):
            self.alone = world_size == 1 and "RANK" not in os.environ
            folder = os.path.join(self.folder, "alone") if self.alone else self.folder
            self.rank = extension().Rank(folder, rank, world_size)
            self.places = places.Places(self.rank.folder(), rank)
            self.failed.clear()  # what could not be told while nobody knew the rank can be now
            self.optimizers.clear()
            self.loaders.clear()
            self.groups.clear()
            self.looked_at = -1
            process_begins()
            calls, self.early = self.early, []
            for call in calls:
                came_before(call)
        return self.rank

    def begin_alone(self) -> Any:
        if "RANK" not in os.environ:  # Lightning sets WORLD_SIZE without it
            return self.begin(0, 1)
        return self.begin(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))

    def of_data(self, call: Callable[[], None]) -> None:
        """A pass before the first group or update may be in a process that does not know its rank yet, and so may a
        schedule."""
        if self.rank is not None:
            call()
        elif len(self.early) < 10_000:
            self.early.append(call)


recording: Recording | None = None
ended = False  # a recording of this process


def start(folder: str) -> Recording:
    global recording
    here = recording = Recording(folder)
    os.register_at_fork(after_in_child=leave_to_the_parent)
    atexit.register(ends)
    wrap(multiprocessing.process.BaseProcess, "run", failed=lambda error, _process: ends_by(error))
    for name in ("register", "unregister"):
        wrap(faulthandler, name, before=places.leave_signal)
    return here


def active() -> Recording | None:
    global recording
    if recording is not None and recording.pid != os.getpid() and recording.rank is None:
        recording = Recording(recording.folder)  # its parent had not begun: this may be a rank
    return recording if recording is not None and recording.pid == os.getpid() else None


def leave_to_the_parent() -> None:
    """In a child that was forked from a rank. Its end must not end the parent's trace, so it never lets go of it."""
    if recording is not None and recording.rank is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(recording.rank))


def is_capturing() -> bool:
    """A CUDA graph: nothing may wait for the device meanwhile."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def is_the_trainer(here: Recording, claims: bool) -> bool:
    """Of several threads that train, each its own model, the recorder would mix up the figures, and read gradients that
    another thread frees. An engine says which model is meant; without one the recording ends. Whoever `claims` it first
    is the trainer. A thread that is not Python's works for autograd."""
    thread = threading.current_thread()
    if isinstance(thread, threading._DummyThread):
        return True
    if claims and (here.trainer is None or not here.trainer.is_alive()):
        here.trainer = thread
    if here.trainer is None or here.trainer is thread:
        return True
    if not here.wrapped and here.trainer.is_alive() and not here.mixed_up:
        here.mixed_up = True
        say("lockstep: not recorded any further: several threads of this process train")
        if here.rank is not None:
            here.rank.recording_ended("training")
        end(goes_on=True)
    return False


TRACERS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))


def is_traced() -> bool:
    """The program's functions are called for what they do, and not for what they compute."""
    symbolic = sys.modules.get("torch.fx._symbolic_trace")
    return (torch._C._get_tracing_state() is not None
            or torch._C._functorch.peek_interpreter_stack() is not None
            or getattr(symbolic, "_is_fx_tracing_flag", False)
            or (torch._C._len_torch_dispatch_stack() > 0
                and any(torch._C._get_dispatch_mode(each) is not None for each in TRACERS)))


@contextlib.contextmanager
def outside_of_modes() -> Iterator[None]:
    """What a hook computes is not the program's, and its modes are not to count it, log it or place it."""
    dispatch = torch._C._len_torch_dispatch_stack() > 0
    with (_disable_current_modes() if dispatch else contextlib.nullcontext()), torch._C.DisableTorchFunction():
        yield


def has_modes() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0


def listens(name: str, early: bool = False, trains: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A hook that tells of `name`: nothing that goes wrong in it gets out. It is called once this process is a rank, or
    also before, where it is `early`; and in the thread that `trains` alone, where that is said."""
    def decorate(hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def quiet(*arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():
                return None
            here = active()
            if here is None or name in here.failed or not (early or here.rank is not None):
                return None
            try:
                if is_traced() or is_capturing() or (trains and not is_the_trainer(here, claims=True)):
                    return None
                if not has_modes():
                    return hook(here, *arguments, **options)
                with outside_of_modes():
                    return hook(here, *arguments, **options)
            except Exception as error:
                if is_of_a_signal(error.__traceback__):
                    raise
                here.failed.add(name)
                say("lockstep: ", name, ": not recorded any further: ", error)
                if here.rank is not None:
                    with contextlib.suppress(Exception):
                        here.rank.recording_ended(name)
                return None
        return quiet
    return decorate


@listens("what came before this process was a rank")
def came_before(_here: Recording, call: Callable[[], None]) -> None:
    call()


@listens("versions and variables")
def process_begins(here: Recording) -> None:
    here.rank.settings("program", settings.of_process())


@listens("how the rank ends")
def ends_by(here: Recording, error: BaseException | None) -> None:
    """torch.multiprocessing.spawn raises SystemExit, with an exit code, in place of the program's exception."""
    while isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    if isinstance(error, (Exception, KeyboardInterrupt)):
        is_its_own = isinstance(error, Exception) and here.rank.raised()
        here.places.ended_by(error, here.rank.step(), is_its_own)


def ends() -> None:
    """At exit: the exception that nobody caught, which Python has printed by then."""
    if not hasattr(sys, "ps1"):
        ends_by(getattr(sys, "last_value", None))


@listens("how the recording ends")
def trace_ends(here: Recording, goes_on: bool) -> None:
    here.rank.end(goes_on)
    here.places.end()


def end(goes_on: bool) -> None:
    """What is recorded stays. The hooks listen no longer."""
    global recording, ended
    trace_ends(goes_on)
    recording, ended = None, True


def in_turn(*hooks: Callable[..., Any]) -> Callable[..., None]:
    """Several hooks of one function as one; each goes wrong by itself."""
    def call(*arguments: Any, **options: Any) -> None:
        for hook in hooks:
            hook(*arguments, **options)
    return call


def in_place_of(original: Callable[..., Any]) -> Callable[[Any], Any]:
    """A function that is put in the place of torch's. A warning is of the line that called torch, and may be filtered
    by that: warnings.warn() passes over frames of importlib's, by the names of their files."""
    def decorate(function: Any) -> Any:
        function = functools.wraps(original)(function)
        function.__code__ = function.__code__.replace(co_filename="<lockstep_torch, as importlib._bootstrap>")
        return function
    return decorate


def wrap(owners: Any, name: str, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None,
         ended: Callable[..., Any] | None = None, failed: Callable[..., Any] | None = None) -> None:
    """Calls before(*arguments), after(result, *arguments), ended(*arguments) and failed(error, *arguments) around
    owner.name; `after` only where it returned, `failed` only where it raised, `ended` always. One wrapper for all
    owners, or it could not be pickled."""
    owners = owners if isinstance(owners, tuple) else (owners,)
    original = getattr(owners[0], name)

    @in_place_of(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        if before is not None:
            before(*arguments, **options)
        try:
            result = original(*arguments, **options)
        except BaseException as error:
            if failed is not None:
                failed(error, *arguments, **options)
            raise
        finally:
            if ended is not None:
                ended(*arguments, **options)
        if after is not None:
            after(result, *arguments, **options)
        return result
    for owner in owners:
        setattr(owner, name, wrapped)
