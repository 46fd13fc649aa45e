"""Translates made-up sentences. Its first start is cut off in the middle of an epoch, the second goes on from there."""

import contextlib
import itertools
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

SEED = 31
EPOCHS = 3
BATCH = 8
ACCUMULATE = 2  # batches for each step
PAIRS = 384
CUT_AT = 16  # steps of the first start
SAVE_EACH = 8
WARM_UP = 8
PAD, BOS, EOS, WORDS, WIDTH = 0, 1, 2, 24, 32


def sentences(number, seed):
    """Of three to twelve words, and each in another language, which has another word for each."""
    dice = torch.Generator().manual_seed(seed)
    pairs = []
    for length in torch.randint(3, 13, (number,), generator=dice):
        words = torch.randint(3, WORDS, (length,), generator=dice)
        other = 3 + (5 * (words - 3) + 2) % (WORDS - 3)
        pairs.append((words, torch.tensor([BOS, *other, EOS])))
    return pairs


class Buckets:
    """Batches of sentences that are about as long, in another order each epoch, dealt out to the ranks."""
    def __init__(self, pairs, rank, world):
        self.lengths, self.rank, self.world = [len(source) for source, _ in pairs], rank, world
        self.epoch = self.done = 0

    def __iter__(self):
        dice = torch.Generator().manual_seed(SEED + self.epoch)
        order = torch.randperm(len(self.lengths), generator=dice).tolist()
        order.sort(key=lambda place: self.lengths[place])
        batches = [order[start:start + BATCH] for start in range(0, len(order), BATCH)]
        mine = torch.randperm(len(batches), generator=dice).tolist()[self.rank::self.world]
        return iter([batches[place] for place in mine[self.done:]])


def collate(rows):
    numbers, pairs = zip(*rows, strict=False)
    return torch.tensor(numbers), *(pad_sequence(side, True, PAD) for side in zip(*pairs, strict=False))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH, padding_idx=PAD), nn.Embedding(16, WIDTH)
        self.body = nn.Transformer(WIDTH, 2, 1, 1, 2 * WIDTH, 0.1, norm_first=True, batch_first=True, bias=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, source, target, smoothing=0.0):
        known, wanted = target[:, :-1], target[:, 1:]
        sides = [self.words(side) + self.places.weight[:side.shape[1]] for side in (source, known)]
        causal = torch.ones(known.shape[1], known.shape[1], dtype=torch.bool).triu(1)
        x = self.body(*sides, tgt_mask=causal, tgt_key_padding_mask=known == PAD,
                      src_key_padding_mask=source == PAD, memory_key_padding_mask=source == PAD)
        return cross_entropy(self.head(x).flatten(0, 1).float(), wanted.flatten(), reduction="sum", ignore_index=PAD,
                             label_smoothing=smoothing)


@torch.no_grad()
def evaluate(net, pairs, rank, world):
    sums = torch.zeros(2, dtype=torch.float64)
    mine = [(place, pairs[place]) for place in range(rank, len(pairs), world)]
    for _, source, target in DataLoader(mine, 16, collate_fn=collate):
        sums += torch.tensor([net(source, target).item(), (target[:, 1:] != PAD).sum().item()])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs, test = sentences(PAIRS, SEED), sentences(90, SEED + 1)
    buckets = Buckets(pairs, rank, world)
    loader = DataLoader(list(enumerate(pairs)), batch_sampler=buckets, collate_fn=collate)
    path = folder / "last.pt"
    checkpoint = torch.load(path) if path.exists() else None
    losses, seen, tokens, totals, rates, step, first_epoch = [], [[] for _ in range(EPOCHS)], [], [], [], 0, 0
    torch.manual_seed(SEED + rank)
    net = Translator()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-6)
    scheduler = LambdaLR(optimizer, lambda step: min((step + 1) / WARM_UP, (WARM_UP / (step + 1)) ** 0.5))
    if checkpoint:
        net.load_state_dict(checkpoint["net"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        step, first_epoch, buckets.done = checkpoint["step"], checkpoint["epoch"], checkpoint["done"]
        losses, seen, tokens, totals, rates = json.loads((folder / f"history_{rank}.json").read_text())
        torch.manual_seed(SEED + rank + step)
    model = DistributedDataParallel(net)
    for epoch in range(first_epoch, EPOCHS):
        buckets.epoch = epoch
        batches = iter(loader)
        while group := list(itertools.islice(batches, ACCUMULATE)):
            total = sum((target[:, 1:] != PAD).sum() for _, _, target in group)
            tokens.append(total.item())
            dist.all_reduce(total)
            for place, (numbers, source, target) in enumerate(group):
                last = place == len(group) - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = model(source, target, 0.05) * world / total  # DDP takes the mean over ranks
                    loss.backward()
                losses.append(loss.item())
                seen[epoch] += numbers.tolist()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
            totals.append(total.item())
            step += 1
            buckets.done += ACCUMULATE
            if step % SAVE_EACH == 0:
                (folder / f"history_{rank}.json").write_text(json.dumps([losses, seen, tokens, totals, rates]))
                if rank == 0:
                    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                                "scheduler": scheduler.state_dict(), "epoch": epoch, "done": buckets.done}, path)
                    print(f"step {step}: loss {losses[-1]:.3f}")
            if step == CUT_AT and not checkpoint:
                return
        buckets.done = 0
    held_out = evaluate(net.eval(), test, rank, world)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "tokens": tokens, "held_out": held_out, "rates": rates, "totals": totals}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
