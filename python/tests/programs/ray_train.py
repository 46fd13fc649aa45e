"""Ray Train's TorchTrainer: Ray starts the workers, prepares model and loader, and gathers what they report."""

import os

import fingerprint
import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_worker(config):
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(96, 12), torch.randint(0, 3, (96,)))
    loader = prepare_data_loader(DataLoader(data, batch_size=8, shuffle=True))
    model = prepare_model(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in range(3):
        if train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train.report({"loss": loss.item()})
    fingerprint.say(model)


def main():
    ray.init(num_cpus=4, include_dashboard=False)
    storage = train.RunConfig(storage_path=os.getcwd())
    scaling = train.ScalingConfig(num_workers=2, use_gpu=False)
    TorchTrainer(train_worker, train_loop_config={"lr": 1e-2}, scaling_config=scaling, run_config=storage).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
