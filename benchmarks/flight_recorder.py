"""Diagnosing the flight-recorder dumps of a large job, against PyTorch's fr_trace on the same dumps.

usage: ./lockstep bench flight_recorder [PROGRAM] [--ranks 1024,4096,16384] [--repeats N] [--fr-trace-limit S]
                                        [--out FILE]

PROGRAM is the built lockstep-course; without it, the newest below build/. The job is simulated: every rank is in
the default group and in one of 8 ranks, and its dump, in NCCL's format, has 50 calls with 8 stack frames each
(JSON dumps have no frames, as torch writes none there) and the ranks of its groups, as torch writes them: the
list of a group of all N ranks is in all N dumps, so the bytes grow with its square. One rank did not call the
last collective of the default group; a run counts only if exactly that is found. Wall time from start to end of
the process, on two CPUs, with the files in memory where they fit; the peak of its resident memory. fr_trace runs
once, where it ends within the limit.
"""

import argparse
import glob
import json
import os
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ENTRIES, FRAMES, GROUP = 50, 8, 8
TARGET = {"ranks": 16384, "seconds": 15.0, "gib": 4.0}
TIMEOUT_S = 600


def frames_of_a_job():
    """A stack for each of the two calls: half of the frames in torch, half in the program."""
    def frame(level, of):
        inside = level < FRAMES // 2
        return {"name": f"{of}_{level}", "line": 100 + level,
                "filename": f"/opt/venv/lib/python3.11/site-packages/torch/distributed/file_{level}.py" if inside
                else f"/opt/job/source/trainer/file_{level}.py"}
    outer = [frame(level, "outer") for level in range(2, FRAMES)]
    return [[frame(0, of), frame(1, of), *outer] for of in ("all_reduce", "all_gather")]


