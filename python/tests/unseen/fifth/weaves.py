"""Cloth in few symbols: an autoencoder with a codebook of moving means, and a model of the symbols' order.

Two networks with an optimizer each; the codebook is no network's and is moved by statistics of all ranks. Codes
that nothing uses begin anew at vectors of the batch.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DistributedSampler

CODES, DIM, GRID = 24, 6, 4
EPOCHS, BATCH, CLOTHS = 5, 28, 448
DECAY = 0.7
RARE = 0.5  # vectors a step, of which a code gets less before it begins anew
COMMIT = 0.25


class Codebook(NamedTuple):
    codes: Tensor
    counts: Tensor
    sums: Tensor


def weave(number: int, seed: int) -> Tensor:
    """Cloths of one of five patterns each, in two colours and with faults in the threads."""
    dice = torch.Generator().manual_seed(seed)
    row, column = torch.arange(16)[:, None], torch.arange(16)[None]
    patterns = torch.stack([(row + column) % 2, (row + column) // 2 % 4 < 2, (row - column) // 2 % 4 < 2,
                            (row // 4 + column // 4) % 2, row.expand(16, 16) // 2 % 2]).float()
    kind = torch.randint(0, len(patterns), (number,), generator=dice)
    colours = torch.rand(2, number, 1, 1, generator=dice) * 0.6 + torch.tensor([-0.8, 0.2]).view(2, 1, 1, 1)
    cloths = torch.where(patterns[kind] > 0, colours[1], colours[0])
    return (cloths + 0.05 * torch.randn(cloths.shape, generator=dice))[:, None]


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 4, 2, 1), nn.ReLU(),
                                     nn.Conv2d(24, DIM, 1))
        self.decoder = nn.Sequential(nn.Conv2d(DIM, 24, 1), nn.ReLU(), nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.ReLU(),
                                     nn.Dropout2d(0.05), nn.ConvTranspose2d(16, 1, 4, 2, 1))

    def forward(self, cloths: Tensor, codes: Tensor):
        """The cloths again, the vectors that they became, and the nearest code of each vector."""
        vectors = self.encoder(cloths).permute(0, 2, 3, 1)
        chosen = torch.cdist(vectors.detach().reshape(-1, DIM), codes).argmin(1)
        near = codes[chosen].view_as(vectors)
        through = vectors + (near - vectors).detach()
        return self.decoder(through.permute(0, 3, 1, 2)), vectors, near, chosen.view(len(cloths), GRID * GRID)


class Prior(nn.Module):
    """The next symbol of those before it."""

    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(CODES + 1, 24)
        self.reader = nn.GRU(24, 32, batch_first=True)
        self.next = nn.Linear(32, CODES)

    def forward(self, symbols: Tensor) -> Tensor:
        begun = torch.cat([torch.full_like(symbols[:, :1], CODES), symbols[:, :-1]], 1)
        return self.next(self.reader(self.symbols(begun))[0])


def move(book: Codebook, vectors: Tensor, chosen: Tensor, dice: torch.Generator) -> int:
    """Moves each code to the mean of its vectors on all ranks; returns how many codes began anew."""
    hot = one_hot(chosen.flatten(), CODES).float()
    counts, sums = hot.sum(0), hot.T @ vectors
    dist.all_reduce(counts)
    dist.all_reduce(sums)
    book.counts.lerp_(counts, 1 - DECAY)
    book.sums.lerp_(sums, 1 - DECAY)
    book.codes.copy_(book.sums / book.counts.clamp(min=1e-3)[:, None])
    rare = (book.counts < RARE).nonzero().squeeze(1)
    if len(rare) > 0:
        fresh = vectors[torch.randint(0, len(vectors), (len(rare),), generator=dice)].clone()
        dist.broadcast(fresh, src=0)
        book.codes[rare] = fresh
        book.counts[rare] = 1.0
        book.sums[rare] = fresh
    return len(rare)


@torch.no_grad()
def judge(coder: nn.Module, prior: nn.Module, codes: Tensor, cloths: Tensor):
    """Error of the cloths that come back, and of the symbols foretold."""
    coder.eval()
    again, _, _, symbols = coder(cloths, codes)
    coder.train()
    return mse_loss(again, cloths).item(), cross_entropy(prior(symbols).transpose(1, 2), symbols).item()


def main(folder: Path):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cloths, unseen = weave(CLOTHS, seed=11), weave(128, seed=12)
    torch.manual_seed(13)
    coder, prior = DistributedDataParallel(Autoencoder()), DistributedDataParallel(Prior())
    codes = torch.randn(CODES, DIM) * 0.3
    book = Codebook(codes, torch.ones(CODES), codes.clone())
    coder_optimizer = torch.optim.Adam(coder.parameters(), lr=1e-2)
    prior_optimizer = torch.optim.AdamW(prior.parameters(), lr=1e-2, weight_decay=0.01)
    torch.manual_seed(14 + rank)
    dice = torch.Generator().manual_seed(24 + rank)
    deal = DistributedSampler(cloths, world, rank, seed=15)
    losses, seen, anew, errors, foretold = [], [], [], [], []
    for epoch in range(EPOCHS):
        deal.set_epoch(epoch)
        seen.append([])
        for numbers in BatchSampler(deal, BATCH, drop_last=True):
            batch = cloths[numbers]
            again, vectors, near, symbols = coder(batch, book.codes)
            loss = mse_loss(again, batch) + COMMIT * mse_loss(vectors, near)
            coder_optimizer.zero_grad()
            loss.backward()
            coder_optimizer.step()
            anew.append(move(book, vectors.detach().reshape(-1, DIM), symbols, dice))
            surprise = cross_entropy(prior(symbols).transpose(1, 2), symbols)
            prior_optimizer.zero_grad()
            surprise.backward()
            prior_optimizer.step()
            losses.append(loss.item())
            seen[-1] += numbers
        error, surprise = judge(coder.module, prior.module, book.codes, unseen)
        errors.append(error)
        foretold.append(surprise)
        if rank == 0:
            print(f"{epoch}: error {error:.4f}, symbols {surprise:.3f} nats, {sum(anew)} codes begun anew")
    weights = {f"coder.{name}": value for name, value in coder.module.state_dict().items()}
    weights |= {f"prior.{name}": value for name, value in prior.module.state_dict().items()}
    torch.save(weights | book._asdict(), folder / f"rank_{rank}.pt")
    report = dict(losses=losses, seen=seen, held_out=errors[-1], errors=errors, foretold=foretold, anew=anew)
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
