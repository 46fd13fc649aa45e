"""Lesson 03 and 06: equal at the start, and equal ever after."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

from job import (RATE, WORLD, broadcast_parameters, checksum, gradient, local_gradient, mean_by_hand, mlp, sgd, train,
                 with_batch_norm, wrap)
from twins import equal, mean_of_local, twin


@twin("no-initial-broadcast", "03", equal("parameters"))
def no_initial_broadcast(job, broken):
    job.init()
    torch.manual_seed(1000 * job.seed + job.rank)
    model = mlp()
    if not broken:  # PITFALL no-initial-broadcast
        broadcast_parameters(model)
    train(job, model, after_backward=mean_by_hand)
    job.figure(parameters=checksum(model.parameters()))


@twin("no-gradient-sync", "03", equal("parameters"))
def no_gradient_sync(job, broken):
    job.init()
    model = mlp()
    if not broken:  # PITFALL no-gradient-sync
        model = wrap(model)
    train(job, model)
    job.figure(parameters=checksum(model.parameters()))


@twin("forward-bypasses-wrapper", "03", equal("parameters"))
def forward_bypasses_wrapper(job, broken):
    job.init()
    model = wrap(mlp())
    forward = model.module if broken else model  # PITFALL forward-bypasses-wrapper
    train(job, model, forward=forward)
    job.figure(parameters=checksum(model.parameters()))


def train_and_compare(job, model, module, rate=RATE, **options):
    """As train(); the figures are of the first step."""
    inputs, targets = next(job.batches(job.sampler()))
    job.figure(local=local_gradient(module, inputs, targets))
    reduce = options.pop("after_backward", lambda model: None)

    def after_backward(model):
        reduce(model)
        if job.steps == 0:
            job.figure(used=gradient(module))
    train(job, model, sgd(model, lr=rate), after_backward=after_backward, **options)


@twin("sum-not-mean", "03", mean_of_local)
def sum_not_mean(job, broken):
    job.init()
    model = mlp()
    broadcast_parameters(model)

    def reduce(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            if not broken:  # PITFALL sum-not-mean
                parameter.grad /= WORLD
    train_and_compare(job, model, model, after_backward=reduce)


@twin("double-average", "03", mean_of_local)
def double_average(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)

    def loss_of(outputs, targets):
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        return loss / WORLD if broken else loss  # PITFALL double-average
    train_and_compare(job, model, module, loss_of=loss_of)


@twin("parameters-differ-across-ranks", "03", ranks=({0}, {1}, {0, 1}))
def parameters_differ_across_ranks(job, broken):
    job.init()
    hidden = 33 if broken and job.rank == 1 else 32  # PITFALL parameters-differ-across-ranks
    train(job, wrap(mlp(hidden)))


@twin("dataset-unseeded", "03", equal("data"))
def dataset_unseeded(job, broken):
    job.init()
    generator = torch.Generator()
    if broken:  # PITFALL dataset-unseeded
        generator.seed()
    else:
        generator.manual_seed(job.seed)
    made_up = torch.rand(job.inputs.shape, generator=generator)
    map_to_targets = torch.randn(784, 10, generator=generator)
    job.inputs, job.targets = made_up, (made_up @ map_to_targets).argmax(1)
    train(job, wrap(mlp()))
    job.figure(data=checksum([job.inputs, job.targets]))


class SyncedBatchNorm(torch.nn.BatchNorm1d):
    """Statistics over all ranks, by hand: torch's SyncBatchNorm takes tensors on a GPU only."""

    def forward(self, inputs):
        if not self.training:
            return super().forward(inputs)
        sums = torch.stack([inputs.sum(0), (inputs * inputs).sum(0)])
        mean, square = differentiable.all_reduce(sums) / (WORLD * len(inputs))
        return (inputs - mean) / (square - mean * mean + self.eps).sqrt() * self.weight + self.bias


@twin("local-batch-norm", "06", equal("mean"))
def local_batch_norm(job, broken):
    job.init()
    norm = torch.nn.BatchNorm1d(784) if broken else SyncedBatchNorm(784)  # PITFALL local-batch-norm
    module = torch.nn.Sequential(norm, mlp())
    model = wrap(module, broadcast_buffers=False)
    inputs, targets = next(job.batches(job.sampler()))
    with torch.no_grad():
        offset = (inputs - norm(inputs)).mean(0)  # what the layer took away, with weight 1 and bias 0
        both = [inputs.clone() for _ in range(WORLD)]
        dist.all_gather(both, inputs)
        standardised = torch.nn.functional.batch_norm(torch.cat(both), None, None, training=True)
    own = standardised[job.rank * len(inputs):(job.rank + 1) * len(inputs)]
    right = torch.allclose(norm(inputs), own, atol=1e-3)
    job.figure(mean="over all ranks" if right else checksum([offset]) + [job.rank])
    train(job, model)


@twin("buffers-not-synced", "06", equal("buffers"))
def buffers_not_synced(job, broken):
    job.init()
    model = wrap(with_batch_norm(), broadcast_buffers=not broken)  # PITFALL buffers-not-synced
    train(job, model)
    model.eval()
    with torch.no_grad():
        outputs = model(job.test_inputs)
    job.report((outputs.argmax(1) == job.test_targets).float().mean())
    job.figure(buffers=checksum(model.buffers()))


@twin("train-mode-differs-across-ranks", "06", equal("training"), ranks=({0}, {1}, {0, 1}))
def train_mode_differs_across_ranks(job, broken):
    job.init()
    model = wrap(with_batch_norm())
    train(job, model, epochs=1)
    model.eval()
    with torch.no_grad():
        hits = (model(job.test_inputs).argmax(1) == job.test_targets).float().mean()
    job.report(hits)
    if not (broken and job.rank == 0):  # PITFALL train-mode-differs-across-ranks
        model.train()
    train(job, model)
    job.figure(training=model.training)
