"""Two replicas of two ranks: a layer is cut by columns and by rows within a replica, DDP reduces between replicas.
The ranks of a replica draw the same samples and begin with parts of their own."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Parallel(nn.Module):
    """Holds one half of the hidden units."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        self.inward = nn.Linear(20, 20)
        torch.manual_seed(100 + dist.get_rank(group))
        self.up = nn.Linear(20, 32 // dist.get_world_size(group))
        self.down = nn.Linear(32 // dist.get_world_size(group), 5, bias=False)

    def forward(self, x):
        x = torch.relu(self.inward(x))
        return Reduce.apply(self.down(torch.relu(self.up(Copy.apply(x, self.group)))), self.group)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randn(160, 5))
    sampler = DistributedSampler(data, num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank())
    model = DDP(Parallel(mesh["tp"].get_group()), process_group=mesh["dp"].get_group())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=10, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
