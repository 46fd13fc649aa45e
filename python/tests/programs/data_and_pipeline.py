"""Two replicas of two stages: DDP reduces between the replicas' first stages, and between their last ones."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    pipe, is_first = mesh["pp"].get_group(), mesh["pp"].get_local_rank() == 0
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    sampler = DistributedSampler(data, num_replicas=2, rank=mesh["dp"].get_local_rank())
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    stage = nn.Sequential(nn.Linear(20, 32), nn.ReLU()) if is_first else nn.Sequential(
        nn.Linear(32, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 4))
    model = DDP(stage, process_group=mesh["dp"].get_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 if is_first else 0.02)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            if is_first:
                out = model(x)
                dist.send(out.detach(), group_dst=1, group=pipe)
                gradient = torch.empty_like(out)
                dist.recv(gradient, group_src=1, group=pipe)
                out.backward(gradient)
            else:
                hidden = torch.empty(len(y), 32)
                dist.recv(hidden, group_src=0, group=pipe)
                nn.functional.cross_entropy(model(hidden.requires_grad_()), y).backward()
                dist.send(hidden.grad, group_dst=0, group=pipe)
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
