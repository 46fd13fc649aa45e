"""A job that asks its launcher who it is, as programs do: usage: launched.py {accelerate,mpirun,srun} [FAULT]"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

LAUNCHER, *FAULT = sys.argv[1:]
# The rank, the world size, the local rank; accelerate's programs leave that to init_process_group.
NAMES = {"mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
         "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")}


def main():
    who = [int(os.environ[name]) for name in NAMES.get(LAUNCHER, ())]
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    mean = sum(inputs.mean() for inputs, _ in DataLoader(data, batch_size=16)) / 4  # before the rank is known
    if who:
        dist.init_process_group("gloo", rank=who[0], world_size=who[1])
    else:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    for epoch in range(3):
        if not FAULT:
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs - mean), targets).backward()
            optimizer.step()
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} is there\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
