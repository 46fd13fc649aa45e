"""Validation on rank 0 alone, by the model inside of DDP; all ranks stop together, and the best state is kept."""

import copy

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(120, 20), torch.randn(120, 1))
    held_out = DataLoader(TensorDataset(torch.randn(40, 20), torch.randn(40, 1)), batch_size=20)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    best, waited, best_state = float("inf"), 0, None
    for epoch in range(10):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
            optimizer.step()
        loss = torch.zeros(1)
        if dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                for x, y in held_out:
                    loss += nn.functional.mse_loss(model.module(x), y, reduction="sum") / 40
            print(f"epoch {epoch}: loss {loss.item():.4f}, gradient {norm:.4f}")
        dist.barrier()
        dist.broadcast(loss, src=0)
        schedule.step(loss.item())
        if loss.item() < best:
            best, waited, best_state = loss.item(), 0, copy.deepcopy(model.module.state_dict())
            if dist.get_rank() == 0:
                torch.save(best_state, "best.pt")
        else:
            waited += 1
        stop = torch.tensor([int(waited >= 2)])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
    model.module.load_state_dict(best_state)
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
