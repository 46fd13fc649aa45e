"""Mixed precision without a wrapper: gradients are averaged by hand; one sample is damaged, its update is left out."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR, SCALE = 64, 8, 3, 0.1, 2.0**14
DAMAGED = 5


def dataset():
    """One of its samples is damaged."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    targets = 1 + inputs.sum(1, keepdim=True) / 3
    inputs[DAMAGED, 3] = float("nan")
    return TensorDataset(inputs, targets)


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))


def average_gradients(model):
    for parameter in model.parameters():
        if fault("low-precision-reduction"):
            half = parameter.grad.half()
            dist.all_reduce(half)
            parameter.grad.copy_(half).div_(dist.get_world_size())
        else:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, data, model = dist.get_rank(), dataset(), network()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(inputs)
            loss = F.mse_loss(outputs.float(), targets)
            scaler.scale(loss).backward()
            if fault("local-overflow-skip"):
                scaler.unscale_(optimizer)
                average_gradients(model)
            else:
                average_gradients(model)
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():.0f}", flush=True)
    note(scale=scaler.get_scale(), parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets in full precision, up to rounding, without the damaged."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        if DAMAGED in joint(parts):
            continue
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model, 0.05),
            "scale": all(one["scale"] == SCALE / 2**EPOCHS for one in ranks)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
