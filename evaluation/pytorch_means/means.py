"""Runs a program under one of PyTorch's means, for real, and gives back what could be seen of it.

plain      nothing switched on
info       TORCH_DISTRIBUTED_DEBUG=INFO
detail     TORCH_DISTRIBUTED_DEBUG=DETAIL
flight     TORCH_FR_BUFFER_SIZE=2000; every rank dumps at its end, and fr_trace reads the dumps
barrier    dist.monitored_barrier in every step, after its batch was fetched: there it sees most

Ranks are started by torch.multiprocessing, forked from a process that has only imported torch. Its report is that of
the launcher; other ranks get SPEAK_S longer than torchrun would give them, so that all can say what they saw.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import pickle
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch._inductor.codecache  # a dump imports it, which takes a second: once, before anything is forked
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.flight_recorder import fr_trace
from torch.utils.data.dataloader import _BaseDataLoaderIter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "tests"))
from start import numbered

MEANS = ("plain", "info", "detail", "flight", "barrier")
DEADLINE_S = 35  # some collectives time out after 20 s
SPEAK_S = 2
EVERYBODY_S = 6  # until all ranks have dumped
BARRIER_TIMEOUT = datetime.timedelta(seconds=2)  # less than any collective's: it speaks first
PREFIX = "nccl_trace_rank_"


@dataclasses.dataclass(frozen=True)
class Job:
    """A program, which gets a folder of its own as its argument."""
    program: pathlib.Path
    ranks: int = 2
    nodes: int = 1  # so many it is told of; all ranks are here
    attempts: int = 1  # that often it is started
    variables: dict = dataclasses.field(default_factory=dict)


def dump(folder, rank, everybody):
    """As NCCL's recorder on a timeout; nobody leaves before all have dumped, which would be another fault."""
    (folder / f"{PREFIX}{rank}.gloo").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
    try:
        everybody.wait(EVERYBODY_S)
    except (RuntimeError, OSError):  # somebody died
        pass


def barrier_in_every_step():
    """Steps are batches of a DataLoader; an evaluation's are none."""
    next_batch = _BaseDataLoaderIter.__next__

    def checked(self):
        batch = next_batch(self)
        if torch.is_grad_enabled():
            dist.monitored_barrier(timeout=BARRIER_TIMEOUT, wait_all_ranks=True)
        return batch
    _BaseDataLoaderIter.__next__ = checked


def other_seeds(seed):
    """The program's own seeds, moved: other initial weights and draws."""
    manual_seed = torch.manual_seed
    torch.manual_seed = lambda number: manual_seed(number + 10_000 * seed)


def rank_main(rank, job, means, seed, folder, port, everybody):
    log = os.open(folder / f"rank_{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(numbered(rank, job.ranks, job.nodes), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **job.variables)
    if means in ("info", "detail"):
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = means.upper()
        dist.set_debug_level_from_env()
    if means == "flight":
        os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    if means == "barrier":
        barrier_in_every_step()
    if seed:
        other_seeds(seed)
    torch.set_num_threads(1)
    sys.path.insert(0, str(job.program.parent))
    sys.argv = [str(job.program), str(folder)]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        if means == "flight":
            dump(folder, rank, everybody)


def launcher_main(folder, job, means, seed):
    """Starts the ranks, and says how they ended. Never returns."""
    os.setsid()
    log = os.open(folder / "launcher.log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tempfile.tempdir = str(folder)
    code, context = 1, None
    try:
        for _ in range(job.attempts):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            everybody = torch.multiprocessing.get_context("fork").Barrier(job.ranks)
            context = torch.multiprocessing.start_processes(
                rank_main, (job, means, seed, folder, port, everybody), job.ranks, join=False, start_method="fork")
            while not context.join(grace_period=SPEAK_S):
                pass
        code = 0
    except BaseException:  # its text is what torch.multiprocessing's caller sees
        traceback.print_exc()
    finally:
        if context:
            (folder / "ended.json").write_text(json.dumps([process.exitcode for process in context.processes]))
        os._exit(code)


def ended_in_time(pid, deadline_s):
    """Waits for a process; whether it has ended."""
    limit = time.monotonic() + deadline_s
    while time.monotonic() < limit:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.02)
    return False


def in_process(main, *arguments, deadline_s):
    """Runs it in a process of its own that leads a session; whether it ended in time. Nothing of it is left."""
    pid = os.fork()
    if pid == 0:
        try:
            main(*arguments)
        finally:
            os._exit(1)
    in_time = ended_in_time(pid, deadline_s)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if not in_time:
        os.waitpid(pid, 0)
    return in_time


def groups_of(contents, ranks):
    """{group's name: its ranks} of all ranks' dumps; of a group beside the default one, those that have used it."""
    used = {"0": set(range(ranks))}
    for rank, content in contents.items():
        for entry in content["entries"]:
            used.setdefault(entry["process_group"][0], set()).add(rank)
    return used


def relabel(content, groups):
    """As NCCL's recorder would have written it: fr_trace does not read Gloo's."""
    content["pg_config"] = {name: {"name": name, "desc": "default_pg" if name == "0" else "undefined",
                                   "ranks": str(sorted(groups[name]))} for name in sorted(groups)}
    for entry in content["entries"]:
        name = entry["profiling_name"].replace("gloo:", "nccl:")
        entry["profiling_name"] = "nccl:all_reduce_barrier" if name == "nccl:barrier" else name


def fr_trace_main(folder, options):
    os.setsid()
    log = os.open(folder / "fr_trace.log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        fr_trace.main([str(folder), "-p", PREFIX, *options])
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        print("fr_trace failed", flush=True)
        os._exit(1)


def analyse(folder, ranks):
    """What fr_trace says of the dumps; nothing where no rank has recorded a collective."""
    paths = {rank: folder / f"{PREFIX}{rank}.gloo" for rank in range(ranks)}
    dumps = {rank: pickle.loads(path.read_bytes()) for rank, path in paths.items() if path.exists()}
    if not any(content["entries"] for content in dumps.values()):
        return None
    groups = groups_of(dumps, ranks)
    for rank, content in dumps.items():
        relabel(content, groups)
        paths[rank].with_suffix("").write_bytes(pickle.dumps(content, protocol=2))
        paths[rank].unlink()
    in_process(fr_trace_main, folder, [] if len(dumps) == ranks else ["--allow-incomplete-ranks"],
               deadline_s=DEADLINE_S)
    return (folder / "fr_trace.log").read_text(errors="replace")


def text_of(path):
    return path.read_text(errors="replace") if path.exists() else ""


def run(job, means, seed=0):
    """One run: texts by speaker, exit codes, and of the flight recorder what fr_trace says."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-means-"))
    begin = time.monotonic()
    try:
        in_time = in_process(launcher_main, folder, job, means, seed, deadline_s=DEADLINE_S)
        return {"means": means, "seed": seed, "in_time": in_time, "ended": json.loads(text_of(folder / "ended.json") or "null"),
                "texts": {**{str(rank): text_of(folder / f"rank_{rank}.log") for rank in range(job.ranks)},
                          "launcher": text_of(folder / "launcher.log")},
                "fr_trace": analyse(folder, job.ranks) if means == "flight" else None,
                "seconds": round(time.monotonic() - begin, 2)}
    finally:
        shutil.rmtree(folder)
