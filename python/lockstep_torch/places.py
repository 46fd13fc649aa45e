"""Writes down which lines of the user's program a finding may be about; common/lockstep/report/places.cpp reads them.

They are kept beside the traces, since a detector goes by no program's names: places_RANK.jsonl has each line once that
wrapped the model, began a pass over data, a backward or an update, saved or loaded a checkpoint, or called a
collective, with the first step at which it did; where the rank is when `lockstep watch` asks a job that hangs, or when
it is told to end; and where an exception came from that ended the rank.

A rank writes where it is, without Python's help, into stack_RANK_PID.txt, and so do processes that it has forked, such
as a loader's workers. `watch` makes lines of these files at the end of its own job; nobody else reads them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import json
import linecache
import os
import pathlib
import re
import resource
import signal
import stat
import sys
import traceback
from collections.abc import Collection, Iterator
from typing import NamedTuple

LINE = re.compile(r'^ +File "(.*)", line (\d+),? in ', re.MULTILINE)
FRAME = re.compile(r' +File "(.*)", line (\d+),? in (.*)')
STACK = re.compile(r"stack_(\d+)_(\d+)\.txt")
STACKS_OF = re.compile(r"(Current thread|Thread|Stack)[^[]*(?:\[(.*)\])? \(most recent call first\):")
WHOLE = "--\n"  # ends what a Python process says at once
CHILD = re.compile(r"^#(\d+)\n", re.MULTILINE)  # begins what a process says that a rank has forked
LONGEST = 200  # of what stands there
LONGEST_STACK = 1 << 20  # bytes; faulthandler writes at most 100 threads of 100 lines
ASKED = "LOCKSTEP_STACKS"  # set by `lockstep watch --timeout` alone, since SIGRTMIN is taken from the program
# Also of another Python than the one that asks: watch may run in an environment that is not the job's.
INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/")
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


@functools.cache
def is_the_users(file: str) -> bool:
    path = os.path.abspath(file)
    return not (file.startswith("<") or INSTALLED.search(path) or path.startswith(OWN))


def of_the_caller() -> tuple[str, int] | None:
    """The innermost line of the program's own."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


class NotOurs(OSError):
    """A link, a fifo, a folder, or somebody else's."""


Folder = str | os.PathLike[str] | int  # its path, or its descriptor


def opened(folder: Folder, name: str, flags: int) -> int:
    """A file of this user's own, which nobody else has a name for. A new one can be read by its owner alone, as a trace
    can."""
    inside = folder if isinstance(folder, int) else None
    file = name if isinstance(folder, int) else os.path.join(folder, name)
    descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=inside)
    its = os.fstat(descriptor)
    if not stat.S_ISREG(its.st_mode) or its.st_uid != os.geteuid() or its.st_nlink != 1:
        os.close(descriptor)
        raise NotOurs(errno.EPERM, "no file of this user's own", file)
    return descriptor


