"""Names clouds of points: the optimizer's state is cut into shards, and the job goes on from its own checkpoint."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 3
BATCH = 16
SAMPLES = 640
WARM_UP = 10
TOTAL = EPOCHS * (SAMPLES // 2 // BATCH)
SHAPES = 4


def clouds(number, seed):
    """Points on ellipsoids; the shape says which axes are long."""
    dice = torch.Generator().manual_seed(seed)
    shapes = torch.randint(0, SHAPES, (number,), generator=dice)
    axes = torch.tensor([[1.0, 1, 1], [1.6, 1, 0.6], [1.4, 1.4, 0.5], [0.7, 0.7, 1.7]])[shapes]
    points = nn.functional.normalize(torch.randn(number, 24, 3, generator=dice), dim=2) * axes[:, None]
    return points + 0.1 * torch.randn(points.shape, generator=dice), shapes


class Set(nn.Module):
    """The order of points does not matter to it."""

    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.all = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, SHAPES))

    def forward(self, points):
        hidden = self.each(points)
        return self.all(torch.cat([hidden.mean(1), hidden.amax(1)], 1))


def rate(step):
    """Rises, then falls to nothing at the end of training."""
    return 0.01 * min((step + 1) / WARM_UP, (TOTAL - step) / (TOTAL - WARM_UP))


class Job:
    def __init__(self, folder):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.file = folder / "checkpoint.pt"
        self.epoch = self.step = 0
        torch.manual_seed(self.rank)
        saved = torch.load(self.file) if self.file.exists() else None
        net = Set()
        if saved:
            net.load_state_dict(saved["net"])
        self.net = DistributedDataParallel(net)
        self.optimizer = ZeroRedundancyOptimizer(self.net.parameters(), torch.optim.AdamW, lr=0.01, weight_decay=0.05)
        if saved:
            self.optimizer.load_state_dict(saved["optimizer"])
            self.epoch, self.step = saved["epoch"], saved["step"]

    def save(self):
        self.optimizer.consolidate_state_dict(to=0)
        if self.rank == 0:
            torch.save({"net": self.net.module.state_dict(), "optimizer": self.optimizer.state_dict(),
                        "epoch": self.epoch, "step": self.step}, self.file)
        dist.barrier()

    def train(self, points, shapes, epochs, report):
        while self.epoch < epochs:
            order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
            mine = order[self.rank::self.world]
            report["seen"].append(mine.tolist())
            for chosen in mine.split(BATCH):
                for group in self.optimizer.param_groups:
                    group["lr"] = rate(self.step)
                self.optimizer.zero_grad()
                loss = cross_entropy(self.net(points[chosen]), shapes[chosen])
                loss.backward()
                self.optimizer.step()
                self.step += 1
                report["losses"].append(loss.item())
            self.epoch += 1


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    points, shapes = clouds(SAMPLES, 70)
    report = {"losses": [], "seen": []}
    job = Job(folder)
    job.train(points, shapes, 1, report)
    job.save()
    job = Job(folder)
    job.train(points, shapes, EPOCHS, report)
    with torch.no_grad():
        test_points, test_shapes = clouds(400, 71)
        report["held_out"] = cross_entropy(job.net.module(test_points), test_shapes).item()
    if job.rank == 0:
        print(f"{job.step} steps, held-out loss {report['held_out']:.4f}")
    torch.save(job.net.module.state_dict(), folder / f"rank_{job.rank}.pt")
    (folder / f"rank_{job.rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
