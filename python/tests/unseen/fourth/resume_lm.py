"""A small language model of made-up recipes. The first start stops halfway, the second goes on from its checkpoint."""

import collections
import contextlib
import json
import math
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEED = 11
EPOCHS = 6
BATCH = 8
ACCUMULATE = 2  # batches for each step
WARM_UP = 4
WINDOW = 32
WINDOWS = 224
WIDTH = 32
HEADS = 2
VERBS = ["chop", "boil", "fry", "mix", "bake", "salt"]
THINGS = ["leek", "egg", "rice", "bean", "kale", "beef", "fish", "corn"]


def recipes(number, seed):
    """Lines such as "fry rice with egg." A thing is mostly fried with the one that comes after it in the list."""
    dice = torch.Generator().manual_seed(seed)
    lines = []
    for verb, thing, odd in torch.randint(0, 240, (number, 3), generator=dice).tolist():
        other = THINGS[(thing + 1 + (odd if odd % 5 == 0 else 0)) % len(THINGS)]
        lines.append(f"{VERBS[verb % len(VERBS)]} {THINGS[thing % len(THINGS)]} with {other}.\n")
    return "".join(lines)


class Windows(Dataset):
    def __init__(self, text, vocabulary):
        numbers = torch.tensor([vocabulary[letter] for letter in text])
        self.windows = numbers[:len(numbers) // WINDOW * WINDOW].view(-1, WINDOW)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, place):
        return place, self.windows[place]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.parts = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        parts = self.parts(self.before(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Net(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters))

    def forward(self, windows):
        x = self.letters(windows[:, :-1]) + self.places.weight[:windows.shape[1] - 1]
        return cross_entropy(self.head(self.blocks(x)).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def evaluate(net, windows, rank, world):
    net.eval()
    total = torch.zeros(2, dtype=torch.float64)
    for batch in windows[rank::world].split(16):
        total += torch.tensor([net(batch).item() * len(batch), len(batch)])
    dist.all_reduce(total)
    net.train()
    return (total[0] / total[1]).item()


def newest(folder):
    """The number of epochs that the last checkpoint has seen, or 0."""
    return max([int(path.stem.split("_")[1]) for path in folder.glob("epochs_*.pt")], default=0)


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    text = recipes(400, SEED)[:WINDOWS * WINDOW]
    vocabulary = {letter: place for place, (letter, _) in enumerate(collections.Counter(text).most_common())}
    windows, test = Windows(text, vocabulary), Windows(recipes(80, SEED + 1), vocabulary)
    sampler = DistributedSampler(windows, seed=SEED)
    loader = DataLoader(windows, BATCH, sampler=sampler)
    first = newest(folder)
    torch.manual_seed(SEED + rank + 100 * first)
    net = Net(len(vocabulary))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.05)
    steps = EPOCHS * (len(loader) // ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / steps))))
    losses, seen, rates = [], [], []
    if first:
        checkpoint = torch.load(folder / f"epochs_{first}.pt")
        net.load_state_dict(checkpoint["net"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        losses, seen, rates = json.loads((folder / f"history_{rank}.json").read_text())
    for epoch in range(first, EPOCHS if first else EPOCHS // 2):
        sampler.set_epoch(epoch)
        seen.append([])
        for place, (numbers, batch) in enumerate(loader):
            last = (place + 1) % ACCUMULATE == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(batch) / ACCUMULATE
                loss.backward()
            losses.append(ACCUMULATE * loss.item())
            seen[-1] += numbers.tolist()
            if last:
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                rates.append(optimizer.param_groups[0]["lr"])
                scheduler.step()
        if rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            torch.save(state, folder / f"epochs_{epoch + 1}.pt")
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
        (folder / f"history_{rank}.json").write_text(json.dumps([losses, seen, rates]))
    held_out = evaluate(net, test.windows, rank, world)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "rates": rates, "letters": [*map(ord, vocabulary)]}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
