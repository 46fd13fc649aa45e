"""Lesson 09: a rank that does not come, or comes with something else. Trained by hand, without the wrapper."""

import datetime
import os
import signal

import torch
import torch.distributed as dist

from job import (BATCH, TIMEOUT_S, WORLD, agreed_training, broadcast_parameters, mean_by_hand, mlp, sgd,
                 sleep_past_the_timeout, train, with_batch_norm, wrap)
from twins import equal, twin

STEP = 4  # the one at which something happens to a rank
EITHER = ({0}, {1}, {0, 1})  # of two ranks that differ, a message may name one or both


def at_step(job, *, fetch=lambda: None, reduce=lambda: None):
    """Training by hand; in step STEP something comes after its batch was fetched, or before its reduction."""
    def batches():
        for batch in job.batches(job.sampler()):
            if job.steps == STEP:
                fetch()
            yield batch

    model = mlp()
    broadcast_parameters(model)
    optimizer = sgd(model)
    for inputs, targets in job.each_step(batches()):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        if job.steps == STEP:
            reduce()
        mean_by_hand(model)
        optimizer.step()
        job.step(loss)


@twin("rank-conditional-collective", "09", ranks=EITHER)
def rank_conditional_collective(job, broken):
    job.init()

    def total_loss():
        if not broken or job.rank == 0:  # PITFALL rank-conditional-collective
            dist.all_reduce(torch.ones(1))
    at_step(job, reduce=total_loss)


@twin("local-early-stop", "09", ranks=EITHER)
def local_early_stop(job, broken):
    job.init()
    model = mlp()
    broadcast_parameters(model)
    optimizer = sgd(model)
    for inputs, targets in job.each_step(job.batches(job.sampler())):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        mean_by_hand(model)
        optimizer.step()
        job.step(loss)
        stop = torch.tensor(float(job.rank == 1 and job.steps == STEP))
        if not broken:  # PITFALL local-early-stop
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop:
            break


@twin("shape-mismatch", "09", ranks=EITHER)
def shape_mismatch(job, broken):
    job.init()
    size = 8 if broken and job.rank == 1 else 6  # PITFALL shape-mismatch
    dist.all_reduce(torch.ones(size))
    agreed_training(job)


@twin("dtype-mismatch", "09", equal("sum"), ranks=EITHER)
def dtype_mismatch(job, broken):
    job.init()
    values = torch.ones(6, dtype=torch.int32 if broken and job.rank == 1 else torch.float32)  # PITFALL dtype-mismatch
    dist.all_reduce(values)
    job.figure(sum=values.double().tolist())
    agreed_training(job)


@twin("order-mismatch", "09", lambda figures: all(one["sum"] == [WORLD] * 6 for one in figures), ranks=EITHER)
def order_mismatch(job, broken):
    job.init()
    values, counts = torch.ones(6), torch.ones(6)
    steps = [lambda: dist.all_reduce(values), lambda: dist.broadcast(counts, 0)]
    for each in reversed(steps) if broken and job.rank == 1 else steps:  # PITFALL order-mismatch
        each()
    job.figure(sum=values.tolist())
    agreed_training(job)


@twin("reduce-op-mismatch", "09", lambda figures: all(one["result"] == [6] * 6 for one in figures), ranks=EITHER)
def reduce_op_mismatch(job, broken):
    job.init()
    values = torch.full((6,), 3.0)
    op = dist.ReduceOp.PRODUCT if broken and job.rank == 1 else dist.ReduceOp.SUM  # PITFALL reduce-op-mismatch
    dist.all_reduce(values, op=op)
    job.figure(result=values.tolist())
    agreed_training(job)


@twin("root-mismatch", "09", equal("received"), ranks=EITHER)
def root_mismatch(job, broken):
    job.init()
    values = torch.full((6,), float(job.rank))
    dist.broadcast(values, job.rank if broken else 0)  # PITFALL root-mismatch
    job.figure(received=values.tolist())
    agreed_training(job)


@twin("rank-skips-init", "09", ranks=({1},))
def rank_skips_init(job, broken):
    if not broken or job.rank == 0:  # PITFALL rank-skips-init
        job.init()
        agreed_training(job)
    else:
        sleep_past_the_timeout()  # it works on by itself


@twin("subgroup-created-by-members-only", "09", ranks=EITHER)
def subgroup_created_by_members_only(job, broken):
    job.init()
    timeout = datetime.timedelta(seconds=TIMEOUT_S)  # else it has the default one, of half an hour
    if not broken or job.rank == 0:  # PITFALL subgroup-created-by-members-only
        dist.new_group([0], timeout=timeout)
    everyone = dist.new_group([0, 1], timeout=timeout)
    dist.all_reduce(torch.ones(6), group=everyone)
    agreed_training(job)


@twin("peer-dies", "09", ranks=({1},))
def peer_dies(job, broken):
    job.init()

    def killed():
        if broken and job.rank == 1:  # PITFALL peer-dies
            os.kill(os.getpid(), signal.SIGKILL)
    at_step(job, fetch=killed)


@twin("one-rank-raises", "09", ranks=({1},))
def one_rank_raises(job, broken):
    job.init()

    def check_sample():
        if broken and job.rank == 1:  # PITFALL one-rank-raises
            raise ValueError("a damaged sample")
    at_step(job, fetch=check_sample)


@twin("slow-rank", "09", ranks=({1},))
def slow_rank(job, broken):
    job.init()

    def read_from_a_slow_disk():
        if broken and job.rank == 1:  # PITFALL slow-rank
            sleep_past_the_timeout()
    at_step(job, fetch=read_from_a_slow_disk)


@twin("rank-zero-long-work", "09", ranks=({0},))
def rank_zero_long_work(job, broken):
    job.init()
    model = agreed_training(job, epochs=1)
    if broken and job.rank == 0:  # PITFALL rank-zero-long-work
        sleep_past_the_timeout()  # evaluates
    train(job, model, after_backward=mean_by_hand, epochs=1)


@twin("evaluation-through-wrapper-on-one-rank", "09", ranks=EITHER)
def evaluation_through_wrapper_on_one_rank(job, broken):
    job.init()
    model = wrap(with_batch_norm())
    for _ in range(2):
        model.train()
        train(job, model, epochs=1)
        if job.rank == 0:
            model.eval()
            evaluated = model if broken else model.module  # PITFALL evaluation-through-wrapper-on-one-rank
            with torch.no_grad():
                job.report((evaluated(job.test_inputs).argmax(1) == job.test_targets).float().mean())


@twin("uneven-batches", "11", ranks=EITHER)
def uneven_batches(job, broken):
    job.init()
    model = wrap(mlp())
    optimizer = sgd(model)
    batches = list(job.batches(job.sampler()))
    if job.rank == 1:
        batches.pop()
    count = torch.tensor(len(batches))
    if not broken:  # PITFALL uneven-batches
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
    for inputs, targets in job.each_step(batches[:count]):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        job.step(loss)
    assert len(inputs) == BATCH
