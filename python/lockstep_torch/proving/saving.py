"""Which files a program saves and loads, and when a job that has saved one is to stop."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sys
import time
from typing import Any

import torch

from lockstep_torch.proving.steps import Steps

BEYOND = 3  # updates that are made behind the first checkpoint
KEPT = 24  # the last updates, whose parameters are remembered
WAITS_S = 20.0  # for a checkpoint
NAMES = {"os.remove": slice(1), "os.rmdir": slice(1), "os.mkdir": slice(1), "shutil.rmtree": slice(1),
         "os.rename": slice(2), "os.link": slice(1, 2), "os.symlink": slice(1, 2)}  # audit events: what they change
WRITE, READ = torch.save, torch.load  # for files of our own


def stop_at(folder: pathlib.Path) -> pathlib.Path:
    """By which the rank that saves first tells the others the update. Written before any checkpoint."""
    return folder / "stop_at"


class Copy:
    """Of the working folder, in which this process begins."""

    def __init__(self) -> None:
        self.folder = os.path.join(os.getcwd(), "")
        self.real = os.path.join(os.path.realpath(self.folder), "")
        self.through_a_link = False  # the program went on to a folder of the user's

    def path_of(self, file: Any) -> str:
        """In it, or empty."""
        try:
            path = os.path.abspath(os.fspath(file))
        except TypeError:
            path = os.path.abspath(getattr(file, "name", "")) if isinstance(getattr(file, "name", ""), str) else ""
        return os.path.relpath(path, self.folder) if path.startswith(self.folder) else ""

    def leads_out(self, file: Any, itself: bool = True) -> bool:
        """Whether a link in it leads to what is the user's. `itself`: not only where its folder does."""
        if self.through_a_link and isinstance(file, str) and not os.path.isabs(file):
            return True
        path = os.path.join(self.folder, self.path_of(file))
        real = os.path.realpath(path if itself else os.path.dirname(path))
        return bool(self.path_of(file)) and not os.path.join(real, "").startswith(self.real)

    def refuse(self, file: Any, itself: bool = True) -> None:
        if self.leads_out(file, itself):
            raise PermissionError(f"{self.path_of(file) or file} is a link that leads out of the working folder, where "
                                  "lockstep prove writes nothing; put a copy in its place")

    def guard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook."""
        if event == "os.chdir":
            self.through_a_link = isinstance(arguments[0], str) and self.leads_out(arguments[0])
        elif event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self.refuse(arguments[0])
        elif event == "os.truncate":
            self.refuse(arguments[0])
        elif event in NAMES:
            for file in arguments[NAMES[event]]:
                self.refuse(file, itself=False)


class Files:
    def __init__(self, steps: Steps, stops: bool, folder: pathlib.Path) -> None:
        self.steps, self.stops = steps, stops
        self.stop_at = stop_at(folder)
        self.saved: list[str] = []
        self.loaded: list[str] = []  # that were there before this run
        self.begun_ns = (folder / "plan.json").stat().st_mtime_ns
        self.copy = Copy()
        self.began: float | None = None

    def has_enough(self) -> bool:
        made = max(self.steps.made, default=0)
        if not self.stops:
            return False
        if len(self.steps.updates) > KEPT:
            self.steps.let_go(len(self.steps.updates) - KEPT - 1)
        self.began = self.began or time.monotonic()
        if time.monotonic() - self.began > WAITS_S:
            self.stop()
        return self.stop_at.exists() and made >= int(self.stop_at.read_text())

    def stop(self) -> None:
        """All ranks, a few updates from here; the first to say so says it."""
        part = self.stop_at.with_suffix(f".{os.getpid()}")
        part.write_text(str(max(self.steps.made) + BEYOND))
        with contextlib.suppress(FileExistsError):
            os.link(part, self.stop_at)

    def install(self) -> None:
        sys.addaudithook(self.copy.guard)
        torch_: Any = torch
        save, load = torch_.save, torch_.load

        @functools.wraps(save)
        def saves(what: Any, file: Any, *more: Any, **options: Any) -> Any:
            self.copy.refuse(file)
            if self.steps.updates and (path := self.copy.path_of(file)):
                self.saved.append(path)
                if self.stops:
                    self.stop()
            return save(what, file, *more, **options)

        @functools.wraps(load)
        def loads(file: Any, *more: Any, **options: Any) -> Any:
            if (path := self.copy.path_of(file)) and os.path.exists(path) and os.stat(path).st_mtime_ns < self.begun_ns:
                self.loaded.append(path)
            return load(file, *more, **options)
        torch_.save, torch_.load = saves, loads
