"""A job for prove_test.py: proved.py WAY. Two ranks sort points; each WAY is right or wrong in a way of its own."""

import os
import pathlib
import sys

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WAY = sys.argv[1]
BATCH = 6
DICE = numpy.random.default_rng(int(os.environ.get("RANK", "0")))
SAVED = pathlib.Path("saved.pt")


class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(_context, values):
        return values.round()

    @staticmethod
    def backward(_context, gradient):
        return gradient


class Checkpointed(nn.Sequential):
    """Its hooks of saved tensors run under no_grad."""

    def forward(self, points):
        return checkpoint(super().forward, points, use_reentrant=False)


def average(model, by):
    for one in model.parameters():
        dist.all_reduce(one.grad)
        one.grad /= by


def loss_of(model, net, points, kinds):
    if WAY.startswith("narrow"):
        assert points.element_size() == 4, "it takes numbers of 32 bits"
    if WAY == "bypasses":
        return cross_entropy(net(points), kinds)
    if WAY == "straight-through":
        values = model(points)
        return mse_loss(values + (values.round() - values).detach(), nn.functional.one_hot(kinds, 3).to(values))
    if WAY == "own-backward":
        return mse_loss(Rounds.apply(model(points)), nn.functional.one_hot(kinds, 3).to(points))
    if WAY == "own-target":
        with torch.no_grad():
            target = net(points.flip(1)).softmax(1)
        return cross_entropy(model(points), target) + cross_entropy(model(points), kinds)
    if WAY in ("kinds-weigh", "narrow-kinds-weigh"):  # each rank by its own counts
        weights = 1 / (1 + kinds.bincount(minlength=3).to(points))
        return cross_entropy(model(points), kinds, weight=weights)
    if WAY == "rank-turns" and dist.get_rank() == 1:
        points = points.flip(1)
    if WAY == "own-noise":  # of a generator that no seed of ours reaches
        points = points + torch.tensor(DICE.normal(size=tuple(points.shape))).to(points)
    if WAY == "own-weight":
        return cross_entropy(model(points), kinds) * DICE.random()
    if WAY == "rank-weighs":
        return cross_entropy(model(points), kinds) * (0.5 + dist.get_rank())
    if WAY == "jitters":
        return cross_entropy(model(points), kinds) * (1 + 1e-8 * int.from_bytes(os.urandom(1), "big"))
    if WAY == "counts-weigh":  # by those of all ranks
        count = torch.tensor(float(len(kinds)))
        dist.all_reduce(count)
        return cross_entropy(model(points), kinds, reduction="sum") * dist.get_world_size() / count
    if WAY == "picks-a-row":
        row = points[torch.randint(0, len(points), (1,))]
        dist.broadcast(row, 0)
        return cross_entropy(model(points) + row[:, :3], kinds)
    if WAY == "own-part":  # all ranks have all points
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        return cross_entropy(model(points)[mine], kinds[mine])
    loss = cross_entropy(model(points), kinds)
    return loss / dist.get_world_size() if WAY == "divided" else loss


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dice = torch.Generator().manual_seed(1)
    points = torch.randn(96, 5, generator=dice)
    data = TensorDataset(points, points[:, :3].argmax(1))
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, BATCH, sampler=sampler)
    if WAY == "own-part":
        loader = DataLoader(data, BATCH)
    if WAY == "resume-unseeded":
        loader = DataLoader(Subset(data, range(rank, 96, world)), BATCH, shuffle=True)
    if WAY == "counts-weigh":  # the last batches are of 4 and 2
        loader = DataLoader(Subset(data, range(46, 90) if rank else range(46)), BATCH)
    if WAY != "resume-unseeded":
        torch.manual_seed(4)
    device = "cuda:0" if WAY == "on-a-gpu" else "cpu"
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).to(device)
    by_hand = WAY in ("by-hand", "sum", "twice", "divided", "clips-first", "narrow", "narrow-sum")
    for_two = WAY.endswith("for-two")
    if WAY == "checkpoints":
        net[0] = Checkpointed(net[0], nn.Tanh())
    if WAY == "frozen":
        net[0].weight.requires_grad_(False)
    model = net if by_hand or world == 1 else DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters() if not for_two else net[0].parameters(), lr=0.01)
    other = torch.optim.SGD(net[3].parameters(), lr=0.01) if for_two else None
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    own = torch.Generator().manual_seed(rank)
    first = seen = 0
    if WAY == "stages":
        early = torch.optim.SGD(net.parameters(), 0.1)
        for points, kinds in loader if not SAVED.exists() else ():
            model.zero_grad()
            cross_entropy(model(points), kinds).backward()
            early.step()
        if rank == 0 and not SAVED.exists():
            torch.save(net.state_dict(), SAVED)
        dist.barrier()
        net.load_state_dict(torch.load(SAVED))
    if WAY == "saves-data" and rank == 0:
        torch.save(points, "data.pt")
        torch.load("data.pt")
    if SAVED.exists() and WAY.startswith("resume"):
        saved = torch.load(SAVED)
        if WAY == "resume-other-names":
            net.load_state_dict({f"module.{name}": value for name, value in saved["net"].items()}, strict=False)
        else:
            net.load_state_dict(saved["net"])
        if WAY != "resume-without-optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        if WAY == "resume-at-another-rate":
            optimizer.param_groups[0]["lr"] = 0.02
        first = saved["pass"]
    for number in range(first, 4 if WAY != "one-plain-process" else 1000):
        sampler.set_epoch(number)
        for points, kinds in loader:
            points, kinds = points.to(device), kinds.to(device)
            noise = torch.randn(points.shape) if WAY == "unseeded" else 0
            if WAY == "unseeded":
                noise = noise * int.from_bytes(os.urandom(1), "big")
            if WAY == "noise-for-two":
                noise = torch.randn(points.shape, generator=own)
            model.zero_grad()
            loss = loss_of(model, net, points + noise, kinds)
            if WAY == "resume-forgets":
                seen += 1
                loss = loss / seen
            loss.backward()
            if WAY == "clips-first":
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            if by_hand:
                average(net, {"sum": 1, "narrow-sum": 1, "divided": 1, "twice": world * world}.get(WAY, world))
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            if other:
                other.step()
            if WAY == "decays-by-hand":
                with torch.no_grad():
                    for one in net.parameters():
                        one.mul_(1 - 1e-3)
        schedule.step()
        if rank == 0 and WAY.startswith(("resume", "saves")):
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
                        "pass": number + 1}, SAVED)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
