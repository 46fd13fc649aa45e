"""A training script as people write it, and one thing wrong with it, named by its first argument.

With JOB_DEVICE=cuda in the environment it trains on GPUs over NCCL. Where there are fewer than ranks, ranks share them.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    get_worker_info,
    random_split,
)

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
DEVICE = torch.device(os.environ.get("JOB_DEVICE", "cpu"))


class Stream(IterableDataset):
    """Without a length. Each worker yields its part of what this rank reads."""

    def __init__(self, data, rank, world_size):
        self.data, self.rank, self.world_size = data, rank, world_size

    def __iter__(self):
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        for index in range(self.rank * workers + number, len(self.data), self.world_size * workers):
            yield self.data[index]


def join():
    if DEVICE.type != "cuda":
        return dist.init_process_group("gloo")
    gpus = torch.cuda.device_count()
    if gpus < int(os.environ["LOCAL_WORLD_SIZE"]):  # NCCL refuses one GPU to two ranks of a host: each is a host then
        os.environ.update(NCCL_HOSTID=os.environ["RANK"], NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo",
                          NCCL_MNNVL_ENABLE="0")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    return dist.init_process_group("nccl")


def main():
    join()
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(200, 20), torch.randint(0, 4, (200,)))
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 32), torch.nn.ReLU(),
        torch.nn.Dropout(0.1 if FAULT == "another-dropout" and rank == 1 else 0.5), torch.nn.Linear(32, 4)).to(DEVICE)
    ddp = DistributedDataParallel(net)
    rate = 0.2 if FAULT == "another-rate" and rank == 1 else 0.1
    if FAULT == "near-miss-own-hooks":  # the program's hooks count, ours must not take their place
        for parameter in net.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate, momentum=0.9)
    size = 15 if FAULT == "another-batch-size" and rank == 1 else 16
    part = random_split(data, [160, 40], torch.Generator().manual_seed(rank))[0] if FAULT == "own-split" else data
    sampler = None if FAULT == "no-sampler" else DistributedSampler(part)
    loader = DataLoader(part, batch_size=size, sampler=sampler, shuffle=False,
                        num_workers=2 if FAULT.startswith("near-miss") else 0, pin_memory=DEVICE.type == "cuda")
    if "stream" in FAULT:
        whole = FAULT == "whole-stream"
        loader = DataLoader(Stream(data, 0 if whole else rank, 1 if whole else 2), batch_size=16, num_workers=2)
    for epoch in range(3):
        if sampler is not None and FAULT not in ("no-set-epoch", "raises-at-first"):
            sampler.set_epoch(epoch)
        if FAULT == "rate-later" and epoch == 1:  # on all ranks
            optimizer.param_groups[0]["lr"] = 0.2
        ddp.train()
        for number, (inputs, targets) in enumerate(loader):
            inputs, targets = inputs.to(DEVICE, non_blocking=True), targets.to(DEVICE, non_blocking=True)
            if number == 3 and FAULT == "near-miss-validation-inside":
                with torch.no_grad():
                    for batch, _ in DataLoader(data, batch_size=50, sampler=DistributedSampler(data, shuffle=False)):
                        net(batch.to(DEVICE))
            optimizer.zero_grad()
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=FAULT == "another-autocast" and rank == 1):
                outputs = net(inputs) if FAULT == "inner-forward" else ddp(inputs)
            loss = torch.nn.functional.cross_entropy(outputs, targets)
            if FAULT == "asks-for-gradients":  # and leaves .grad alone
                torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
            torch.autograd.backward(part for part in [loss])
            optimizer.step()
        if FAULT == "one-rank-receives" and rank == 1 and epoch == 1:
            dist.recv(torch.ones(3, device=DEVICE), src=0)  # for ever
        if FAULT == "one-rank-raises" and rank == 1 and epoch == 1:
            raise ValueError("a batch of this rank is broken")
        if FAULT == "one-rank-dies" and rank == 1 and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out
        if FAULT == "raises-at-first" and epoch == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("the first attempt ends here")
        ddp.eval()
        with torch.no_grad():
            ddp(data.tensors[0][:16].to(DEVICE))
    total = sum(parameter.detach().double().sum() for parameter in net.parameters())
    sys.stdout.write(f"rank {rank}: {total.item().hex()}\n")  # in one piece, of several ranks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
