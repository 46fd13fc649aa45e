"""Which lines of the user's program a finding is about.

They are kept beside the traces, since a detector goes by no program's names: places_RANK.jsonl has each line once that
began a pass over data, a backward or an update, with the first step at which it did. stack_RANK_PID.txt is empty until
`lockstep watch` asks a job that hangs where it is. Of a job that was started again nothing is told: a finding counts
the steps of all attempts, and these lines those of one.
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
from typing import Any, TextIO

LINES, STACK = re.compile(r"places_(\d+)\.jsonl"), re.compile(r"stack_(\d+)_(\d+)\.txt")
ASKED = "LOCKSTEP_STACKS"  # set by `lockstep watch --timeout` alone, since SIGRTMIN is taken from the program
# Also of another Python than the one that asks: watch may run in an environment that is not the job's.
INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/")
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
# What a finding is about, where it is not a collective.
KINDS = {
    "pass": ("missing-set-epoch", "set-epoch-on-copy", "epoch-differs-by-rank", "epoch-set-after-prefetch",
             "no-sharding", "sharded-twice", "shards-overlap", "dataset-unseeded", "file-order-differs",
             "tail-never-seen", "padding-overruns", "empty-shard", "uneven-batches"),
    "backward": ("forward-bypasses-wrapper", "no-gradient-sync", "sum-not-mean", "double-average"),
    "update": ("update-differs", "optimizer-differs", "gradients-not-zeroed", "clip-before-reduction",
               "local-overflow-skip", "lr-not-scaled", "linear-rule-with-adam", "no-warmup"),
}


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


def opened(file: pathlib.Path) -> TextIO:
    """Readable by its owner alone, as a trace is."""
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a")


class Places:
    """What one rank writes."""

    def __init__(self, folder: str, rank: int) -> None:
        self.file = pathlib.Path(folder, f"places_{rank}.jsonl")
        self.seen: set[tuple[str, tuple[str, int]]] = set()
        if os.environ.get(ASKED):
            self.stack = opened(pathlib.Path(folder, f"stack_{rank}_{os.getpid()}.txt"))
            faulthandler.register(signal.SIGRTMIN, self.stack, all_threads=False)

    def note(self, kind: str, step: int) -> None:
        place = of_the_caller()
        if place and (kind, place) not in self.seen:
            self.seen.add((kind, place))
            line = json.dumps({"kind": kind, "step": step, "file": os.path.abspath(place[0]), "line": place[1],
                               "source": linecache.getline(*place).strip()})
            with contextlib.suppress(OSError), opened(self.file) as file:  # a full disk: the events go on
                file.write(line + "\n")


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


def of_stack(text: str) -> dict[str, Any] | None:
    for file, line in re.findall(r'^ +File "(.*)", line (\d+) in ', text, re.MULTILINE):
        if is_the_users(file):
            return {"file": file, "line": int(line), "source": linecache.getline(file, int(line)).strip()}
    return None


def lines_of(file: pathlib.Path) -> list[dict[str, Any]]:
    """A line that a full disk cut is left out."""
    lines = []
    for line in file.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]


def read(folder: pathlib.Path) -> tuple[dict[int, list[dict[str, Any]]], dict[int, dict[str, Any]]]:
    """(the lines by rank, where the rank was when it was asked)."""
    lines, stacks = {}, {}
    if any(folder.glob("attempt_*")):
        return {}, {}
    for file in folder.iterdir():
        if named := LINES.fullmatch(file.name):
            lines[int(named[1])] = lines_of(file)
        elif (named := STACK.fullmatch(file.name)) and (place := of_stack(file.read_text(errors="replace"))):
            stacks[int(named[1])] = place
    return lines, stacks


def short(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative


def add(folder: pathlib.Path, found: dict[str, Any]) -> None:
    """To each finding its `places`, one for each line, with the ranks that were there; and to the text. Where several
    lines have begun what it is about, it may be any of them."""
    lines, stacks = read(folder)
    for finding in found["findings"]:
        kind = next((kind for kind, pitfalls in KINDS.items() if finding["pitfall"] in pitfalls), None)
        places: dict[tuple[str, int], dict[str, Any]] = {}
        for rank in finding["ranks"]:
            there = [line for line in lines.get(rank, [])
                     if line["kind"] == kind and line["step"] <= max(finding["step"], 0)]
            if finding["sequence"] >= 0 and rank in stacks:
                there = [stacks[rank]]
            for line in there:
                place = {"ranks": [], "file": line["file"], "line": line["line"], "source": line["source"]}
                places.setdefault((line["file"], line["line"]), place)["ranks"].append(rank)
        finding["places"] = list(places.values())
    blocks = re.split(r"^(?=\S)", found["text"], flags=re.MULTILINE)[1:]
    for index, finding in enumerate(found["findings"]):
        blocks[index] += "".join(f"    {short(place['file'])}:{place['line']}: {place['source']}\n"
                                 for place in finding["places"])
    found["text"] = "".join(blocks)
