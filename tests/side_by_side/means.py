"""Runs one variant of a twin under one of PyTorch's means, for real, and gives back what could be seen of it.

plain      nothing switched on
info       TORCH_DISTRIBUTED_DEBUG=INFO
detail     TORCH_DISTRIBUTED_DEBUG=DETAIL
flight     TORCH_FR_BUFFER_SIZE=2000; every rank dumps at its end, and fr_trace reads the dumps
barrier    dist.monitored_barrier after every step

Ranks are started by torch.multiprocessing, forked from a process that has only imported torch. Its report is that of
the launcher; other ranks get SPEAK_S longer than torchrun would give them, so that all can say what they saw.
"""

import json
import os
import pathlib
import pickle
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

from job import TIMEOUT_S, WORLD, Job
from twins import load_all

MEANS = ("plain", "info", "detail", "flight", "barrier")
DEADLINE_S = 25
SPEAK_S = 2
PREFIX = "nccl_trace_rank_"


def dump(folder, rank, everybody):
    """As NCCL's recorder on a timeout; nobody leaves before all have dumped, which would be another fault."""
    (folder / f"{PREFIX}{rank}.gloo").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
    try:
        everybody.wait(TIMEOUT_S + SPEAK_S)
    except (RuntimeError, OSError):  # somebody died
        pass


def rank_main(rank, slug, broken, means, seed, folder, data, listener, everybody):
    log = os.open(folder / f"rank_{rank}.log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if means in ("info", "detail"):
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = means.upper()
        dist.set_debug_level_from_env()
    if means == "flight":
        os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    torch.set_num_threads(1)
    job = Job(rank, seed, str(folder), listener, data, means == "barrier")
    try:
        load_all()[slug].run(job, broken)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        seen = {"losses": job.losses, "metrics": job.metrics, "figures": job.figures}
        (folder / f"rank_{rank}.json").write_text(json.dumps(seen))
        if means == "flight":
            dump(folder, rank, everybody)
    if dist.is_initialized():
        dist.destroy_process_group()


def launcher_main(folder, arguments):
    """Starts the ranks, and says how they ended. Never returns."""
    os.setsid()
    log = os.open(folder / "launcher.log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tempfile.tempdir = str(folder)
    listener = socket.create_server(("127.0.0.1", 0))
    everybody = torch.multiprocessing.get_context("fork").Barrier(WORLD)
    code, context = 1, None
    try:
        context = torch.multiprocessing.start_processes(
            rank_main, (*arguments, listener, everybody), WORLD, join=False, start_method="fork")
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


def relabelled(raw, world=WORLD):
    """As NCCL's recorder would have written it: fr_trace does not read Gloo's."""
    content = pickle.loads(raw)
    names = {entry["process_group"][0] for entry in content["entries"]}
    content["pg_config"] = {name: {"name": name, "desc": "default_pg" if name == "0" else "undefined",
                                   "ranks": str(list(range(world)))} for name in sorted(names | {"0"})}
    for entry in content["entries"]:
        name = entry["profiling_name"].replace("gloo:", "nccl:")
        entry["profiling_name"] = "nccl:all_reduce_barrier" if name == "nccl:barrier" else name
    return content


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


def analyse(folder):
    """What fr_trace says of the dumps; nothing where no rank has recorded a collective."""
    dumps = {path: relabelled(path.read_bytes()) for path in folder.glob(f"{PREFIX}*.gloo")}
    if not any(content["entries"] for content in dumps.values()):
        return None
    for path, content in dumps.items():
        path.with_suffix("").write_bytes(pickle.dumps(content, protocol=2))
        path.unlink()
    in_process(fr_trace_main, folder, [] if len(dumps) == WORLD else ["--allow-incomplete-ranks"],
               deadline_s=DEADLINE_S)
    return (folder / "fr_trace.log").read_text(errors="replace")


def text_of(path):
    return path.read_text(errors="replace") if path.exists() else ""


def run(slug, broken, means, seed, data):
    """One run: texts by speaker, exit codes, losses, metrics, and whether the oracle holds."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-twin-"))
    begin = time.monotonic()
    try:
        in_time = in_process(launcher_main, folder, (slug, broken, means, seed, folder, data), deadline_s=DEADLINE_S)
        seen = [json.loads(text_of(folder / f"rank_{rank}.json") or "null") for rank in range(WORLD)]
        ended = json.loads(text_of(folder / "ended.json") or "null")
        in_order = in_time and ended == [0] * WORLD
        return {"slug": slug, "broken": broken, "means": means, "seed": seed, "in_time": in_time, "ended": ended,
                "texts": {**{str(rank): text_of(folder / f"rank_{rank}.log") for rank in range(WORLD)},
                          "launcher": text_of(folder / "launcher.log")},
                "fr_trace": analyse(folder) if means == "flight" else None,
                "losses": [one["losses"] for one in seen if one], "metrics": [one["metrics"] for one in seen if one],
                "holds": in_order and bool(load_all()[slug].holds([one["figures"] for one in seen])),
                "seconds": round(time.monotonic() - begin, 2)}
    finally:
        shutil.rmtree(folder)
