"""Real flight-recorder dumps: jobs of 4 ranks on Gloo, each with a fault of its own.

usage: flight_job.py OUT CASE...     writes OUT/CASE/rank_<rank> (pickled) and OUT/CASE/rank_<rank>.json

Each rank is forked from this process, which has only imported torch, and dumps when its collective ended
or failed. All ranks stay until every one has dumped: a rank that is gone would be another fault.
"""

import datetime
import multiprocessing
import os
import sys

os.environ["TORCH_FR_BUFFER_SIZE"] = "50"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch._inductor.codecache  # a dump imports it, which takes a second: once, before the ranks are forked
import torch.distributed as dist

WORLD = 4
TIMEOUT_S = 4
DEADLINE_S = 40
AT_ONCE = 5  # cases; they mostly wait


def reduce(size=8, **options):
    dist.all_reduce(torch.ones(size, dtype=options.pop("dtype", torch.float32)), **options)


def broadcast(size=3):
    dist.broadcast(torch.ones(size), 0)


def call(case, rank, pair):
    """The collectives of one case; `pair` is the group of ranks 1 and 3, None in the others."""
    if case == "missing":
        if rank != 1:
            reduce()
    elif case == "missing_first":
        if rank != 0:
            reduce()
    elif case == "two_missing":
        if rank not in (1, 3):
            reduce()
    elif case == "order":
        for each in (broadcast, reduce) if rank == 2 else (reduce, broadcast):
            each()
    elif case == "sizes":  # Gloo lets it pass
        broadcast(16 if rank == 2 else 8)
    elif case == "dtype":  # and this
        reduce(dtype=torch.int32 if rank == 2 else torch.float32)
    elif case == "subgroup":
        if rank == 1:
            reduce(group=pair)
        if rank in (0, 2):
            reduce()
    elif case in ("cut", "cut_missing"):
        for _ in range(6):
            if pair is not None:
                for _ in range(2):
                    reduce(group=pair)
            reduce()
        if case == "cut_missing" and rank != 1:
            reduce()
    else:
        assert case == "healthy", case
        reduce()


def rank_main(out, case, rank, everybody):
    if case.startswith("cut"):
        os.environ["TORCH_FR_BUFFER_SIZE"] = "8"
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(out, f"store_{case}"), WORLD), rank=rank,
                            world_size=WORLD, timeout=timeout)
    pair = dist.new_group([1, 3], timeout=timeout) if case in ("subgroup", "cut", "cut_missing") else None
    pair = pair if rank in (1, 3) else None
    dist.all_gather([torch.ones(2) for _ in range(WORLD)], torch.ones(2))
    for size in (4, 5, 6):
        reduce(size)
    everybody.wait(DEADLINE_S)
    try:
        call(case, rank, pair)
    except RuntimeError as error:
        print(f"{case}, rank {rank}: {error}", flush=True)
    recorder = torch._C._distributed_c10d
    path = os.path.join(out, case, f"rank_{rank}")
    with open(path, "wb") as file:
        file.write(recorder._dump_fr_trace())
    with open(path + ".json", "wb") as file:
        text = recorder._dump_fr_trace_json()
        file.write(text if isinstance(text, bytes) else text.encode())
    everybody.wait(DEADLINE_S)
    os._exit(0)  # a failed group does not end in order


def main():
    out, cases = sys.argv[1], sys.argv[2:]
    fork = multiprocessing.get_context("fork")
    for first in range(0, len(cases), AT_ONCE):
        ranks = []
        for case in cases[first:first + AT_ONCE]:
            os.mkdir(os.path.join(out, case))
            everybody = fork.Barrier(WORLD)
            ranks += [fork.Process(target=rank_main, args=(out, case, rank, everybody)) for rank in range(WORLD)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(DEADLINE_S)
        if any(rank.exitcode != 0 for rank in ranks):
            sys.exit(f"ranks ended with {[rank.exitcode for rank in ranks]} in {cases[first:first + AT_ONCE]}")


if __name__ == "__main__":
    main()
