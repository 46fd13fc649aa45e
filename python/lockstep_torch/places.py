"""Which lines of the user's program a finding is about.

They are kept beside the traces, since a detector goes by no program's names: places_RANK.jsonl has each line once that
began a pass over data, a backward or an update, with the first step at which it did. stack_RANK_PID.txt is empty until
`lockstep watch` asks a job that hangs where it is.
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
import sysconfig
from typing import Any, TextIO

ASKED = "LOCKSTEP_STACKS"  # set by `lockstep watch --timeout` alone, since SIGRTMIN is taken from the program
INSTALLED = tuple(os.path.join(os.path.abspath(path), "") for path in
                  (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), os.path.dirname(__file__)))
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
    return not file.startswith("<") and not os.path.abspath(file).startswith(INSTALLED)


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
            line = json.dumps({"kind": kind, "step": step, "file": os.path.abspath(place[0]), "line": place[1]})
            with contextlib.suppress(OSError), opened(self.file) as file:  # a full disk: the events go on
                file.write(line + "\n")


def ask(folder: pathlib.Path, pids: list[int]) -> list[pathlib.Path]:
    """Has each of these processes that records write where it is, and returns the files."""
    files = [file for file in folder.rglob("stack_*_*.txt") if int(file.stem.rsplit("_", 1)[1]) in pids]
    for file in files:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.stem.rsplit("_", 1)[1]), signal.SIGRTMIN)
    return files


def of_stack(text: str) -> tuple[str, int] | None:
    for file, line in re.findall(r'^ +File "(.*)", line (\d+) in ', text, re.MULTILINE):
        if is_the_users(file):
            return file, int(line)
    return None


def of_rank(folder: pathlib.Path, rank: int, finding: dict[str, Any]) -> tuple[str, int] | None:
    for stack in folder.rglob(f"stack_{rank}_*.txt") if finding["sequence"] >= 0 else ():
        if place := of_stack(stack.read_text(errors="replace")):
            return place
    kind = next((kind for kind, pitfalls in KINDS.items() if finding["pitfall"] in pitfalls), None)
    known = [json.loads(line) for file in sorted(folder.rglob(f"places_{rank}.jsonl"))
             for line in file.read_text().splitlines() if line.endswith("}")]
    before = [one for one in known if one["kind"] == kind and one["step"] <= max(finding["step"], 0)]
    return (before[-1]["file"], before[-1]["line"]) if before else None


def short(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative


def add(folder: pathlib.Path, found: dict[str, Any]) -> None:
    """To each finding its `places`, one for each line, with the ranks that were there; and to the text."""
    for finding in found["findings"]:
        ranks: dict[tuple[str, int], list[int]] = {}
        for rank in finding["ranks"]:
            if place := of_rank(folder, rank, finding):
                ranks.setdefault(place, []).append(rank)
        finding["places"] = [{"ranks": ranks[file, line], "file": file, "line": line,
                              "source": linecache.getline(file, line).strip()} for file, line in ranks]
    blocks = re.split(r"^(?=\S)", found["text"], flags=re.MULTILINE)[1:]
    for index, finding in enumerate(found["findings"]):
        blocks[index] += "".join(f"    {short(place['file'])}:{place['line']}: {place['source']}\n"
                                 for place in finding["places"])
    found["text"] = "".join(blocks)
