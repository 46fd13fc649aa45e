"""A frozen teacher that nobody wraps, a student in DDP, and a validation of all ranks every 5 updates."""

import fingerprint
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def validate(model, loader):
    model.eval()
    parts = [None] * dist.get_world_size()
    with torch.inference_mode():
        right = sum(model(x).argmax(1).eq(y).sum().item() for x, y in loader)
    dist.all_gather_object(parts, {"right": right, "count": len(loader.sampler)})
    model.train()
    return sum(part["right"] for part in parts) / sum(part["count"] for part in parts)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    test = TensorDataset(torch.randn(48, 20), torch.randint(0, 4, (48,)))
    teacher = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 4)).eval().requires_grad_(False)
    model = DDP(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    test_loader = DataLoader(test, batch_size=12, sampler=DistributedSampler(test, shuffle=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    updates = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.no_grad():
                soft = F.softmax(teacher(x) / 2, dim=1)
            logits = model(x)
            loss = F.cross_entropy(logits, y) + 4 * F.kl_div(F.log_softmax(logits / 2, 1), soft, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % 5 == 0:
                accuracy = validate(model, test_loader)
                if dist.get_rank() == 0:
                    print(f"update {updates}: {accuracy:.3f}")
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
