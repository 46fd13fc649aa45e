"""What vibrations of pumps are like: a variational autoencoder, by which those of broken pumps are told."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SEED = 3
EPOCHS = 4
BATCH = 24
SHARDS = 8
IN_SHARD = 72
WINDOW, LATENT, KINDS = 32, 4, 2
RATE = 8e-3
BETA_STEPS = 30  # until the divergence has its full weight


def windows(number, kind, seed, broken=False):
    """Two tones, of which a pump's kind has the second."""
    dice = torch.Generator().manual_seed(seed)
    phase, loud = 6.28 * torch.rand(2, number, 1, generator=dice)
    t = torch.arange(WINDOW)
    y = torch.sin(0.4 * t + phase) + 0.05 * loud * torch.sin((0.9 + 0.5 * kind) * t + 2 * phase)
    return 20 + 5 * (y + 0.25 * broken * torch.sin(2.2 * t + phase) + 0.1 * torch.randn(number, WINDOW, generator=dice))


def write(folder):
    """A shard has windows of one kind of pump; the calibration has the level and the spread of each kind."""
    shards = [windows(IN_SHARD, shard % KINDS, SEED + shard) for shard in range(SHARDS)]
    for place, shard in enumerate(shards):
        torch.save(shard, folder / f"shard_{place}.pt")
    kinds = [torch.stack(shards[kind::KINDS]) for kind in range(KINDS)]
    (folder / "calibration.json").write_text(json.dumps([[kind.mean().item(), kind.std().item()] for kind in kinds]))


class Vibrations(IterableDataset):
    """The shards of a rank's worker, in an order of the epoch: each window with its number and its pump's kind."""

    def __init__(self, folder, rank, world):
        self.folder, self.rank, self.world, self.epoch = folder, rank, world, 0
        self.calibration = json.loads((folder / "calibration.json").read_text())

    def __iter__(self):
        worker = get_worker_info()
        reader, readers = self.rank * worker.num_workers + worker.id, self.world * worker.num_workers
        dice = torch.Generator().manual_seed(SEED + self.epoch)
        mine = torch.randperm(SHARDS, generator=dice).tolist()[reader::readers]
        rows = []
        for shard in mine:
            level, spread = self.calibration[shard % KINDS]
            values = (torch.load(self.folder / f"shard_{shard}.pt") - level) / spread
            rows += [(shard * IN_SHARD + place, shard % KINDS, row) for place, row in enumerate(values)]
        for place in torch.randperm(len(rows), generator=dice).tolist():
            yield rows[place]


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WINDOW, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.LayerNorm(32), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(32, WINDOW) for _ in range(KINDS))

    def forward(self, x, kinds, noise):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        y = self.decoder(mean + (0.5 * log_variance).exp() * noise)
        return torch.stack([head(y) for head in self.heads])[kinds, torch.arange(len(kinds))], mean, log_variance


def parts_of_loss(x, made, mean, log_variance):
    error = (x - made.float()).square().sum(1)
    return error, 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).float().sum(1)


def groups(net):
    """Biases and norms do not decay."""
    return [{"params": [one for one in net.parameters() if (one.ndim > 1) == decays], "weight_decay": decay}
            for decays, decay in ((True, 0.05), (False, 0.0))]


@torch.no_grad()
def errors(net, calibration, seed, rank, world, broken=False):
    """Of new windows of all ranks: the loss for each, and the error of each."""
    sums, every = torch.zeros(2), []
    for kind, (level, spread) in enumerate(calibration):
        x = (windows(100, kind, seed + kind, broken)[rank::world] - level) / spread
        outputs = net(x, torch.full((len(x),), kind), torch.zeros(len(x), LATENT))
        error, divergence = parts_of_loss(x, *outputs)
        sums += torch.tensor([(error + divergence).sum(), len(x)])
        every.append(error)
    parts = [torch.empty(sum(map(len, every))) for _ in range(world)]
    dist.all_gather(parts, torch.cat(every))
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item(), torch.cat(parts)


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write(folder)
    dist.barrier()
    torch.manual_seed(SEED + rank)
    data = Vibrations(folder, rank, world)
    loader = DataLoader(data, BATCH, num_workers=1, drop_last=True)
    net = Autoencoder()
    model = DistributedDataParallel(net)
    steps = EPOCHS * (SHARDS * IN_SHARD // world // BATCH)
    optimizer = torch.optim.AdamW(groups(net), lr=RATE)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=0.25)
    losses, seen, drawn, rates, betas = [], [], [], [], []
    for epoch in range(EPOCHS):
        data.epoch = epoch
        seen.append([])
        for numbers, kinds, x in loader:
            beta = min(1.0, len(losses) / BETA_STEPS)
            noise = torch.randn(len(x), LATENT)
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(x, kinds, noise)
            error, divergence = parts_of_loss(x, *outputs)
            loss = (error + beta * divergence).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
            losses.append(loss.item())
            betas.append(beta)
            drawn.append(noise[0, 0].item())
            seen[-1] += numbers.tolist()
    held_out, usual = errors(net, data.calibration, SEED + 100, rank, world)
    threshold = usual.quantile(0.98).item()
    _, odd = errors(net, data.calibration, SEED + 200, rank, world, broken=True)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "drawn": drawn, "held_out": held_out, "rates": rates, "betas": betas,
              "threshold": threshold, "told": (odd > threshold).float().mean().item()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
