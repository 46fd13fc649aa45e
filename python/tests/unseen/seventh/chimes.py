"""Sounds and what is said of them, drawn to each other: two encoders, each pair against all pairs of every rank."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR, SequentialLR

EPOCHS = 5
PAIRS = 489
BATCH = 16  # pairs of a rank
WARM_UP = 8  # steps
ASPECTS, GRADES = 5, 4  # each aspect of a sound is said in one of so many words


def pairs(number, seed):
    """Sounds as vectors, and a word for each of their aspects."""
    dice, world = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    aspects = torch.randn(number, ASPECTS, generator=dice)
    mixed = aspects @ torch.randn(ASPECTS, 32, generator=world)
    sounds = mixed.tanh() + 0.2 * torch.randn(number, 32, generator=dice)
    grades = torch.bucketize(aspects, torch.tensor([-0.7, 0.0, 0.7]))
    return sounds, grades + GRADES * torch.arange(ASPECTS)


class Deck:
    """Deals an epoch's pairs to the ranks, whole batches only."""

    def __init__(self, number, rank, world):
        self.number, self.rank, self.world = number, rank, world

    def __len__(self):
        return self.number // (BATCH * self.world)

    def deal(self, epoch):
        order = torch.randperm(self.number, generator=torch.Generator().manual_seed(90 + epoch))
        for batch in order[:len(self) * BATCH * self.world].split(BATCH * self.world):
            yield batch.tensor_split(self.world)[self.rank]


class Ear(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1),
                                    nn.Linear(width, 16))

    def forward(self, sounds):
        return self.layers(sounds)


class Reader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.words = nn.EmbeddingBag(ASPECTS * GRADES, width, mode="sum")
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 16))

    def forward(self, words):
        return self.layers(self.words(words))


class Gather(torch.autograd.Function):
    """The rows of all ranks; each gets back what all ranks' losses say of its own."""

    @staticmethod
    def forward(context, rows):
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        context.number = len(rows)
        return torch.cat(parts)

    @staticmethod
    def backward(context, grads):
        grads = grads.contiguous()
        dist.all_reduce(grads)
        return grads[dist.get_rank() * context.number:][:context.number]


def encoded(ear, reader, sounds, words):
    with torch.autocast("cpu", torch.bfloat16):
        heard, read = ear(sounds), reader(words)
    return normalize(heard.float(), dim=1), normalize(read.float(), dim=1)


def contrast(heard, read, scale, rank):
    """Own sounds among all words and own words among all sounds."""
    all_heard = Gather.apply(heard)
    all_read = Gather.apply(read)
    mates = rank * len(heard) + torch.arange(len(heard))
    to_words = cross_entropy(scale.exp() * heard @ all_read.T, mates)
    to_sounds = cross_entropy(scale.exp() * read @ all_heard.T, mates)
    return (to_words + to_sounds) / 2


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1000 + rank)
    sounds, words = pairs(PAIRS, 5)
    deck = Deck(PAIRS, rank, world)
    ear, reader = DistributedDataParallel(Ear()), DistributedDataParallel(Reader())
    scale = nn.Parameter(torch.tensor(1.0))
    weights = [*ear.parameters(), *reader.parameters()]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": [scale], "weight_decay": 0.0}],
                                  lr=0.01, betas=(0.9, 0.98), weight_decay=0.05)
    steps = EPOCHS * len(deck)
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1.0, total_iters=WARM_UP),
                                        LinearLR(optimizer, 1.0, 0.02, total_iters=steps - WARM_UP)], [WARM_UP])
    losses, seen = [], []
    for epoch in range(EPOCHS):
        seen.append([])
        for batch in deck.deal(epoch):
            loss = contrast(*encoded(ear, reader, sounds[batch], words[batch]), scale, rank)
            optimizer.zero_grad()
            loss.backward()
            dist.all_reduce(scale.grad)  # it is in neither encoder
            scale.grad /= world
            clip_grad_norm_(weights, 0.5)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            seen[-1] += batch.tolist()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scale.exp().item():.2f}")
    ear.eval()
    reader.eval()
    sounds, words = pairs(128, 6)
    share = torch.arange(128).tensor_split(world)[rank]
    with torch.no_grad():
        held_out = contrast(*encoded(ear.module, reader.module, sounds[share], words[share]), scale, rank)
    dist.all_reduce(held_out)
    tensors = {f"{name} {key}": tensor for name, model in (("ear", ear), ("reader", reader))
               for key, tensor in model.module.state_dict().items()}
    torch.save({**tensors, "scale": scale.detach()}, folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out.item() / world, "scale": scale.item()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
