"""Runs a job for `watch`, and is there until it ends. The job's process is as without it: its descriptors, variables,
group, terminal, and what it does with signals; and it gets the signals that its user sends."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Collection
from typing import NoReturn

from lockstep_torch import processes
from lockstep_torch.saying import say

WITHIN_S = 2  # a stalled job is ended
CHILD_ANSWERS_S = 0.5  # where a loader's worker is; one that is stuck in the kernel never says
SOON_NS = 40_000_000_000  # an order to end explains what ends: torchrun kills a rank 30 s after it was told
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# Those that tell a process about itself, or stop it, or that Python keeps. A terminal stops the whole group.
NOT_PASSED_ON = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD,
                 signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE,
                 signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
IGNORED = "LOCKSTEP_IGNORED"  # the mask of signals that ./lockstep was started with
PR_SET_NAME = 15


class Witness:
    """A process of this one's group that nobody means. A signal that it has got, too, was sent to all of the group, by
    a terminal, a shell or timeout(1). The kernel does not say whether kill(2) was called for a process or for its
    group."""

    NAME = b"signal-witness"  # not this process's, by which somebody may end both, one by one

    def __init__(self) -> None:
        self.asks, asked = socket.socketpair()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                self.answer(asked.fileno())
        except OSError:
            self.asks.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            asked.close()

    def answer(self, asked: int) -> NoReturn:
        """All signals stay blocked, and wait to be asked for. It keeps nothing open that somebody may wait for, and
        ends with the process that asks."""
        try:
            os.dup2(asked, 0)
            os.closerange(1, os.sysconf("SC_OPEN_MAX"))
            ctypes.CDLL(None).prctl(PR_SET_NAME, self.NAME)
            begin, end = map(int, processes.status_of("self")[45:47])  # of the words that ps shows
            ctypes.memmove(begin, self.NAME.ljust(end - begin, b"\0"), end - begin)
            while numbers := os.read(0, 1):
                os.write(0, b"y" if signal.sigtimedwait(numbers, 0) else b"n")
        finally:
            os._exit(0)

    def has_got(self, number: int) -> bool:
        """Once for each time that it has got it. False where it has ended."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # their handler asks, too
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, os.getpgrp())  # changes nothing, and waits until a signal to a group is with all of it
            with contextlib.suppress(OSError):
                self.asks.sendall(bytes([number]))
                return self.asks.recv(1) == b"y"
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.asks.close()


def ignored_at_the_start() -> set[int]:
    """Python ignores some of these itself; the clone's command says which it was started with."""
    ignored = int(os.environ.get(IGNORED, "0"), 16)
    found = {number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1}
    return found | {number for number in (signal.SIGCHLD,) if signal.getsignal(number) == signal.SIG_IGN}


def variables(more: dict[str, str]) -> dict[bytes, bytes]:
    """The job's. Python adds LC_CTYPE to its own where no language is set."""
    own = {name: value for name, value in os.environb.items() if name != os.fsencode(IGNORED)}
    with contextlib.suppress(OSError):
        if b"\0LC_CTYPE=" not in b"\0" + pathlib.Path("/proc/self/environ").read_bytes():
            own.pop(b"LC_CTYPE", None)
    return own | {os.fsencode(name): os.fsencode(value) for name, value in more.items()}


Told = dict[pathlib.Path, dict[int, tuple[str, int, int]]]


