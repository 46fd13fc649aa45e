"""A job's processes as `watch` sees them: whether its ranks make progress, and when they end. Their parent is a
launcher, so how a rank ended is not known here."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import pathlib
import re
import select
import signal
import stat
import struct
import subprocess
import time
from collections.abc import Collection
from typing import NamedTuple


class Head(NamedTuple):
    """What a trace says at its begin (common/lockstep/trace/trace.md)."""

    pid: int
    started: int  # by the monotonic clock, as all times of a trace
    started_unix: int
    length: int  # how many bytes are whole
    closed: int  # 1: its writer ended in order
    entered: int  # collectives
    truncated: int  # 1: it had no room for more


HEAD = struct.Struct("<40x6q520xq")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
FAR = 2**63 - 1


def head(file: pathlib.Path) -> Head:
    found = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(file))
        return Head(*HEAD.unpack(os.read(found, HEAD.size)))
    finally:
        os.close(found)


def traces(folder: pathlib.Path) -> set[pathlib.Path]:
    """Of the ranks, in all attempts."""
    return {*folder.glob("rank_*.trace"), *folder.glob("attempt_*/rank_*.trace")}


def ranks(folder: pathlib.Path) -> list[tuple[int, int]]:
    """Of this machine: each rank, and its process."""
    found = []
    for file in sorted(traces(folder)):
        with contextlib.suppress(OSError, struct.error):
            if is_of_this_machine(file):
                found.append((rank_of(file), head(file).pid))
    return found


def rank_of(file: pathlib.Path) -> int:
    return int(re.split("[_.]", file.stem)[1])


@functools.cache
def is_of_this_machine(file: pathlib.Path) -> bool:
    """Whether it was begun on this machine: another one's clock started at another time."""
    its = head(file)
    return abs(time.time_ns() - time.monotonic_ns() - (its.started_unix - its.started)) < 1_000_000_000


def status_of(pid: int | str) -> list[str]:
    """What /proc says behind the process's name: its state, its parent, ... Empty where it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def parent_of(pid: int) -> int:
    """0 where it has ended."""
    return int((status_of(pid)[1:2] or ["0"])[0])


def threads_of(pid: int) -> list[str]:
    """The names that its threads have been given, but for the main one's, which others have that were given none."""
    names = {}
    with contextlib.suppress(OSError):
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            names[int(thread.name)] = (thread / "comm").read_text().strip()
    return sorted(set(names.values()) - {names.get(pid)})


def is_frozen(pid: int) -> bool:
    """By SIGSTOP."""
    return status_of(pid)[:1] == ["T"]


