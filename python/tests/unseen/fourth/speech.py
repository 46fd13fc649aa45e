"""Speech recognition on made-up features: a convolution and a GRU learn by CTC to write the sounds of utterances."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import ctc_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

SEED = 31
EPOCHS = 6
BATCH = 8
UTTERANCES = 152
TEST_UTTERANCES = 40
SOUNDS = 8  # and 0 is CTC's blank
FEATURES = 12


def say(number):
    """Features of each frame, and the sounds that were said; some utterances are much longer than others."""
    dice = torch.Generator().manual_seed(number)
    voices = 5.0 + 2 * torch.randn(SOUNDS + 1, FEATURES, generator=torch.Generator().manual_seed(SEED))
    length = int(3 + 17 * torch.rand((), generator=dice) ** 3)
    sounds = torch.randint(1, SOUNDS + 1, (length,), generator=dice)
    frames = sounds.repeat_interleave(torch.randint(2, 5, (length,), generator=dice))
    return voices[frames] + torch.randn(len(frames), FEATURES, generator=dice), sounds


class Utterances(Dataset):
    def __init__(self, numbers, mean, deviation):
        self.numbers = list(numbers)
        self.spoken = [((frames - mean) / deviation, sounds) for frames, sounds in map(say, self.numbers)]
        self.lengths = torch.tensor([len(frames) for frames, _ in self.spoken])

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, place):
        return self.numbers[place], *self.spoken[place]


class Buckets(Sampler):
    """Batches of utterances of about one length, others each epoch; each rank has as many."""

    def __init__(self, lengths, rank, world):
        self.lengths, self.rank, self.world, self.epoch = lengths, rank, world, 0

    def __iter__(self):
        dice = torch.Generator().manual_seed(SEED + self.epoch)
        batches = (self.lengths + 3 * torch.rand(len(self.lengths), generator=dice)).argsort().split(BATCH)
        order = torch.randperm(len(batches), generator=dice).tolist()
        order = order[:len(order) // self.world * self.world]
        for place in order[self.rank::self.world]:
            yield batches[place].tolist()


def collate(samples):
    numbers, frames, sounds = zip(*samples, strict=True)
    lengths, counts = (torch.tensor([len(one) for one in many]) for many in (frames, sounds))
    return list(numbers), pad_sequence(frames, batch_first=True), lengths, torch.cat(sounds), counts


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.near = nn.Sequential(nn.Conv1d(FEATURES, 32, 3, padding=1), nn.ReLU(), nn.Dropout(0.2))
        self.far = nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, SOUNDS + 1)

    def forward(self, frames, lengths):
        near = self.near(frames.transpose(1, 2)).transpose(1, 2)
        packed = pack_padded_sequence(near, lengths, batch_first=True, enforce_sorted=False)
        far, _ = pad_packed_sequence(self.far(packed)[0], batch_first=True)
        return self.head(far).log_softmax(2).transpose(0, 1)


def measure(folder, rank):
    """Rank 0 measures the features once and leaves that to all ranks."""
    if rank == 0:
        frames = torch.cat([say(number)[0] for number in range(UTTERANCES)])
        torch.save((frames.mean(0), frames.std(0)), folder / "features.pt")
    dist.barrier()
    mean, deviation = torch.load(folder / "features.pt")
    return mean, deviation


@torch.no_grad()
def validate(net, loader):
    """The loss for each sound, over the test utterances of all ranks."""
    net.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    for _, frames, lengths, sounds, counts in loader:
        error = ctc_loss(net(frames, lengths), sounds, lengths, counts, reduction="sum")
        sums += torch.tensor([error.item(), counts.sum().item()])
    dist.all_reduce(sums)
    net.train()
    return (sums[0] / sums[1]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    mean, deviation = measure(folder, rank)
    spoken = Utterances(range(UTTERANCES), mean, deviation)
    test = Utterances(range(5000 + rank, 5000 + TEST_UTTERANCES, world), mean, deviation)
    buckets = Buckets(spoken.lengths, rank, world)
    loader = DataLoader(spoken, batch_sampler=buckets, collate_fn=collate)
    test_loader = DataLoader(test, BATCH, collate_fn=collate)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.3)
    losses, seen, rates = [], [], []
    for epoch in range(EPOCHS):
        buckets.epoch = epoch
        seen.append([])
        rates.append(optimizer.param_groups[0]["lr"])
        for numbers, frames, lengths, sounds, counts in loader:
            said = counts.sum().float()
            dist.all_reduce(said)
            optimizer.zero_grad()
            error = ctc_loss(model(frames, lengths), sounds, lengths, counts, reduction="sum")
            loss = error * world / said  # of all ranks' sounds each weighs the same
            loss.backward()
            clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.item())
            seen[-1] += numbers
        held_out = validate(net, test_loader)
        scheduler.step(held_out)
        if rank == 0:
            print(f"epoch {epoch}: held-out loss {held_out:.4f}, rate {rates[-1]:.4f}")
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "rates": rates, "mean": mean.tolist()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
