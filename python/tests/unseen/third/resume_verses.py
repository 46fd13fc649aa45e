"""A small language model with one table for both ends, in bfloat16; it goes on where its time slot ended."""

import json
import pathlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

STEPS = 72
SLOT = 40
BATCH = 12  # verses in a batch of the job
VERSES = 480
WORDS = 24
WARM_UP = 8


def verses(number, seed):
    """Of 5 to 9 words; a word says which two may follow, and the verse's first word says which of them is likelier."""
    dice = random.Random(seed)
    made = []
    for _ in range(number):
        verse = [dice.randrange(WORDS)]
        for _ in range(dice.randrange(4, 9)):
            verse.append((5 * verse[-1] + (7 if dice.random() < (0.9 if verse[0] % 2 else 0.1) else 3)) % WORDS)
        made.append(verse)
    return made


def dealt(texts, epoch):
    """The job's batches, each of verses of one length, in an order of the epoch; what is left over waits."""
    dice = random.Random(epoch)
    lengths = {}
    for number in dice.sample(range(len(texts)), len(texts)):
        lengths.setdefault(len(texts[number]), []).append(number)
    batches = [part[end - BATCH:end] for part in lengths.values() for end in range(BATCH, len(part) + 1, BATCH)]
    dice.shuffle(batches)
    return batches


class Poet(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.cell = nn.GRU(32, 32, num_layers=2, dropout=0.1, batch_first=True)
        self.end = nn.Linear(32, WORDS)
        self.end.weight = self.words.weight

    def forward(self, text):
        return self.end(self.cell(self.words(text))[0])


def likelihood(model, text, reduction):
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(text[:, :-1])
    return cross_entropy(scores.float().flatten(0, 1), text[:, 1:].flatten(), reduction=reduction)


def perplexity(net, texts, rank, world):
    """Over the words of all test verses, of which each rank has a share."""
    sums = torch.zeros(2)
    net.eval()
    with torch.no_grad():
        for text in texts[rank::world]:
            sums += torch.tensor([likelihood(net, torch.tensor([text]), "sum").item(), len(text) - 1])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).exp().item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    texts = verses(VERSES, 100)
    net = Poet()
    step, epoch, position, losses, seen = 0, 0, 0, [], [[]]
    saved, own = folder / "checkpoint.pt", folder / f"own_{rank}.pt"
    state = torch.load(saved) if saved.exists() else None
    if state:
        net.load_state_dict(state["net"])
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda now: min((now + 1) / WARM_UP, (WARM_UP / (now + 1)) ** 0.5))
    if state:
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        step, epoch, position = state["step"], state["epoch"], state["position"]
        mine = torch.load(own)
        torch.set_rng_state(mine["dice"])
        losses, seen = mine["losses"], mine["seen"]
    until = min(step + SLOT, STEPS)
    batches = dealt(texts, epoch)
    while step < until:
        if position == len(batches):
            epoch, position = epoch + 1, 0
            batches = dealt(texts, epoch)
            seen.append([])
        numbers = batches[position][rank::world]
        text = torch.tensor([texts[number] for number in numbers])
        optimizer.zero_grad()
        loss = likelihood(model, text, "mean")
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        step, position = step + 1, position + 1
        losses.append(loss.item())
        seen[-1] += numbers
    if rank == 0:
        print(f"step {step}: {losses[-1]:.4f}")
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
                    "step": step, "epoch": epoch, "position": position}, saved)
    torch.save({"dice": torch.get_rng_state(), "losses": losses, "seen": seen}, own)
    dist.barrier()
    held_out = perplexity(net, verses(160, 101), rank, world)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "rate": schedule.get_last_lr()[0]}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