def catches(pid: int, number: int) -> bool:
    """Whether the signal has a handler there."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE):
            return bool(int(found[1], 16) >> (number - 1) & 1)
    return False


def progress(folder: pathlib.Path, alive: set[int]) -> int | None:
    """How much the ranks have recorded: it grows with every collective, batch and update. None where that says nothing:
    no rank has entered a collective yet, or a trace had no room for more. Ranks that were `alive` and have ended do not
    count: the job may be starting them again."""
    total = entered = truncated = 0
    for file in traces(folder):
        try:
            its = head(file)
            if not is_of_this_machine(file):
                pass  # whether its process is alive is not known here
            elif os.path.exists(f"/proc/{its.pid}"):
                alive.add(its.pid)
            elif its.pid in alive:
                continue
            total += its.length
            entered += its.entered
            truncated += its.truncated
        except (OSError, struct.error):
            continue  # a rank is making it
    return total if entered and not truncated else None


def entered(folder: pathlib.Path) -> int:
    """How many collectives the ranks have entered."""
    total = 0
    for file in traces(folder):
        with contextlib.suppress(OSError, struct.error):  # a rank is making it
            total += head(file).entered
    return total


class Ends:
    """When the processes of the ranks end, by the kernel's word."""

    def __init__(self, folder: pathlib.Path, job: subprocess.Popen[bytes]) -> None:
        self.folder, self.job = folder, job
        self.files: dict[int, pathlib.Path] = {}  # by the descriptor that tells when its process ends
        self.known: set[pathlib.Path] = set()
        self.ended: dict[pathlib.Path, int] = {}  # when, on the traces' clock
        self.poll = select.poll()
        self.next = 0.0  # time to look for more
        self.found = time.monotonic()  # when the last one was
        self.listen(job.pid)

    def listen(self, pid: int) -> int | None:
        try:
            tells = os.pidfd_open(pid)
        except (AttributeError, OSError):  # it has ended; or this system, or this Python, does not tell
            return None
        self.poll.register(tells, select.POLLIN)
        return tells

    def wait(self, seconds: float) -> bool:
        """Until the job ends, or some time has passed; whether it has ended."""
        until = time.monotonic() + seconds
        while self.job.poll() is None and (left := until - time.monotonic()) > 0:
            self.look(min(left, 0.2))
        return self.job.poll() is not None

    def find(self) -> None:
        """Ranks that have begun. They mostly begin together: later they are looked for less often."""
        now = time.monotonic()
        if now < self.next:
            return
        for file in traces(self.folder) - self.known:
            try:
                pid, here = head(file).pid, is_of_this_machine(file)
            except (OSError, struct.error):
                continue  # it is being made
            self.known.add(file)
            self.found = now
            if here and (tells := self.listen(pid)) is not None:
                self.files[tells] = file
        self.next = now + (0.2 if now - self.found < 10 else 2)

    def look(self, seconds: float = 0) -> None:
        """Takes note of ranks that have begun, and of what ends within some time."""
        with contextlib.suppress(OSError):
            self.find()
        ready = self.poll.poll(seconds * 1000)
        now = time.monotonic_ns()
        for tells, _events in ready:
            if tells in self.files:
                self.ended[self.files.pop(tells)] = now
            self.poll.unregister(tells)
            os.close(tells)

    def told(self, ordered_ns: int | None, running: str) -> dict[pathlib.Path, dict[int, tuple[str, int, int]]]:
        """How each rank ended that left no word of it, by which signal (0: not known), and when; by folder.

        The first of an attempt to end was ended by nobody's order ("signalled"). The later ones may have been ended by
        their launcher ("stopped"); so were all of them, where the job was told to end, at `ordered_ns`. How a rank ends
        that still runs is said by `running`, unless a signal has frozen it."""
        self.look()
        told: dict[pathlib.Path, dict[int, tuple[str, int, int]]] = {}
        # A process that a rank has started may have its number, and enters no collective.
        ranks = {(file.parent, rank_of(file)): file
                 for file in sorted({*self.ended, *self.files.values()}, key=lambda file: head(file).entered)}
        for file in ranks.values():
            others = [at for other, at in self.ended.items() if other.parent == file.parent and other != file]
            at = self.ended.get(file)
            first = at is not None and ordered_ns is None and all(at < other for other in others)
            its = head(file)
            frozen = at is None and is_frozen(its.pid)
            if ordered_ns is not None or not its.closed:
                how = "signalled" if first or frozen else running if at is None else "stopped"
                told.setdefault(file.parent, {})[rank_of(file)] = (
                    how, signal.SIGSTOP if frozen else 0, min(at or time.monotonic_ns(), ordered_ns or FAR))
        return told


def descendants(pid: int) -> list[int]:
    """The processes below this one, parents first, by what /proc says."""
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and (status := status_of(int(entry.name))):
            children.setdefault(int(status[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def adopt_orphans() -> None:
    """From now on a process below this one, whose parent ends, becomes this one's child, and not init's: `end` reaches
    also what has forked twice."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """This process gets the signal when the thread that started it ends, in whatever way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def reap_orphans(job: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ChildProcessError):
        while one := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if one.si_pid == job.pid:  # whose end is the job's
                break
            os.waitpid(one.si_pid, 0)


def end(job: subprocess.Popen[bytes], by: float, spared: Collection[int]) -> None:
    """Everything below this process, but for what is `spared`, by this time.monotonic(): nothing of the job is left,
    also where a process does not take TERM. It has half a second for that."""
    for number, until in ((signal.SIGTERM, by - 0.5), (signal.SIGKILL, by + 1)):
        told: set[int] = set()
        while time.monotonic() < until and (left := set(descendants(os.getpid())) - set(spared)):
            for pid in left - told:
                with contextlib.suppress(OSError):  # it has ended
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)  # one that was stopped takes TERM when it goes on
            told |= left
            job.poll()
            reap_orphans(job)
            time.sleep(0.02)
    job.wait()
