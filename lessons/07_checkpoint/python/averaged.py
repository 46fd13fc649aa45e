"""An average of the weights is kept beside the model, and it is what the ranks evaluate after each epoch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, equal, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR, DECAY = 64, 8, 4, 0.05, 0.9


def dataset(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 12, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) / 3)


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train, test = dataset(SAMPLES, seed=1), dataset(16, seed=2)
    test_inputs, test_targets = Subset(test, range(rank, len(test), world_size))[:]
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    net = network()
    model = DDP(net)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if fault("ema-on-one-rank"):
                if rank == 0:
                    average.update_parameters(net)
            else:
                average.update_parameters(net)
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        with torch.no_grad():
            test_loss = F.mse_loss(average(test_inputs), test_targets)
        dist.all_reduce(test_loss)
        if rank == 0:
            print(f"epoch {epoch}: test loss {test_loss.item() / world_size:.4f}", flush=True)
    note(parameters=parameters_to_vector(net.parameters()).tolist(),
         average=parameters_to_vector(average.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both; the averages are equal."""
    data, model = dataset(SAMPLES, seed=1), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model), "average": equal(ranks, "average")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
