"""One node with two GPUs, a rank for each. The GPUs are simulated: training runs on the CPU."""

import datetime
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpus import Cuda
from oracles import equal, joint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def meet(cuda):
    """The process group and its first collective. Over NCCL, as here, a barrier takes the current device."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    dist.barrier()
    cuda.synchronize()


def main():
    cuda, local_rank = Cuda(), int(os.environ["LOCAL_RANK"])
    if fault("visible-devices-remapped"):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank)
    if fault("duplicate-gpu"):
        device = 0
    else:
        device = local_rank
    if fault("device-not-set"):
        meet(cuda)
        cuda.set_device(device)
    else:
        cuda.set_device(device)
        meet(cuda)
    rank, data = dist.get_rank(), dataset()
    torch.manual_seed(4)
    model = DDP(nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            cuda.synchronize()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    print(f"rank {rank} has memory on {sorted(cuda.held)}", flush=True)
    note(held=sorted(cuda.held), weights=model.module.weight.tolist())


def oracle(ranks):
    """No GPU has memory of two ranks, and the ranks' weights are equal."""
    held = joint([one["held"] for one in ranks])
    return {"memory": len(held) == len(set(held)), "weights": equal(ranks, "weights")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
