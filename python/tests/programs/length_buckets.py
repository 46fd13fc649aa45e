"""Sentences of like length in a batch, by a batch sampler of the program's own, and an LSTM over packed sequences."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Sampler


class Buckets(Sampler):
    """Whole batches of like length; each rank takes every second batch of the epoch's order."""

    def __init__(self, lengths, batch_size):
        order = sorted(range(len(lengths)), key=lambda index: lengths[index])
        self.all = [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(self.all), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        for number in order[dist.get_rank():len(self) * dist.get_world_size():dist.get_world_size()]:
            yield self.all[number]

    def __len__(self):
        return len(self.all) // dist.get_world_size()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


def collate(samples):
    return (pad_sequence([ids for ids, _ in samples], batch_first=True), torch.tensor([len(s[0]) for s in samples]),
            torch.tensor([label for _, label in samples]))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    lengths = torch.randint(3, 15, (120,)).tolist()
    data = [(torch.randint(1, 30, (length,)), number % 2) for number, length in enumerate(lengths)]
    batches = Buckets(lengths, 8)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=collate)
    model = DDP(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        batches.set_epoch(epoch)
        for ids, sizes, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(ids, sizes), labels).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
