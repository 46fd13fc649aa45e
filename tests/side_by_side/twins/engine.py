"""Lesson 14: every parameter once, and the optimizer's own."""

import copy

import torch
from torch.utils.checkpoint import checkpoint

from job import checksum, mlp, sgd, train, wrap
from twins import twin


class TwoBranches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.always, self.sometimes = mlp(), torch.nn.Linear(10, 10), torch.nn.Linear(10, 10)
        self.take = True

    def forward(self, inputs):
        hidden = self.body(inputs)
        return self.always(hidden) + (self.sometimes(hidden) if self.take else 0)


@twin("unused-parameter", "14", ranks=({1},))
def unused_parameter(job, broken):
    job.init()
    module = TwoBranches()
    model = wrap(module, find_unused_parameters=not broken)  # PITFALL unused-parameter

    def forward(inputs):
        module.take = job.rank == 0 or job.steps < 2
        return model(inputs)
    train(job, model, forward=forward)


class SharedLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = torch.nn.Linear(784, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 10)

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        for _ in range(2):  # the reentrant checkpoint makes each use a backward of its own
            hidden = checkpoint(self.shared, hidden, use_reentrant=True)
        return self.last(hidden)


@twin("parameter-ready-twice", "14")
def parameter_ready_twice(job, broken):
    job.init()
    model = wrap(SharedLayer(), static_graph=not broken)  # PITFALL parameter-ready-twice
    train(job, model)


@twin("frozen-after-wrapping", "14")
def frozen_after_wrapping(job, broken):
    job.init()
    module = mlp()
    if not broken:
        module[0].requires_grad_(False)
    model = wrap(module)
    if broken:  # PITFALL frozen-after-wrapping
        module[0].requires_grad_(False)
    train(job, model, sgd(module[2]))


@twin("optimizer-built-on-other-parameters", "14", lambda figures: all(one["moved"] for one in figures))
def optimizer_built_on_other_parameters(job, broken):
    job.init()
    module = mlp()
    optimizer = sgd(copy.deepcopy(module) if broken else module)  # PITFALL optimizer-built-on-other-parameters
    before = checksum(module.parameters())
    train(job, wrap(module), optimizer)
    job.figure(moved=checksum(module.parameters()) != before)


@twin("zero-grad-on-bucket-view", "14")
def zero_grad_on_bucket_view(job, broken):
    job.init()
    model = wrap(mlp(), gradient_as_bucket_view=True)
    optimizer = sgd(model)
    for inputs, targets in job.each_step(job.batches(job.sampler())):
        if broken:  # PITFALL zero-grad-on-bucket-view
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_()
                    parameter.grad.zero_()
        else:
            optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        job.step(loss)
