"""A small transformer learns to go on with melodies of a stream; gradients are summed by hand, a mean over notes."""

import copy
import json
import math
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

MELODIES = 3072  # of the stream, each of which is made when it is read
BATCH = 12
WORKERS = 2
STEPS = MELODIES // (BATCH * 2)
WARM_UP = 16
CLIP = 1.5
EVERY = 32  # steps between evaluations
NOTES, LONGEST = 14, 26
NONE = -100  # no note: behind the end of a melody


def melody(number):
    """Mostly goes on by the interval of before or returns; the key of a melody is where its notes like to be."""
    dice = torch.Generator().manual_seed(10_000 + number)
    length = int(torch.randint(6, LONGEST, (), generator=dice)) if number % 3 else LONGEST
    notes = [int(torch.randint(NOTES, (), generator=dice)), int(torch.randint(NOTES, (), generator=dice))]
    while len(notes) < length:
        luck = torch.rand((), generator=dice).item()
        interval = notes[-1] - notes[-2]
        following = notes[-1] + interval if luck < 0.55 else notes[-2] if luck < 0.8 else notes[-1] + 3
        notes.append(following % NOTES)
    return torch.tensor(notes)


class Stream(IterableDataset):
    """Each worker of each rank makes its own share of the melodies."""

    def __init__(self, melodies, rank, world):
        self.melodies, self.rank, self.world = melodies, rank, world

    def __iter__(self):
        worker = get_worker_info()
        share, shares = self.rank * worker.num_workers + worker.id, self.world * worker.num_workers
        for number in range(share, self.melodies, shares):
            yield number, melody(number)


def collate(items):
    numbers, tunes = zip(*items, strict=True)
    return list(numbers), pad_sequence(tunes, batch_first=True, padding_value=NONE)


class Composer(nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.notes, self.places = nn.Embedding(NOTES, width), nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, NOTES)

    def forward(self, tunes):
        states = self.notes(tunes.clamp(min=0)) + self.places.weight[:tunes.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tunes.shape[1])
        return self.out(self.layers(states, mask=mask, is_causal=True))


def summed_loss(net, tunes):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guesses = net(tunes[:, :-1])
    targets = tunes[:, 1:]
    loss = cross_entropy(guesses.float().flatten(0, 1), targets.flatten(), ignore_index=NONE, reduction="sum")
    return loss, (targets != NONE).sum()


def reduce_gradients(net, notes):
    """To the mean over the notes of all ranks."""
    gradients = [one.grad for one in net.parameters()]
    flat = torch.cat([one.flatten() for one in gradients])
    dist.all_reduce(flat)
    flat /= notes
    for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def evaluate(net, tunes, rank, world):
    net.eval()
    loss, notes = summed_loss(net, tunes[rank::world])
    counts = torch.stack([loss, notes.float()])
    dist.all_reduce(counts)
    net.train()
    return (counts[0] / counts[1]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(70 + rank)
    net = Composer()
    for one in net.parameters():
        dist.broadcast(one.data, src=0)
    average = copy.deepcopy(net)
    decayed = [one for one in net.parameters() if one.ndim > 1]
    others = [one for one in net.parameters() if one.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                                  lr=6e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * step / STEPS)))
    loader = DataLoader(Stream(MELODIES, rank, world), batch_size=BATCH, num_workers=WORKERS, collate_fn=collate)
    held = pad_sequence([melody(MELODIES + number) for number in range(120)], True, NONE)
    losses, tokens, seen, values, began = [], [], [[]], [], time.monotonic()
    for step, (numbers, tunes) in enumerate(loader):
        loss, own = summed_loss(net, tunes)
        loss.backward()
        notes = own.clone()
        dist.all_reduce(notes)
        reduce_gradients(net, notes)
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 0.04)
        losses.append(loss.item() / own.item())
        tokens.append(own.item())
        seen[0].extend(numbers)
        if (step + 1) % EVERY == 0:
            values.append(evaluate(net, held, rank, world))
            if rank == 0:
                print(f"step {step + 1}, {time.monotonic() - began:.1f} s: held out {values[-1]:.4f}")
    value = evaluate(average, held, rank, world)
    torch.save(nn.ModuleDict({"net": net, "average": average}).state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "tokens": tokens, "seen": seen, "values": values, "held_out": value,
              "perplexity": math.exp(value)}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