class Job:
    """Begins with its process, or raises OSError. `wait` and `leave` are to be called, in this order."""

    def __init__(self, command: list[str], folder: pathlib.Path, more: dict[str, str], timeout: float | None) -> None:
        self.folder, self.timeout = folder, timeout
        self.signals: list[int] = []  # that it was sent, or got with its group
        self.ordered: dict[int, int] = {}  # by which signals it was told to end, and when first, on the traces' clock
        self.entered: int | None = None  # collectives, when that was SOON_NS ago
        self.early: list[int] = []  # of these, before it began
        self.left: list[str] = []  # who was still there when it was ended, without a rank that waits for another
        self.process: subprocess.Popen[bytes] | None = None
        self.passed_on = {number for number in signal.valid_signals() - NOT_PASSED_ON
                          if signal.getsignal(number) != signal.SIG_IGN}
        ignored = ignored_at_the_start()
        if signal.SIGCHLD in ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the job's exit code would be lost
        if timeout is not None:
            processes.adopt_orphans()
        self.spared = set(processes.descendants(os.getpid()))
        occupy_closed()
        self.witness = Witness()
        self.spared.add(self.witness.pid)
        for number in self.passed_on:
            signal.signal(number, self.pass_on)
        try:
            self.process = subprocess.Popen(command, env=variables(more), close_fds=False,
                                            preexec_fn=functools.partial(ignore, ignored) if ignored else None)
        except OSError:
            self.witness.end()
            self.leave()
            raise
        while self.early:
            self.process.send_signal(self.early.pop(0))

    def pass_on(self, number: int, _frame: object) -> None:
        self.signals.append(number)
        if number in ENDING:
            self.ordered.setdefault(number, time.monotonic_ns())
        to_all = self.witness.has_got(number)
        if self.process is None:
            self.early.append(number)
        elif self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if not to_all or os.getpgid(self.process.pid) != os.getpgrp():
                    self.process.send_signal(number)

    def ended_by(self) -> int | None:
        """The signal that it was sent, and ended by, as its exit code says."""
        code = self.process.returncode if self.process is not None else 0
        return next((number for number in self.signals if number in ENDING and code in (-number, 128 + number)), None)

    def ordered_ns(self) -> int | None:
        """When it was told to end."""
        return self.ordered.get(self.ended_by() or 0, min(self.ordered.values(), default=None))

    def forget_orders(self) -> None:
        """Those that the ranks went on after: a program may take SIGHUP for something else."""
        past = time.monotonic_ns() - SOON_NS
        if min(self.ordered.values(), default=past) >= past:
            return
        entered = processes.entered(self.folder)
        if self.entered is not None and entered > self.entered:
            self.ordered = {number: at for number, at in self.ordered.items() if at > past}
        self.entered = entered if self.ordered else None

    def wait(self) -> bool:
        """False where no rank made progress for the timeout, and the job was ended, at most WITHIN_S later. Before a
        rank has entered a collective, and after all have ended, the job is starting or at its end: that is no
        stall."""
        assert self.process is not None
        ends = processes.Ends(self.folder, self.process)
        seen, silent, last, alive = None, 0.0, time.monotonic(), set[int]()
        while self.timeout is None or seen is None or silent < self.timeout:
            if ends.wait(0.2 if self.timeout is None else min(0.1, self.timeout / 10)):
                self.witness.end()
                self.record_ends(self.told_of(ends, "stopped"))
                return True
            self.forget_orders()
            if self.timeout is None:
                continue
            processes.reap_orphans(self.process)
            # A shell may have stopped this process meanwhile, and the job with it.
            silent, last = silent + min(time.monotonic() - last, 1), time.monotonic()
            if (now := processes.progress(self.folder, alive)) != seen or now is None:
                seen, silent = now, 0.0
        by = time.monotonic() + WITHIN_S - 0.3  # that is for the looks above, which come 0.1 s apart
        told = self.told_of(ends, "deadline")
        try:
            self.ask_where(by - 1)
        except Exception as error:  # noqa: BLE001 the job is ended whatever happens
            say(f"lockstep: where the ranks were is not known: {error}")
        processes.end(self.process, by, self.spared)
        self.witness.end()
        self.record_ends(told)
        return False

    def ask_where(self, until: float) -> None:
        from lockstep_torch import places
        there = set(processes.descendants(os.getpid())) - self.spared
        parents = {pid: processes.parent_of(pid) for pid in there if processes.catches(pid, signal.SIGRTMIN)
                   and not processes.is_frozen(pid)}
        asked = places.ask(self.folder, parents)

        def wait_for(ranks: list[int], end: float, child: str = "") -> None:
            while time.monotonic() < min(end, until) and not places.have_answered(self.folder, ranks, child):
                time.sleep(0.01)
        wait_for(asked, until)
        # One after another: they answer in their rank's file. What is asked here was forked, and has its handler.
        for child, rank in parents.items():
            if rank in asked and child not in asked and time.monotonic() < until:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGRTMIN)
                wait_for([rank], time.monotonic() + CHILD_ANSWERS_S, str(child))
        said = places.answered(self.folder)
        for number, pid in processes.ranks(self.folder):
            if pid in there:
                self.left += places.what_it_does(number, pid, said.get(pid, []), processes.threads_of(pid))

    def told_of(self, ends: processes.Ends, running: str) -> Told:
        try:
            return ends.told(self.ordered_ns(), running)
        except Exception as error:  # noqa: BLE001 the job is ended whatever happens
            say(f"lockstep: how the ranks ended is not known: {error}")
            return {}

    def record_ends(self, told: Told) -> None:
        """Loads torch, which takes seconds."""
        if not told:
            return
        try:
            from lockstep_torch.extension import extension
            for folder, ends in told.items():
                extension().record_ends(folder, ends)
        except Exception as error:  # noqa: BLE001 the job's own end stays as it is
            say(f"lockstep: how the ranks ended was not recorded: {error}")

    def leave(self) -> int:
        """Its exit code, as a shell says it. The signals end this process again."""
        for number in self.passed_on:
            signal.signal(number, signal.SIG_DFL)
        code = self.process.returncode if self.process is not None else 0
        return code if code >= 0 else 128 - code


def ignore(numbers: Collection[int]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def occupy_closed() -> None:
    """What this process opens from now on, or prints, does not come into the place of a standard stream that it was
    started without."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(free)
