"""Cross-validation: for each fold a new model, a new DDP, a new optimizer and new samplers in one process."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

FOLDS = 3


def fit(train_set, test_set):
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=10, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = [(model(x) - y).pow(2).sum() for x, y in DataLoader(test_set, batch_size=20)]
    return model, sum(errors).item() / len(test_set)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(120, 20), torch.randn(120, 1))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(5)).tolist()
    for fold in range(FOLDS):
        held_out = order[fold::FOLDS]
        model, error = fit(Subset(data, [i for i in order if i not in held_out]), Subset(data, held_out))
        if dist.get_rank() == 0:
            print(f"fold {fold}: {error:.4f}")
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
