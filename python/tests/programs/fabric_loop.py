"""Lightning Fabric: setup, setup_dataloaders, backward, no_backward_sync."""

import fingerprint
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(7)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=10, shuffle=True))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            is_accumulating = number % 2 == 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = nn.functional.cross_entropy(model(x), y) / 2
                fabric.backward(loss)
            if not is_accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
        fabric.save("fabric.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})
    fabric.print(f"mean loss of all ranks: {fabric.all_reduce(loss).item():.4f}")
    fingerprint.say(model)


if __name__ == "__main__":
    main()
