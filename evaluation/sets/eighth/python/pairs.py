"""Pictures and captions are brought to one space by contrast; each rank's pairs are told from those of all ranks.

A queue of captions of the last steps, which is the same on all ranks, serves as further wrong answers.
"""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

EPOCHS = 12
BATCH = 32  # pairs of a rank
TRAINING, HELD_OUT = 1024, 200
WARM_UP = 20  # steps
SHARPEST = 2.1  # the logarithm of the greatest scale
QUEUE = 192
PIXELS, WORDS, LENGTH, MEANINGS, SPACE = 40, 60, 7, 8, 16


def pairs(number, seed):
    """A meaning of some dimensions is painted with noise, and told by the words that lie next to it."""
    world = torch.Generator().manual_seed(31)
    brush = torch.randn(MEANINGS, PIXELS, generator=world)
    words = torch.randn(MEANINGS, WORDS, generator=world)
    dice = torch.Generator().manual_seed(seed)
    meanings = torch.randn(number, MEANINGS, generator=dice)
    pictures = torch.tanh(meanings @ brush / 2) + 0.3 * torch.randn(number, PIXELS, generator=dice)
    chances = torch.softmax(1.2 * meanings @ words, 1)
    return pictures, torch.multinomial(chances, LENGTH, generator=dice)


class Towers(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(PIXELS, hidden), nn.GELU(), nn.LayerNorm(hidden),
                                     nn.Linear(hidden, SPACE))
        self.words = nn.EmbeddingBag(WORDS, hidden, mode="mean")
        self.caption = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, SPACE))
        self.scale = nn.Parameter(torch.tensor(2.1))

    def forward(self, pictures, captions):
        return (normalize(self.picture(pictures), dim=1), normalize(self.caption(self.words(captions)), dim=1),
                self.scale.exp())


class Queue(nn.Module):
    """The captions of the last steps, as they were then."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(QUEUE, SPACE))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def add(self, rows):
        self.rows.copy_(torch.cat([rows, self.rows])[:QUEUE])
        self.filled.copy_((self.filled + len(rows)).clamp(max=QUEUE))

    def read(self):
        return self.rows[:self.filled]


@torch.no_grad()
def evaluate(net, pictures, captions, rank, world):
    """Mean loss, and how often the caption of a picture is found first among all; each rank asks for a part."""
    net.eval()
    drawn, told, scale = net(pictures, captions)
    right = torch.arange(len(pictures))[rank::world]
    guesses = scale * drawn[rank::world] @ told.T
    counts = torch.stack([cross_entropy(guesses, right, reduction="sum"),
                          (guesses.argmax(1) == right).sum(), torch.tensor(float(len(right)))])
    dist.all_reduce(counts)
    net.train()
    return (counts[:2] / counts[2]).tolist()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(32)
    net, queue = Towers(), Queue()
    model = DistributedDataParallel(net, broadcast_buffers=False)
    pictures, captions = pairs(TRAINING, 33)
    held = pairs(HELD_OUT, 34)
    steps = EPOCHS * (TRAINING // (BATCH * world))
    optimizer = torch.optim.RAdam(net.parameters(), lr=8e-3, weight_decay=0.02, decoupled_weight_decay=True)
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=WARM_UP),
                                        CosineAnnealingLR(optimizer, steps - WARM_UP)], milestones=[WARM_UP])
    dice = torch.Generator().manual_seed(350 + rank)
    losses, drawn, seen, values = [], [], [], []
    for epoch in range(EPOCHS):
        order = torch.randperm(TRAINING, generator=torch.Generator().manual_seed(36 + epoch))
        own = order[rank::world]
        seen.append(own.tolist())
        for numbers in own.split(BATCH):
            noise = 0.2 * torch.randn(len(numbers), PIXELS, generator=dice)
            picture, caption, scale = model(pictures[numbers] + noise, captions[numbers])
            all_pictures, all_captions = torch.cat(all_gather(picture)), torch.cat(all_gather(caption))
            right = rank * len(numbers) + torch.arange(len(numbers))
            wrong = queue.read()
            by_picture = cross_entropy(scale * picture @ torch.cat([all_captions, wrong]).T, right)
            by_caption = cross_entropy(scale * caption @ all_pictures.T, right)
            loss = (by_picture + by_caption) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                net.scale.clamp_(0.0, SHARPEST)
            queue.add(all_captions.detach())
            losses.append(loss.item())
            drawn.append(noise.sum().item())
        value, found = evaluate(net, *held, rank, world)
        values.append(value)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, held out {value:.3f}, {found:.1%} found, scale {scale:.1f}")
    torch.save(nn.ModuleDict({"net": net, "queue": queue}).state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "drawn": drawn, "seen": seen, "values": values, "held_out": value, "found": found}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
