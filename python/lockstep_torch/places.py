"""Writes down which lines of the user's program a finding may be about; common/lockstep/report/places.cpp reads them.

They are kept beside the traces, since a detector goes by no program's names: places_RANK.jsonl has each line once that
wrapped the model, began a pass over data, a backward or an update, saved or loaded a checkpoint, or called a
collective, with the first step at which it did; where the rank is when `lockstep watch` asks a job that hangs, or when
it is told to end; and where an exception came from that ended the rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import linecache
import os
import pathlib
import re
import signal
import sys
import traceback

LINE = re.compile(r'^ +File "(.*)", line (\d+),? in ', re.MULTILINE)
STACK = re.compile(r"stack_(\d+)_(\d+)\.txt")
LONGEST = 200  # of what stands there
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


def opened(file: pathlib.Path) -> int:
    """Readable by its owner alone, as a trace is."""
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def write(folder: pathlib.Path, rank: int, kind: str, step: int, file: str, line: int, **more: str) -> None:
    source = linecache.getline(file, line).strip().expandtabs(1)[:LONGEST]
    told = {"kind": kind, "step": step, "file": os.path.abspath(file), "line": line, "source": source, **more}
    text = json.dumps(told, ensure_ascii=False)
    with contextlib.suppress(OSError):  # unless the disk is full
        with os.fdopen(opened(folder / f"places_{rank}.jsonl"), "a", encoding="utf-8", errors="replace") as places:
            places.write(text + "\n")


class Places:
    """What one rank writes."""

    def __init__(self, folder: pathlib.Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.seen: set[tuple[str, tuple[str, int]]] = set()
        self.stack_file = folder / f"stack_{rank}_{os.getpid()}.txt"
        self.stack = -1
        with contextlib.suppress(OSError):
            self.stack = opened(self.stack_file)
            for number in (signal.SIGINT, signal.SIGTERM):
                faulthandler.register(number, self.stack, all_threads=False, chain=True)
            if os.environ.get(ASKED):
                faulthandler.register(signal.SIGRTMIN, self.stack, all_threads=False)

    def end(self) -> None:
        """SIGINT and SIGTERM stay registered: to unregister them would undo a handler that the program set since."""
        self.stack_file.unlink(missing_ok=True)  # or `watch` would send the signal, which kills from now on
        if os.environ.get(ASKED):
            faulthandler.unregister(signal.SIGRTMIN)

    def leave_to_the_parent(self) -> None:
        """In a forked child: told to end, it has nothing to say."""
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.stack, inheritable=False)

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


def ask(folder: pathlib.Path, pids: list[int]) -> list[pathlib.Path]:
    """Has each of these processes that records write where it is, and returns the files."""
    files = []
    for file in folder.rglob("stack_*_*.txt"):
        named = STACK.fullmatch(file.name)
        if named and int(named[2]) in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(named[2]), signal.SIGRTMIN)
            files.append(file)
    return files


def of_stack(text: str) -> tuple[str, int] | None:
    for file, line in LINE.findall(text):
        if is_the_users(file):
            return file, int(line)
    return None


def answered(folder: pathlib.Path) -> None:
    """What ranks have written that were asked, or told to end, becomes one of their lines."""
    for file in folder.rglob("stack_*_*.txt"):
        named, place = STACK.fullmatch(file.name), of_stack(file.read_text(encoding="utf-8", errors="replace"))
        if named and place:
            write(file.parent, int(named[1]), "stall", -1, *place)
            file.unlink(missing_ok=True)
