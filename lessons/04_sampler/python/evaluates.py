"""Evaluates after every epoch; each rank has its share of the test set, which has an odd number of samples."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import WORLD
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from twin import fault, note


def dataset(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 12, generator=generator)
    noise = torch.randn(samples, 1, generator=generator)
    return TensorDataset(inputs, (inputs[:, :1] + inputs[:, 1:2] + noise > 0).long().squeeze(1))


def network():
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))


def evaluate(model, test, rank, world_size):
    """(accuracy, samples, what this rank has predicted)."""
    if fault("evaluation-padding"):
        share, sampler = test, DistributedSampler(test, shuffle=False)
    else:
        share, sampler = Subset(test, range(rank, len(test), world_size)), None
    shuffle = fault("shuffled-evaluation")
    hits, count, predictions = torch.zeros(()), torch.zeros(()), []
    model.eval()
    with torch.no_grad():
        for inputs, targets in DataLoader(share, batch_size=4, shuffle=shuffle, sampler=sampler):
            predicted = model(inputs).argmax(1)
            hits += (predicted == targets).sum()
            count += len(inputs)
            predictions += predicted.tolist()
    model.train()
    if not fault("rank-zero-metric"):
        if not fault("local-hits-global-count"):
            dist.all_reduce(hits)
        dist.all_reduce(count)
    return (hits / count).item(), int(count), predictions


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train, test = dataset(64, seed=7), dataset(21, seed=8)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=8, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        accuracy, count, predictions = evaluate(model, test, rank, world_size)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.4f} of {count} samples", flush=True)
    note(accuracy=accuracy, predictions=predictions, parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """What rank 0 prints is the accuracy of its model on the test set; predictions come in the order of the samples."""
    model, (inputs, targets) = network(), dataset(21, seed=8)[:]
    vector_to_parameters(torch.tensor(ranks[0]["parameters"]), model.parameters())
    predicted = model(inputs).argmax(1)
    accuracy = (predicted == targets).float().mean().item()
    return {"accuracy": abs(ranks[0]["accuracy"] - accuracy) < 1e-6,
            "predictions": all(one["predictions"][:10] == predicted[rank::WORLD].tolist()[:10]
                               for rank, one in enumerate(ranks))}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
