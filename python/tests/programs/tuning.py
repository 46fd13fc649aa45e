"""Fine-tuning: a new head on a trained body learns to tell a curve's phase, and later the body too, without DDP."""

import copy
import pathlib

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 43
EPOCHS = 10
UNFREEZE = 4  # the epoch from which the body learns too
BATCH = 8
CURVES = 96
POINTS = 24
BODY = pathlib.Path("body.pt")
RATE = 0.05
DECAY = 0.9  # of the averaged weights


def curves(number, seed):
    """Noisy waves, and of each its frequency and its phase."""
    dice = torch.Generator().manual_seed(seed)
    frequency, phase = 1 + 2 * torch.rand(number, generator=dice), 2 * torch.rand(number, generator=dice)
    waves = torch.sin(frequency[:, None] * torch.linspace(0, 3, POINTS) + phase[:, None])
    return waves + 0.6 * torch.randn(waves.shape, generator=dice), frequency, phase


def make_body():
    return nn.Sequential(nn.Linear(POINTS, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
                         nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU())


def pretrain(path):
    """What a download would leave: a body that has learned to tell frequencies."""
    torch.manual_seed(SEED)
    net = nn.Sequential(make_body(), nn.Linear(32, 1))
    waves, frequency, _ = curves(512, SEED + 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        mse_loss(net(waves).squeeze(1), frequency).backward()
        optimizer.step()
    torch.save(net[0].state_dict(), path)


class Net(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.body = make_body()
        self.body.load_state_dict(torch.load(path))
        self.body.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1))

    def train(self, mode=True):
        """The body's batch norm keeps the statistics that it came with."""
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, waves):
        return self.head(self.body(waves)).squeeze(1)


def average_gradients(parameters, world):
    """In one message, all gradients become their mean over the ranks."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def follow(average, net):
    """The averaged weights move towards the net's."""
    for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
        slow.mul_(DECAY).add_(fast, alpha=1 - DECAY)
    for slow, fast in zip(average.buffers(), net.buffers(), strict=True):
        slow.copy_(fast)


@torch.no_grad()
def validate(net, waves, phases, rank, world):
    """The mean squared error over all ranks' shares."""
    net.eval()
    error = mse_loss(net(waves[rank::world]), phases[rank::world], reduction="sum").double()
    dist.all_reduce(error)
    return error.item() / len(waves)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        pretrain(BODY)
    dist.barrier()
    torch.manual_seed(SEED + rank)
    net = Net(BODY)
    for parameter in net.head.parameters():
        dist.broadcast(parameter.detach(), src=0)
    waves, _, phases = curves(CURVES, SEED + 2)
    held_waves, _, held_phases = curves(96, SEED + 3)
    data = TensorDataset(torch.arange(CURVES), waves, phases)
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(net.head.parameters(), lr=RATE, momentum=0.9)
    average = copy.deepcopy(net)
    losses, seen, validated, best, kept = [], [], [], float("inf"), None
    for epoch in range(EPOCHS):
        if epoch == UNFREEZE:
            net.body.requires_grad_(True)
            optimizer.add_param_group({"params": net.body.parameters(), "lr": RATE / 2})
        sampler.set_epoch(epoch)
        net.train()
        seen.append([])
        for numbers, batch, targets in loader:
            optimizer.zero_grad()
            loss = mse_loss(net(batch), targets)
            loss.backward()
            average_gradients(net.parameters(), world)
            clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            follow(average, net)
            losses.append(loss.item())
            seen[-1] += numbers.tolist()
        validated.append(validate(average, held_waves, held_phases, rank, world))
        if validated[-1] < best:
            best, kept = validated[-1], copy.deepcopy(average.state_dict())
        if rank == 0:
            print(f"epoch {epoch}: held-out error {validated[-1]:.4f}")
    net.load_state_dict(kept)
    held_out = validate(net, held_waves, held_phases, rank, world)
    if rank == 0:
        print(f"best {held_out:.4f}")
    fingerprint.say(net)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