def opened_to_add(folder: Folder, name: str) -> int:
    return opened(folder, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def source_of(file: str, line: int) -> str:
    """A program may come out of a pipe: python <(make_program)."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.stat(file).st_mode):
            return ""
    return linecache.getline(file, line).strip().expandtabs(1)[:LONGEST]


def write(folder: Folder, rank: int, kind: str, step: int, file: str, line: int, **more: str) -> None:
    told = {"kind": kind, "step": step, "file": os.path.abspath(file), "line": line, "source": source_of(file, line),
            **more}
    text = json.dumps(told, ensure_ascii=False)
    with contextlib.suppress(OSError):  # unless the disk is full
        descriptor = opened_to_add(folder, f"places_{rank}.jsonl")
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as places:
            places.write(text + "\n")


def out_of_the_way(descriptor: int) -> int:
    """The same file by a high number: the program's own files keep the numbers that they have without it."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = 1024 if soft == resource.RLIM_INFINITY else min(soft, 1024)
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, most * 3 // 4)
    except OSError:
        return descriptor
    os.close(descriptor)
    return high


def leave_signal(signum: object = None, *_more: object, **_options: object) -> None:
    """faulthandler keeps for the recorder, by signals that nobody uses, how a stack is written. Here the program is
    about to use one with faulthandler, which would take it for registered already."""
    if isinstance(signum, int) and signum in signal.valid_signals():
        from lockstep_torch.extension import extension
        extension().leave_signal(signum)


class Places:
    """What one rank writes."""

    def __init__(self, folder: pathlib.Path, rank: int) -> None:
        from lockstep_torch.extension import extension
        self.folder, self.rank = folder, rank
        self.seen: set[tuple[str, tuple[str, int]]] = set()
        self.stack_file = folder / f"stack_{rank}_{os.getpid()}.txt"
        with contextlib.suppress(OSError):
            self.stack_file.unlink(missing_ok=True)  # of an earlier process
            stack = opened_to_add(folder, self.stack_file.name)
            extension().write_stacks_into(out_of_the_way(stack), bool(os.environ.get(ASKED)))

    def end(self) -> None:
        from lockstep_torch.extension import extension
        extension().write_stacks_into(-1, False)
        self.stack_file.unlink(missing_ok=True)

    def note(self, kind: str, step: int) -> None:
        place = of_the_caller()
        if place and (kind, place) not in self.seen:
            self.seen.add((kind, place))
            write(self.folder, self.rank, kind, step, *place)

    def ended_by(self, error: BaseException, step: int, is_its_own: bool) -> None:
        """`is_its_own`: the program's own exception. Else the rank was told to end, or a collective failed."""
        place, said = origin_of(error)
        if place and is_its_own:
            cut = said if len(said) <= LONGEST else said[:LONGEST] + "…"
            write(self.folder, self.rank, "raised", step, *place, raised=cut)
        elif place:
            write(self.folder, self.rank, "stall", step, *place)


def origin_of(error: BaseException) -> tuple[tuple[str, int] | None, str]:
    """The line of the program that it came from, and its type and text. A DataLoader raises the text of what its worker
    did, with the worker's lines."""
    text = ""
    with contextlib.suppress(Exception):
        text = str(error)
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    said = f"{type(error).__name__}: {text}"
    if in_worker := text.partition("\nOriginal Traceback")[2]:
        lines = [(file, int(line)) for file, line in LINE.findall(in_worker)]
        said = in_worker.strip().splitlines()[-1]
    lines = [line for line in lines if is_the_users(line[0])] or lines
    return lines[-1] if lines else None, " ".join(said.split()).removesuffix(":")


class Thread(NamedTuple):
    """What one thread was in, innermost first."""

    name: str
    is_asked: bool  # it got the signal
    frames: list[tuple[str, int, str]]  # file, line, function

    def place(self) -> tuple[str, int] | None:
        """The innermost line of the program's own."""
        return next(((file, line) for file, line, _function in self.frames if is_the_users(file)), None)

    def who(self) -> str:
        """Before Python 3.14 only the main thread is known by its name: of others, what they were started to run."""
        if self.name:
            return f"thread {self.name}"
        if self.frames and self.frames[-1][2] != "_bootstrap":
            return "the main thread"
        outside = [function for file, _line, function in self.frames if not file.endswith("/threading.py")]
        return f"a thread that runs {outside[-1]}" if outside else "a thread"


def threads_in(text: str) -> list[Thread]:
    """Of a C++ rank, its line alone."""
    threads: list[Thread] = []
    for line in text.splitlines():
        if frame := FRAME.match(line):
            if not threads:
                threads.append(Thread("", True, []))
            threads[-1].frames.append((frame[1], int(frame[2]), frame[3]))
        elif begun := STACKS_OF.match(line):
            threads.append(Thread(begun[2] or "", begun[1] != "Thread", []))
    return threads


def of_stack(text: str) -> tuple[str, int] | None:
    return next((place for thread in threads_in(text) if thread.is_asked and (place := thread.place())), None)


def of_child(text: str) -> tuple[str, int] | None:
    """What a process does that was forked. Further out are the lines that its parent was at."""
    asked = next((thread.frames for thread in threads_in(text) if thread.is_asked), [])
    own = itertools.takewhile(lambda frame: not frame[0].endswith("/multiprocessing/process.py"), asked)
    return Thread("", True, list(own)).place()


class Stack(NamedTuple):
    """A file that a rank was given to write where it is, in an open folder."""

    rank: int
    pid: int
    folder: int
    name: str

    def text(self) -> str:
        with contextlib.suppress(OSError):
            descriptor = opened(self.folder, self.name, os.O_RDONLY)
            with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
                return file.read(LONGEST_STACK)
        return ""


def stacks_in(folder: pathlib.Path) -> Iterator[Stack]:
    """Of all attempts. Each can be read until the next one is asked for."""
    for _at, _folders, names, descriptor in os.fwalk(os.path.realpath(folder)):
        for name in sorted(names):
            if named := STACK.fullmatch(name):
                yield Stack(int(named[1]), int(named[2]), descriptor, name)


def ask(folder: pathlib.Path, pids: Collection[int]) -> list[int]:
    """Has each of these processes that records write where it is, and returns which they are."""
    asked = [stack.pid for stack in stacks_in(folder) if stack.pid in pids]
    for pid in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGRTMIN)
    return asked


def have_answered(folder: pathlib.Path, asked: Collection[int], child: str = "") -> bool:
    """A C++ rank's answer is one line. A child of a rank's that was asked behind it answers in the same file."""
    texts = [stack.text() for stack in stacks_in(folder) if stack.pid in asked]
    return all(f"#{child}\n" in text and text.endswith(WHOLE) if child else text.endswith(WHOLE) or FRAME.match(text)
               for text in texts)


def answered(folder: pathlib.Path) -> dict[int, list[Thread]]:
    """For `watch`, of its own job: what ranks have written that were asked, or told to end, becomes one of their lines,
    and so does what their children have. By process, all that a rank said. The files are gone then."""
    said = {}
    for stack in stacks_in(folder):
        own, *children = CHILD.split(stack.text())
        if threads := threads_in(own):
            said[stack.pid] = threads
        if place := of_stack(own):
            write(stack.folder, stack.rank, "stall", -1, *place)
        for pid, text in zip(children[::2], children[1::2], strict=True):
            if place := of_child(text):
                write(stack.folder, stack.rank, "stall", -1, *place,
                      source=f"its child process {pid}: {source_of(*place)}")
        with contextlib.suppress(OSError):
            os.unlink(stack.name, dir_fd=stack.folder)
    return said


def what_it_does(rank: int, pid: int, threads: list[Thread], names: Collection[str]) -> list[str]:
    """In sentences: the main thread, and those that are in the program's own lines. Python is no longer there to ask
    where it ends: then `names`, which the system has for other threads."""
    of = f"rank {rank}, process {pid}, was still there"
    told = []
    for thread in threads:
        if place := thread.place():
            told.append(f"{of}: {thread.who()} at {place[0]}:{place[1]}: {source_of(*place)}")
        elif thread.is_asked and thread.frames:
            file, line, function = thread.frames[0]
            told.append(f"{of}: {thread.who()} at {file}:{line}, in {function}")
    left = f"; threads that have not ended: {', '.join(names)}" if names else ""
    return told or [f"{of}, and did not say where: it is frozen, or at the end of its process, behind its last line"
                    + left]