def entries_of(rank, lacks_last):
    stacks = frames_of_a_job()
    group = str(1 + rank // GROUP)
    entries = []
    for record in range(ENTRIES):
        default = record % 2 == 1
        sequence = record // 2 + 1
        size = 1000 + sequence
        completed = record < ENTRIES - 2
        entries.append({
            "frames": stacks[0 if default else 1], "record_id": record, "pg_id": 0 if default else 1,
            "process_group": ("0", "default_pg") if default else (group, "tensor_parallel"),
            "thread_name": "pt_main_thread", "thread_id": "139860776147840", "collective_seq_id": sequence,
            "p2p_seq_id": 0, "op_id": sequence,
            "profiling_name": "nccl:all_reduce" if default else "nccl:_all_gather_base",
            "time_created_ns": 1795278347610397775 + 1000003 * record + rank,
            "input_sizes": [[size, 64]], "input_dtypes": ["Float"],
            "output_sizes": [[size, 64]] if default else [[GROUP * size, 64]], "output_dtypes": ["Float"],
            "state": "completed" if completed or not default else "started",
            "time_discovered_started_ns": 1795278347610397775 + 1000003 * record + rank + 5000,
            "time_discovered_completed_ns": 1795278347610397775 + 1000003 * record + 90000 if completed else None,
            "retired": completed, "timeout_ms": 600000, "is_p2p": False})
    return entries[:-1] if lacks_last else entries


def write_dumps(folder, ranks, missing, kind):
    world = "[" + ", ".join(map(str, range(ranks))) + "]"
    size = 0
    for rank in range(ranks):
        first = rank - rank % GROUP
        group = str(1 + rank // GROUP)
        dump = {"version": "2.10", "pg_config": {
                    "0": {"name": "0", "desc": "default_pg", "ranks": world},
                    group: {"name": group, "desc": "tensor_parallel",
                            "ranks": "[" + ", ".join(map(str, range(first, first + GROUP))) + "]"}},
                "comm_lib_version": "2.28.9",
                "pg_status": {str(id): {"last_enqueued_collective": 25, "last_started_collective": 25,
                                        "last_completed_collective": 24} for id in (0, 1)},
                "entries": entries_of(rank, rank == missing)}
        if kind == "json":
            for entry in dump["entries"]:
                del entry["frames"]
            data = json.dumps(dump, separators=(",", ":")).encode()
        else:
            data = pickle.dumps(dump, protocol=2)
        with open(os.path.join(folder, f"nccl_trace_rank_{rank}"), "wb") as file:
            file.write(data)
        size += len(data)
    return size


def run(command, limit):
    """Seconds, the peak in GiB, exit code and output; None where it ran past the limit."""
    with tempfile.TemporaryFile() as out:
        start = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode == -9:
            return None
        out.seek(0)
        return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "gib": usage.ru_maxrss / 2**20, "code": process.returncode, "output": out.read().decode()}


def ours(program, folder, missing, repeats):
    runs = []
    for _ in range(repeats):
        result = run([program, "diagnose", folder, "--json"], TIMEOUT_S)
        if result is None or result["code"] != 1:
            raise SystemExit(f"the diagnosis failed: {result and result['output'][:2000]}")
        findings = json.loads(result["output"])["findings"]
        named = [(f["pitfall"], f["ranks"], f["sequence"]) for f in findings]
        if named != [("no-progress", [missing], ENTRIES // 2)]:
            raise SystemExit(f"a wrong verdict: {named}")
        runs.append(result)
    return {"seconds": statistics.median(r["seconds"] for r in runs), "all_seconds": [r["seconds"] for r in runs],
            "cpu_seconds": statistics.median(r["cpu_seconds"] for r in runs), "gib": max(r["gib"] for r in runs)}


def fr_trace(folder, missing, limit):
    result = run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder,
                  "-p", "nccl_trace_rank_"], limit)
    if result is None:
        return {"seconds": None, "why": f"not done after {limit} s"}
    right = re.search(rf"Not all ranks joining collective, sequence number: {ENTRIES // 2}\b.*?"
                      rf"missing ranks: \{{{missing}\}}", result["output"], re.DOTALL)
    return {"seconds": result["seconds"], "gib": result["gib"], "right": bool(right)}


def measure(program, ranks, kind, repeats, limit):
    missing = ranks // 2 + 3
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        size = write_dumps(folder, ranks, missing, kind)
        row = {"ranks": ranks, "kind": kind, "mib": size / 2**20, "lockstep": ours(program, folder, missing, repeats)}
        row["lockstep"]["microseconds_per_call"] = 1e6 * row["lockstep"]["seconds"] / (ranks * ENTRIES)
        if limit > 0 and kind == "pickle":
            row["fr_trace"] = theirs = fr_trace(folder, missing, limit)
            if theirs["seconds"]:
                row["ratio_to_fr_trace"] = row["lockstep"]["seconds"] / theirs["seconds"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--ranks", default="1024,4096,16384")
    parser.add_argument("--kinds", default="pickle,json")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fr-trace-limit", type=float, default=150, help="seconds; 0: leave it out")
    parser.add_argument("--out", default=os.path.join(HERE, "..", "reports", "out", "flight_recorder.json"))
    arguments = parser.parse_args()
    built = sorted(glob.glob(os.path.join(HERE, "..", "build", "*", "lockstep-course")), key=os.path.getmtime)
    program = arguments.program or (built[-1] if built else parser.error("lockstep-course is not built"))
    cpus = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cpus)
    settings = {"entries_a_rank": ENTRIES, "frames_an_entry": FRAMES, "group_of": GROUP, "cpus": len(cpus),
                "repeats": arguments.repeats, "load_average_before": os.getloadavg()}
    try:
        import importlib.metadata
        settings["torch"] = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        arguments.fr_trace_limit = 0
    rows = []
    for kind in arguments.kinds.split(","):
        for ranks in map(int, arguments.ranks.split(",")):
            rows.append(row := measure(program, ranks, kind, arguments.repeats, arguments.fr_trace_limit))
            print(json.dumps(row), file=sys.stderr, flush=True)
    result = {"benchmark": "flight_recorder", "target": TARGET, "settings": settings, "rows": rows}
    largest = [row["lockstep"] for row in rows if row["ranks"] == TARGET["ranks"]]
    if largest:
        result["met"] = all(row["seconds"] <= TARGET["seconds"] and row["gib"] <= TARGET["gib"] for row in largest)
    os.makedirs(os.path.dirname(os.path.abspath(arguments.out)), exist_ok=True)
    with open(arguments.out, "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
