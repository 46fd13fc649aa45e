"""A variational autoencoder of glyphs on disk; how much the prior weighs is steered by the job's divergence from it."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

EPOCHS = 5
BATCH = 16
FILES = 8
IN_FILE = 48
SIDE = 10
LATENT = 4
AIM = 3.0  # the divergence that it is steered to


def draw(number, dice):
    """A bar across and a bar down, and one dot in thirty is wrong."""
    row, column, length = torch.randint(0, SIDE, (3, number, 1, 1), generator=dice)
    rows, columns = torch.arange(SIDE)[:, None], torch.arange(SIDE)
    bars = ((rows == row) & (columns <= length)) | ((columns == column) & (rows >= length))
    return (bars ^ (torch.rand(bars.shape, generator=dice) < 1 / 30)).flatten(1).float()


def write(folder):
    """What a download would leave: files of glyphs with their numbers, and a list of the files."""
    dice = torch.Generator().manual_seed(60)
    names = [f"glyphs_{number}.pt" for number in range(FILES)]
    for number, name in enumerate(names):
        torch.save({"numbers": torch.arange(IN_FILE) + number * IN_FILE, "glyphs": draw(IN_FILE, dice)}, folder / name)
    (folder / "files.json").write_text(json.dumps(names))


def read(folder, rank, world):
    """The rank's files."""
    names = json.loads((folder / "files.json").read_text())
    parts = [torch.load(folder / name) for name in names[rank::world]]
    return torch.cat([part["numbers"] for part in parts]), torch.cat([part["glyphs"] for part in parts])


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(SIDE * SIDE))
        self.encoder = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                     nn.Linear(64, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, SIDE * SIDE))

    def encode(self, glyphs):
        return self.encoder(glyphs - self.mean)

    def forward(self, glyphs, dice):
        """Each glyph's error, and its divergence from the prior. Its activations are not kept but computed again."""
        centre, spread = checkpoint(self.encode, glyphs, use_reentrant=False).chunk(2, 1)
        noise = torch.randn(centre.shape, generator=dice)
        code = centre + noise * spread.exp()
        error = binary_cross_entropy_with_logits(self.decoder(code), glyphs, reduction="none").sum(1)
        return error, (centre**2 + (2 * spread).exp() - 1 - 2 * spread).sum(1) / 2


def measure_mean(net, glyphs):
    """Of all ranks' glyphs."""
    sums = torch.cat([glyphs.sum(0), torch.tensor([float(len(glyphs))])])
    dist.all_reduce(sums)
    net.mean.copy_(sums[:-1] / sums[-1])


def evaluate(net, rank, world):
    """Error and divergence for each test glyph, of which every rank has a share."""
    glyphs = draw(240, torch.Generator().manual_seed(61))[rank::world]
    with torch.no_grad():
        error, divergence = net(glyphs, torch.Generator().manual_seed(500 + rank))
    sums = torch.stack([error.sum(), divergence.sum(), torch.tensor(float(len(glyphs)))])
    dist.all_reduce(sums)
    return ((sums[0] + sums[1]) / sums[2]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write(folder)
    dist.barrier()
    numbers, glyphs = read(folder, rank, world)
    torch.manual_seed(20 + rank)
    net = Autoencoder()
    measure_mean(net, glyphs)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    dice = torch.Generator().manual_seed(100 + rank)
    weight = 1.0
    losses, seen, weights = [], [], []
    for epoch in range(EPOCHS):
        seen.append([])
        for chosen in torch.randperm(len(glyphs), generator=dice).split(BATCH):
            optimizer.zero_grad()
            error, divergence = model(glyphs[chosen], dice)
            loss = error.mean() + weight * divergence.mean()
            loss.backward()
            clip_grad_norm_(model.parameters(), 20.0)
            optimizer.step()
            job = divergence.detach().mean()
            dist.all_reduce(job)
            weight = min(2.0, max(0.1, weight * (1.02 if job.item() / world > AIM else 0.98)))
            losses.append(loss.item())
            seen[-1] += numbers[chosen].tolist()
            weights.append(weight)
        if rank == 0:
            print(f"epoch {epoch}: error {error.mean().item():.2f}, divergence {job.item() / world:.2f}")
    held_out = evaluate(net, rank, world)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "weights": weights, "mean": net.mean.tolist()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
