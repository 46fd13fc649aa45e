"""When the layers of a model are ready in backward, and when DDP reduces its buckets: two ranks on CPUs, over Gloo.

usage: torchrun --nproc-per-node 2 lessons/pictures/measure_buckets.py FILE      writes what rank 1 saw

Times one step as it should be, and one in which rank 1 leaves out a layer, so that its gradient never comes.
"""

import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, BATCH = 6, 1024, 256
BUCKET_MIB = 8  # two layers of 4 MiB each
LEFT_OUT = 4
WARM_UP = 5  # steps; DDP forms its buckets anew after the first


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x, left_out=None):
        for number, layer in enumerate(self.layers, 1):
            x = x if number == left_out else torch.tanh(layer(x))
        return x


class Times:
    """Of one backward, in milliseconds since it began."""

    def __init__(self, layers):
        self.number = {layer.weight: number for number, layer in enumerate(layers, 1)}
        for weight in self.number:
            weight.register_post_accumulate_grad_hook(self.comes)

    def comes(self, weight):
        self.ready.append({"layer": self.number[weight], "at_ms": self.now()})

    def now(self):
        return round(1e3 * (time.perf_counter() - self.begin), 2)

    def of(self, loss):
        self.ready, self.buckets, self.begin = [], [], time.perf_counter()
        loss.backward()
        return {"ready": self.ready, "buckets": self.buckets, "backward_ended_ms": self.now()}


def reduce(times, bucket):
    """DDP's all-reduce of a bucket, and when it starts and ends."""
    times.buckets.append({"layers": [times.number[weight] for weight in bucket.parameters()], "started_ms": times.now()})
    own = times.buckets[-1]

    def ended(future):
        result = future.value()[0]
        own["ended_ms"] = times.now()
        return result

    return dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future().then(ended)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    model = DistributedDataParallel(Model(), bucket_cap_mb=BUCKET_MIB)
    times = Times(model.module.layers)
    model.register_comm_hook(times, reduce)
    x = torch.randn(BATCH, WIDTH)
    for _ in range(WARM_UP):
        whole = times.of(model(x).square().mean())
    if rank == 1:
        left_out = times.of(model(x, LEFT_OUT).square().mean())
        time.sleep(1)  # what has not ended by then does not end
        figures = {"left_out_layer": LEFT_OUT, "whole": whole, "left_out": left_out}
        pathlib.Path(sys.argv[1]).write_text(json.dumps(figures), encoding="utf-8")
    else:
        try:
            times.of(model(x).square().mean())
        except RuntimeError as error:
            print(f"as expected, rank 0 waits in backward: {error}", file=sys.stderr)
    os._exit(0)  # an all-reduce is still under way


if __name__ == "__main__":
    main()
