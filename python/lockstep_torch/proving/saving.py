"""Which files a program saves and loads, and when a job that has saved one is to stop."""

from __future__ import annotations

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
WRITE, READ = torch.save, torch.load  # for files of our own


def path_of(file: Any) -> str:
    """In the working folder, or empty."""
    try:
        path = os.path.abspath(os.fspath(file))
    except TypeError:
        path = os.path.abspath(getattr(file, "name", "")) if isinstance(getattr(file, "name", ""), str) else ""
    return os.path.relpath(path) if path.startswith(os.path.join(os.getcwd(), "")) else ""


def leads_out(file: Any) -> bool:
    """Whether a link in the copy of the working folder leads to a file of the user's."""
    path = path_of(file)
    return bool(path) and not os.path.realpath(path).startswith(os.path.join(os.path.realpath(os.getcwd()), ""))


def stop_at(folder: pathlib.Path) -> pathlib.Path:
    """By which the rank that saves first tells the others the update. Written before any checkpoint."""
    return folder / "stop_at"


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: what a program opens to write."""
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR) and leads_out(arguments[0]):
        refuse(arguments[0])


def refuse(file: Any) -> None:
    raise PermissionError(f"{path_of(file)} is a link that leads out of the working folder, where lockstep prove "
                          "writes nothing; put a copy in its place")


class Files:
    def __init__(self, steps: Steps, stops: bool, folder: pathlib.Path) -> None:
        self.steps, self.stops = steps, stops
        self.stop_at = stop_at(folder)
        self.saved: list[str] = []
        self.loaded: list[str] = []  # that were there before this run
        self.begun_ns = (folder / "plan.json").stat().st_mtime_ns
        self.began = time.monotonic()

    def has_enough(self) -> bool:
        made = max(self.steps.made, default=0)
        if not self.stops:
            return False
        if len(self.steps.updates) > KEPT:
            self.steps.let_go(len(self.steps.updates) - KEPT - 1)
        if self.stop_at.exists():
            return made >= int(self.stop_at.read_text())
        return time.monotonic() - self.began > WAITS_S

    def install(self) -> None:
        sys.addaudithook(guard)
        torch_: Any = torch
        save, load = torch_.save, torch_.load

        @functools.wraps(save)
        def saves(what: Any, file: Any, *more: Any, **options: Any) -> Any:
            if leads_out(file):
                refuse(file)
            if self.steps.updates and (path := path_of(file)):
                self.saved.append(path)
                if self.stops and not self.stop_at.exists():
                    part = self.stop_at.with_suffix(f".{os.getpid()}")
                    part.write_text(str(max(self.steps.made) + BEYOND))
                    part.rename(self.stop_at)
            return save(what, file, *more, **options)

        @functools.wraps(load)
        def loads(file: Any, *more: Any, **options: Any) -> Any:
            if (path := path_of(file)) and os.path.exists(path) and os.stat(path).st_mtime_ns < self.begun_ns:
                self.loaded.append(path)
            return load(file, *more, **options)
        torch_.save, torch_.load = saves, loads
