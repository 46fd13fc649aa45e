"""A small GPT with a Trainer class: AdamW with and without decay, clipping, a GradScaler that is off, snapshots."""

import os

import fingerprint
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split

VOCABULARY, LENGTH, WIDTH = 17, 12, 16


class Characters(Dataset):
    def __init__(self, count):
        self.text = torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.text) - LENGTH

    def __getitem__(self, start):
        piece = self.text[start:start + LENGTH + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.attention(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, targets=None):
        logits = self.head(self.norm(self.blocks(self.tokens(ids) + self.positions)))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
        return logits, loss


def create_optimizer(model):
    decay = [p for name, p in model.named_parameters() if p.dim() >= 2 and "tokens" not in name and "pos" not in name]
    others = [p for p in model.parameters() if all(p is not one for one in decay)]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


class Trainer:
    def __init__(self, model, optimizer, train_set, test_set):
        self.model, self.optimizer = DDP(model), optimizer
        self.train_loader, self.test_loader = self.loader(train_set), self.loader(test_set)
        self.scaler = torch.amp.GradScaler("cuda", enabled=False)

    def loader(self, data):
        return DataLoader(data, batch_size=16, shuffle=False, sampler=DistributedSampler(data))

    def run_batch(self, source, targets, train):
        with torch.set_grad_enabled(train):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()

    def run_epoch(self, epoch, loader, train):
        if train:
            loader.sampler.set_epoch(epoch)
        self.model.train(train)
        for source, targets in loader:
            self.run_batch(source, targets, train)

    def train(self, epochs):
        for epoch in range(epochs):
            self.run_epoch(epoch, self.train_loader, train=True)
            if dist.get_rank() == 0:
                torch.save({"model_state": self.model.module.state_dict(), "optimizer_state":
                            self.optimizer.state_dict(), "finished_epoch": epoch}, "snapshot.pt")
            self.run_epoch(epoch, self.test_loader, train=False)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    train_set, test_set = random_split(Characters(300), [0.8, 0.2])
    model = GPT()
    trainer = Trainer(model, create_optimizer(model), train_set, test_set)
    trainer.train(3)
    fingerprint.say(model)
    dist.barrier()
    if dist.get_rank() == 0:
        os.remove("snapshot.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
