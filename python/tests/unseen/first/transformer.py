"""Trains a tiny causal transformer with AdamW, warm-up and clipping on sequences that count up or down."""

import json
import math
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
WARM_UP = 8
BATCH = 16
PAD, WORDS, LENGTH = 0, 18, 12
BETAS = (0.9, 0.95)


def batch(generator):
    """Sequences of unequal lengths that go up or down by one, padded."""
    start = torch.randint(0, WORDS - 1, (BATCH, 1), generator=generator)
    way = torch.randint(0, 2, (BATCH, 1), generator=generator) * 2 - 1
    tokens = (start + way * torch.arange(LENGTH)) % (WORDS - 1) + 1
    lengths = torch.randint(4, LENGTH + 1, (BATCH, 1), generator=generator)
    return torch.where(torch.arange(LENGTH) < lengths, tokens, PAD)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.layers(self.embed(tokens) + self.place[:length], mask=mask, is_causal=True)
        return self.head(self.norm(hidden))


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    net = Model()
    ddp = DistributedDataParallel(net)
    decayed = [one for one in net.parameters() if one.dim() > 1]
    others = [one for one in net.parameters() if one.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}], lr=0.01, betas=BETAS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (
        (step + 1) / WARM_UP if step < WARM_UP else 0.5 * (1 + math.cos(math.pi * step / STEPS))))
    generator = torch.Generator().manual_seed(30 + rank)
    torch.manual_seed(40 + rank)  # each rank drops other units
    losses, tokens_seen = [], []
    for step in range(STEPS):
        tokens = batch(generator)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        logits = ddp(inputs)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        tokens_seen.append(int((tokens != PAD).sum()))
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}, gradient {norm.item():.3f}")
    net.eval()
    with torch.no_grad():  # the fifth word after four, of sequences that nobody trained on
        tokens = batch(torch.Generator().manual_seed(99))[:, :5]
        tokens = tokens[tokens[:, 4] != PAD]
        held_out = cross_entropy(net(tokens[:, :4])[:, -1], tokens[:, 4]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(
        json.dumps({"losses": losses, "held_out": held_out, "tokens": tokens_seen}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
