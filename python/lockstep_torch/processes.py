"""A job's processes as `watch` sees them: whether its ranks make progress, and when they end. Their parent is a
launcher, so how a rank ended is not known here."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import select
import signal
import struct
import subprocess
import time
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


def head(file: pathlib.Path) -> Head:
    with open(file, "rb") as trace:
        return Head(*HEAD.unpack(trace.read(HEAD.size)))


def traces(folder: pathlib.Path) -> set[pathlib.Path]:
    """Of the ranks, in all attempts."""
    return {*folder.glob("rank_*.trace"), *folder.glob("attempt_*/rank_*.trace")}


@functools.cache
def is_of_this_machine(file: pathlib.Path) -> bool:
    """Whether it was begun on this machine: another one's clock started at another time."""
    its = head(file)
    return abs(time.time_ns() - time.monotonic_ns() - (its.started_unix - its.started)) < 1_000_000_000


def status_of(pid: int) -> list[str]:
    """What /proc says behind the process's name: its state, its parent, ... Empty where it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def is_frozen(pid: int) -> bool:
    """By SIGSTOP."""
    return status_of(pid)[:1] == ["T"]


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

    def told(self, stopped: bool) -> dict[pathlib.Path, dict[int, tuple[str, int, int]]]:
        """How each rank ended that left no word of it, by which signal (0: not known), and when; by folder.

        The first of an attempt to end was ended by nobody's order ("signalled"). The later ones may have been ended by
        their launcher ("stopped"); so were all of them, where the job was told to end (`stopped`). A rank that still
        runs is about to be stopped, unless a signal has frozen it."""
        self.look()
        told: dict[pathlib.Path, dict[int, tuple[str, int, int]]] = {}
        for file in {*self.ended, *self.files.values()}:
            others = [at for other, at in self.ended.items() if other.parent == file.parent and other != file]
            at = self.ended.get(file)
            first = at is not None and not stopped and all(at < other for other in others)
            its = head(file)
            frozen = at is None and is_frozen(its.pid)
            if stopped or not its.closed:
                told.setdefault(file.parent, {})[int(re.split("[_.]", file.stem)[1])] = (
                    "signalled" if first or frozen else "stopped", signal.SIGSTOP if frozen else 0,
                    at or time.monotonic_ns())
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


def end(job: subprocess.Popen[bytes], by: float) -> None:
    """All of the job's processes by this time.monotonic(): nothing of it is left, also where one does not take TERM. It
    has half a second for that."""
    everybody: list[int] = []
    for number, until in ((signal.SIGTERM, by - 0.5), (signal.SIGKILL, by + 1)):
        everybody = list(dict.fromkeys([*everybody, *descendants(job.pid), job.pid]))
        for pid in everybody:
            try:
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)  # one that was stopped takes TERM when it goes on
            except OSError:
                continue  # it has ended
        while time.monotonic() < until and any(os.path.exists(f"/proc/{pid}") for pid in everybody):
            job.poll()
            time.sleep(0.02)
    job.wait()
