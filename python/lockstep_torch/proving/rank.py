"""In each process of a job that is proved: what the plan says is changed before the program runs, and what the rank did
is written when it has done enough, ends, or fails."""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing
import os
import pathlib
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lockstep_torch.looking import parameters_of
from lockstep_torch.proving.batches import Batches, watch_rows
from lockstep_torch.proving.cpu import on_cpu
from lockstep_torch.proving.saving import READ, WRITE, Files
from lockstep_torch.proving.steps import Steps, copied, digest_of, numbers_of
from lockstep_torch.proving.still import Draws, neutralize, watch_draws
from lockstep_torch.proving.tilt import Tilt
from lockstep_torch.proving.wide import widen

PACKAGE = str(pathlib.Path(__file__).parents[1])
OTHERS_END_S = 20.0  # how long a rank that has done enough waits for the others


def rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def file_of(folder: pathlib.Path, rank: int) -> pathlib.Path:
    return folder / f"rank_{rank}.pt"


def read(folder: pathlib.Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = READ(file_of(folder, rank), weights_only=False)
    return found


def read_all(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Of the ranks that left a file."""
    return sorted((read(folder, int(file.stem.split("_")[1])) for file in folder.glob("rank_*.pt")),
                  key=lambda found: int(found["rank"]))


class Proved:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.folder = plan, pathlib.Path(plan["folder"])
        here = os.path.join(os.getcwd(), "")
        self.draws, self.tilt = Draws(here), Tilt(here)
        self.steps = Steps(self.tilt, plan["steps"], self.enough)
        self.batches = Batches(self.steps, self.draws)
        self.files = Files(self.steps, plan["saves"], self.folder)
        self.steps.has_enough = self.files.has_enough
        self.error = ""
        self.written = self.has_enough = False
        self.read = False

    def install(self) -> None:
        random.seed(rank_and_world_size()[0])
        torch.manual_seed(rank_and_world_size()[0])
        if self.plan["wide"]:
            widen()
        if self.plan["stands_in"]:
            on_cpu()
        watch_draws(self.draws)
        if self.plan["still"] is not None:
            neutralize(self.draws, self.plan["still"])
        if self.plan["tilt"]:
            self.tilt.size = self.plan["tilt"]["size"]
            self.tilt.probes = [{}]  # read with the first update, when the rank is known
        self.tilt.install()
        register_optimizer_step_pre_hook(self.update_begins)
        self.steps.install()
        self.batches.install()
        self.files.install()
        watch_rows(self.steps)
        self.batches.keeps = self.plan["keeps"]
        if self.plan["batches"]:
            self.batches.given = functools.cache(self.given)
        if dist.is_available() and self.plan["device"] == "cpu":
            by_gloo()
        hook = sys.excepthook

        def fails(kind: Any, error: Any, trace: Any) -> None:
            self.error = error_text(error, trace)
            hook(kind, error, trace)
        sys.excepthook = fails
        atexit.register(self.write)

    def update_begins(self, *_arguments: Any) -> None:
        """What depends on the rank is read here: a process may learn it late."""
        self.draws.update_begins()
        self.steps.drawn = self.draws.drawn_before
        if self.read:
            return
        self.read = True
        rank = rank_and_world_size()[0]
        if self.plan["tilt"]:
            plain = read(pathlib.Path(self.plan["tilt"]["plain"]), rank)
            probes = READ(pathlib.Path(self.plan["tilt"]["probes"]), weights_only=False)
            self.tilt.probes, self.tilt.kept = probes[rank], plain["detached"]
            self.steps.forced = plain["updates"]
        if self.plan["force"]:
            self.steps.forced = read(pathlib.Path(self.plan["force"]), rank)["updates"]

    def given(self) -> list[dict[tuple[int, int], list[bytes]]]:
        """The batches of all ranks for one process, or of another rank."""
        ranks = range(self.plan["ranks"])
        folder = pathlib.Path(self.plan["batches"])
        wanted = [ranks[-1 - rank_and_world_size()[0]]] if self.plan["swaps"] else ranks
        return [read(folder, rank)["batches"] for rank in wanted]

    def write(self) -> None:
        rank, world_size = rank_and_world_size()
        if self.written or (not self.steps.updates and not (self.error and is_of_the_job())):
            return
        self.written = True
        file = file_of(self.folder, rank)
        its = self.steps
        sites = self.draws.each_step(len(its.optimizers))
        loose = sites & self.draws.loose
        for update in its.updates:
            update["drew"] = bool(update["drawn"])
            update["drawn"] = [drawn for site, drawn in update["drawn"] if site in loose]
        found = {"rank": rank, "world_size": world_size, "error": self.error, "enough": self.has_enough,
                 "updates": its.updates,
                 "last": [{"before": [copied(one) for one in parameters_of(each)], "digest": digest_of(each),
                           "options": [numbers_of(group) for group in each.param_groups]} for each in its.optimizers],
                 "names": [[its.names.get(id(one), f"parameter {place}")
                            for place, one in enumerate(parameters_of(each))] for each in its.optimizers],
                 "functions": sorted(its.functions), "constant": sorted(self.tilt.constant),
                 "neutral": sorted(self.draws.notes), "sites": sorted(sites - loose),
                 "loose": sorted(loose),
                 "detached": self.tilt.windows if not self.plan["tilt"] else [],
                 "batches": self.batches.of_training(), "joined": self.batches.joins,
                 "samples": self.batches.samples, "unseeded": sorted(self.draws.unseeded()), "saved": self.files.saved,
                 "loaded": self.files.loaded}
        WRITE(found, file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)

    def enough(self, error: str) -> None:
        """This process ends here, and nothing of the program's runs any further."""
        self.error, self.has_enough = self.error or error, not error
        self.write()
        until = time.monotonic() + OTHERS_END_S
        while time.monotonic() < until and not all(
                file_of(self.folder, rank).exists() for rank in range(rank_and_world_size()[1])):
            time.sleep(0.02)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def is_of_the_job() -> bool:
    return multiprocessing.parent_process() is None and "RANK" in os.environ


def error_text(error: BaseException, trace: Any) -> str:
    """With the line of the program where it left torch's, a library's or our own last."""
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((PACKAGE, "<")) and "site-packages" not in code.co_filename:
            place = f" ({pathlib.Path(code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}{place}"


def by_gloo() -> None:
    """On CPUs, whatever backend the program names."""
    original: Any = dist.init_process_group

    def init_process_group(*_backend: Any, **options: Any) -> Any:
        given = dict(zip(("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name"), _backend,
                         strict=False)) | options
        given.pop("device_id", None)
        return original(**(given | {"backend": "gloo"}))
    new: Any = dist.new_group

    def new_group(*arguments: Any, **options: Any) -> Any:
        return new(*arguments[:2], **({**options, "backend": "gloo"}))
    for owner in (dist, dist.distributed_c10d):
        owner.init_process_group, owner.new_group = init_process_group, new_group  # type: ignore[attr-defined]


def begin(plan: str) -> None:
    """Called at the end of `import torch`, with the file of the plan."""
    Proved(json.loads(pathlib.Path(plan).read_text())).install()
