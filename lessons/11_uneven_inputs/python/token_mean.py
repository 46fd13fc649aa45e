"""Sentences of unequal length: the loss is the mean over the tokens of all ranks, and padding does not count."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR, LENGTH, PADDING = 64, 4, 3, 0.3, 12, -100


def dataset():
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, 20, (SAMPLES, LENGTH + 1), generator=generator)
    targets = words[:, 1:].clone()
    for sentence, length in enumerate(torch.randint(1, LENGTH + 1, (SAMPLES,), generator=generator)):
        targets[sentence, length:] = PADDING
    return TensorDataset(words[:, :-1], targets)


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))


def summed_loss(model, words, targets):
    return F.cross_entropy(model(words).flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="sum")


def main():
    dist.init_process_group("gloo")
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for words, targets in loader:
            optimizer.zero_grad()
            total, tokens = summed_loss(model, words, targets), (targets != PADDING).sum()
            if fault("mean-of-local-means"):
                loss = total / tokens
            else:
                dist.all_reduce(tokens)
                loss = total * dist.get_world_size() / tokens  # DDP divides by the number of ranks
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the mean over the tokens of both batches."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        words, targets = data[joint(parts)]
        optimizer.zero_grad()
        (summed_loss(model, words, targets) / (targets != PADDING).sum()).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
