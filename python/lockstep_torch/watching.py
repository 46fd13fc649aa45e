"""Runs a job for `watch`, and is there until it ends. The job's process is as without it: its descriptors, variables,
group, terminal, and what it does with signals; and it gets the signals that its user sends."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import select
import signal
import struct
import subprocess
import time
from collections.abc import Collection

from lockstep_torch import processes
from lockstep_torch.saying import say

WITHIN_S = 2  # a stalled job is ended
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# Those that tell a process about itself, or stop it, or that Python keeps. A terminal stops the whole group.
NOT_PASSED_ON = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD,
                 signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE,
                 signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
IGNORED = "LOCKSTEP_IGNORED"  # the mask of signals that ./lockstep was started with
PR_SET_PDEATHSIG = 1


class Witness:
    """A process of this one's group that nobody means. A signal that it has got, too, was sent to all of the group, by
    a terminal, a shell or timeout(1): the job has got it, and is not sent it a second time. The kernel does not say
    whether kill(2) was called for a process or for its group."""

    GOT = struct.Struct("<qd")  # the signal, and when
    SOON_S = 0.05  # one after the other, all of a group get it
    LATE_S = 1  # it was another signal of that number

    def __init__(self, numbers: Collection[int]) -> None:
        self.got: dict[int, float] = {}
        self.told, tells = os.pipe()
        os.set_blocking(self.told, False)
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if self.pid == 0:
            self.look(numbers, tells, parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(tells)

    def look(self, numbers: Collection[int], tells: int, parent: int) -> None:
        """It keeps nothing open that somebody may wait for."""
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.dup2(tells, 0)
            os.closerange(1, os.sysconf("SC_OPEN_MAX"))
            while os.getppid() == parent:
                number = signal.sigwait(numbers)
                os.write(0, self.GOT.pack(number, time.monotonic()))
        finally:
            os._exit(0)

    def has_got(self, number: int) -> bool:
        """Another signal may come meanwhile, whose handler calls this, too: nothing waits here for what that took."""
        until = time.monotonic() + self.SOON_S
        while True:
            with contextlib.suppress(BlockingIOError):
                while got := os.read(self.told, self.GOT.size):
                    self.got.update([self.GOT.unpack(got)])
            if self.got.pop(number, 0.0) > time.monotonic() - self.LATE_S:
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            select.select([self.told], [], [], left)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.told)


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
        self.ordered_ns: int | None = None  # when it was first told to end, on the traces' clock
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
        self.witness = Witness(self.passed_on)
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
        occupy_closed()

    def pass_on(self, number: int, _frame: object) -> None:
        self.signals.append(number)
        if number in ENDING and self.ordered_ns is None:
            self.ordered_ns = time.monotonic_ns()
        if self.process is None:
            self.early.append(number)
        elif self.process.returncode is None and not self.witness.has_got(number):
            self.process.send_signal(number)

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
        asked = places.ask(self.folder, {pid for pid in there if processes.catches(pid, signal.SIGRTMIN)
                                         and not processes.is_frozen(pid)})
        while time.monotonic() < until and not places.have_answered(self.folder, asked):
            time.sleep(0.02)
        said = places.answered(self.folder)
        for rank, pid in processes.ranks(self.folder):
            if pid in there:
                self.left += places.what_it_does(rank, pid, said.get(pid, []))

    def told_of(self, ends: processes.Ends, running: str) -> Told:
        try:
            return ends.told(self.ordered_ns, running)
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
