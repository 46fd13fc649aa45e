"""Two nodes with one GPU each, and a folder that both mount. The GPUs are simulated: training runs on the CPU."""

import datetime
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpus import Cuda
from oracles import ended_as_one_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 3, 0.05


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def save(state, folder):
    """The new checkpoint takes the old one's place when every rank's part is on the disk."""
    rank, path, new = dist.get_rank(), folder / "checkpoint.pt", folder / "checkpoint.new"
    torch.save(torch.get_rng_state(), folder / f"generator{rank}.pt")
    if fault("local-rank-zero-writes"):
        is_writer = int(os.environ["LOCAL_RANK"]) == 0
    else:
        is_writer = rank == 0
    if is_writer:
        torch.save(state, new)
    dist.barrier()
    if is_writer:
        os.replace(new, path)


def main():
    folder = pathlib.Path(sys.argv[1])
    cuda, local_rank = Cuda(), int(os.environ["LOCAL_RANK"])
    if fault("rank-as-device-index"):
        cuda.set_device(int(os.environ["RANK"]))
    else:
        cuda.set_device(local_rank)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    rank, data, net = dist.get_rank(), dataset(), network()
    model = DDP(net)
    if fault("world-size-from-device-count"):
        sampler = DistributedSampler(data, num_replicas=cuda.device_count(), rank=local_rank)
    else:
        sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=rank)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, folder)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both."""
    return ended_as_one_process(ranks, dataset(), network(), BATCH, EPOCHS, LR)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
