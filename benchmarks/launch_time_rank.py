"""The same job as launch_time.cpp, as Python under torchrun writes it."""

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
total = torch.ones(1)
dist.all_reduce(total)
reduced = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
assert total.item() == dist.get_world_size()
rank = dist.get_rank()
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    print(reduced, flush=True)
