"""Jobs of several ranks, and jobs in one process."""

import contextlib
import datetime
import os
import subprocess
import sys
import threading
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from usual import batch, loss_of, mlp, sgd, show, started, train

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
two = {"ranks": 2}


@contextlib.contextmanager
def job(name="store"):
    # The ranks meet in a file, without a port.
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(name)}", rank=RANK, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=60))
    try:
        yield
    finally:
        dist.destroy_process_group()


def wrapped(model=None, **options):
    return DistributedDataParallel(model or mlp(), **options)


def fit(model, steps=5, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, steps, **options)
    show(*(each.detach().sum() for each in model.parameters()))
    return model


@started(**two)
def plain_job():
    """The usual job of two ranks."""
    with job():
        fit(wrapped(), steps=9)


@started(**two)
def options_of_the_engine():
    """static_graph, gradient_as_bucket_view, find_unused_parameters, no broadcast of buffers, small buckets."""
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = mlp(), nn.Linear(2, 2)

        def forward(self, inputs):
            return self.used(inputs)
    with job():
        fit(wrapped(static_graph=True))
        fit(wrapped(gradient_as_bucket_view=True, bucket_cap_mb=0.0001))
        fit(wrapped(Half(), find_unused_parameters=True))
        fit(wrapped(broadcast_buffers=False, init_sync=False))


@started(**two)
def buffers():
    """BatchNorm, and buffers of odd types, which the engine broadcasts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model.register_buffer("count", torch.tensor(3))
    model.register_buffer("flags", torch.ones(3, dtype=torch.bool))
    model.register_buffer("none", None)
    with job():
        fit(wrapped(model))
        show(model[1].running_mean)


@started(**two)
def communication_hooks():
    """A hook of the program's, fp16 compression and PowerSGD."""
    def own(_state, bucket):
        buffer = bucket.buffer() / RANKS
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])
    with job():
        for state, hook in ((None, own), (None, default_hooks.fp16_compress_hook),
                            (powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)):
            model = wrapped()
            model.register_comm_hook(state, hook)
            fit(model)


@started(**two)
def uneven():
    """Join, with as many batches more on the second rank."""
    with job():
        model = wrapped()
        optimizer = sgd(model)
        with Join([model]):
            for step in range(3 + 2 * RANK):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
        show(*model.parameters())


@started(**two)
def accumulated():
    """no_sync over two of three backwards."""
    with job():
        model = wrapped()
        optimizer = sgd(model)
        for step in range(9):
            with contextlib.nullcontext() if step % 3 == 2 else model.no_sync():
                (loss_of(model, step) / 3).backward()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
                show(*model.parameters())


@started(**two)
def several_engines():
    """Two wrapped models, trained in turn and together, as in a game of two."""
    with job():
        first, other = wrapped(), wrapped(nn.Linear(6, 2))
        both = [sgd(first), sgd(other)]
        for step in range(6):
            for optimizer in both:
                optimizer.zero_grad()
            if step % 2:
                (loss_of(first, step) + loss_of(other, step)).backward()
            else:
                loss_of(first, step).backward()
                loss_of(other, step).backward()
            for optimizer in both:
                optimizer.step()
            show(*first.parameters(), *other.parameters())


@started(**two)
def groups():
    """Groups of one, of both, and of members only; made, used and destroyed."""
    with job():
        for _ in range(3):
            alone = [dist.new_group([rank]) for rank in range(RANKS)][RANK]
            both = dist.new_group(timeout=datetime.timedelta(seconds=30), group_desc="both")
            for group in (alone, both):
                numbers = torch.full((3,), 1.0 + RANK)
                dist.all_reduce(numbers, group=group)
                show(numbers, dist.get_world_size(group))
                dist.destroy_process_group(group)
        fit(wrapped())


@started(**two)
def collectives():
    """Each collective that Gloo has, of tensors, of objects, and asynchronous; send and recv; barriers."""
    with job():
        mine, other = torch.arange(4.0) + RANK, 1 - RANK
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        dist.broadcast(mine, 1)
        dist.reduce(mine, 0)
        gathered = [torch.zeros(4) for _ in range(RANKS)]
        dist.all_gather(gathered, mine)
        dist.gather(mine, gathered if RANK == 0 else None, 0)
        part = torch.zeros(4)
        dist.scatter(part, gathered if RANK == 1 else None, 1)
        whole = torch.zeros(8)
        dist.all_gather_into_tensor(whole, mine)
        work = dist.all_reduce(whole, async_op=True)
        show(work.wait(), work.is_completed())
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": RANK, "text": "ä"})
        told = [objects] if RANK == 0 else [None]
        dist.broadcast_object_list(told, 0)
        given = [None]
        dist.scatter_object_list(given, [["a"], ["b"]] if RANK == 0 else None, 0)
        if RANK == 0:
            dist.send(mine, other)
            dist.recv(part, other)
        else:
            dist.recv(part, other)
            dist.send(mine, other)
        for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, part, other)]):
            each.wait()
        dist.barrier()
        dist.monitored_barrier()
        show(mine, whole, part, *gathered, str(objects), str(told), str(given))
        show(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__, dist.get_backend())


@started(**two)
def functional_collectives():
    """torch.distributed._functional_collectives and all-reduces that gradients flow through."""
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn
    with job():
        show(functional.all_reduce(torch.ones(3) * (RANK + 1), "sum", dist.group.WORLD) + 0)
        model = mlp()
        loss = torch.distributed.nn.functional.all_reduce(loss_of(model))
        loss.backward()
        show(*(each.grad for each in model.parameters()))


@started(**two)
def meets_twice():
    """The job's group is destroyed, and made again by another file; each time a model trains."""
    for name in ("first", "second"):
        with job(name):
            fit(wrapped())


@started(**two)
def never_destroyed():
    """The ranks end without destroying their group, after a barrier."""
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('store')}", rank=RANK, world_size=RANKS)
    fit(wrapped())
    dist.barrier()
    if RANK == 0:
        dist.recv(torch.zeros(1), 1)  # Gloo may hang a rank whose peer has gone (docs/hangs.md)
    else:
        dist.send(torch.zeros(1), 0)


@started(**two)
def own_models_beside():
    """Before the job each rank fits a small model to its own data, and beside it another one."""
    def fit_own(steps):
        probe = nn.Linear(6, 2)
        optimizer = sgd(probe)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(probe, 70 + step).backward()
            optimizer.step()
            show(*probe.parameters())
    fit_own(5)
    with job():
        model = wrapped()
        optimizer = sgd(model)
        probe = nn.Linear(6, 2)
        other = sgd(probe)
        for step in range(9):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            if step % 2:
                other.zero_grad()
                loss_of(probe, step).backward()
                other.step()
        show(*model.parameters(), *probe.parameters())


@started(**two)
def helper_before():
    """The first rank has a process of its own prepare something, with an optimizer, before the job begins."""
    import processes
    if RANK == 0:
        subprocess.run([sys.executable, "-c", processes.TRAINS], check=True)
    with job():
        fit(wrapped(), steps=9)


@started(**two, python=("-W", "ignore"))
def traced_teacher():
    """torch.jit.trace, deepcopy and export of a frozen teacher and of the wrapped model's module."""
    import copy
    with job():
        model, teacher = wrapped(), mlp().requires_grad_(False).eval()
        optimizer = sgd(model)
        for step in range(6):
            with torch.no_grad():
                goal = teacher(batch(step))
            optimizer.zero_grad()
            loss = (model(batch(step)) - goal).pow(2).mean()
            loss.backward()
            optimizer.step()
            show(loss)
            if step % 2:
                with torch.no_grad():
                    for each in (teacher, model.module):
                        show(torch.jit.trace(each, batch())(batch()).sum(), copy.deepcopy(each)(batch()).sum())


@started(**two)
def compiled():
    """A compiled module inside of the engine."""
    with job():
        fit(wrapped(torch.compile(mlp(), backend="eager")))


@started(**two)
def sharded_optimizer():
    """ZeroRedundancyOptimizer, consolidated."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    with job():
        model = wrapped()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        train(model, optimizer)
        optimizer.consolidate_state_dict(0)
        show(len(optimizer.state_dict()["state"]) if RANK == 0 else 0, *model.parameters())


@started(**two)
def sharded_model():
    """fully_shard on the CPU, and a DTensor."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    with job():
        mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
        model = mlp()
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            show(loss)
        whole = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        show(isinstance(whole, DTensor), whole.full_tensor())


@started(**two)
def left_out_of_the_engine():
    """Parameters and buffers that the engine is told to ignore, each rank's own."""
    with job():
        model = mlp()
        model.register_buffer("own", torch.tensor(float(RANK)))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["own", "2.bias"])
        fit(wrapped(model))
        show(model.own)


@started(**two, ends=[0, 1], finds="one-rank-raises")
def a_rank_that_fails():
    """One rank raises; the other one's collective fails, and it says so."""
    try:
        with job():
            model = wrapped()
            fit(model, steps=3)
            if RANK == 1:
                raise ValueError("this rank's own")
            fit(model, steps=3)
    except RuntimeError as error:
        show("the other rank has gone", len(str(error)) > 0)


@started(**two)
def waits_in_a_thread():
    """Collectives in a second thread, with a group of its own."""
    with job():
        own = dist.new_group()
        model = wrapped()

        def average():
            for _ in range(4):
                dist.all_reduce(torch.ones(3), group=own)
        thread = threading.Thread(target=average)
        thread.start()
        fit(model)
        thread.join()


@started(**two)
def evaluates_together():
    """Evaluation by the module, gathered over the ranks, between epochs with a DistributedSampler."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    with job():
        data = TensorDataset(torch.randn(24, 6, generator=torch.Generator().manual_seed(3)))
        sampler = DistributedSampler(data)
        model = wrapped()
        optimizer = sgd(model)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for [inputs] in DataLoader(data, batch_size=4, sampler=sampler, num_workers=1):
                optimizer.zero_grad()
                model(inputs).pow(2).mean().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                total = sum(model.module(inputs).sum() for [inputs] in DataLoader(data, batch_size=4,
                                                                                  sampler=sampler))
            model.train()
            dist.all_reduce(total)
            show(total)


def alone_in_a_job():
    """A job of one process, whose store is in memory, with all that it leaves."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    fit(wrapped())
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    fit(mlp())


def joins_again():
    """Five jobs of one process, one after another: threads and descriptors end with them."""
    for _ in range(5):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        fit(wrapped(), steps=2)
        dist.destroy_process_group()
    show(len(os.listdir("/proc/self/task")) < 40)


def another_backend():
    """torch's backend for tests, which does nothing, in a job that pretends to have four ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        dist.all_reduce(torch.ones(3))
        fit(mlp())
        show(dist.get_backend(), dist.get_world_size())
        dist.destroy_process_group()


def of_spawn(number, folder):
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    model = DistributedDataParallel(mlp())
    optimizer = sgd(model)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    if number == 0:
        show(*model.parameters())
    dist.destroy_process_group()


def spawned_ranks():
    """torch.multiprocessing.spawn starts the ranks."""
    torch.multiprocessing.spawn(of_spawn, (os.getcwd(),), nprocs=2)


def spawned_ranks_of_a_trainer():
    """As above, and the parent has trained before."""
    train(mlp(), steps=3)
    torch.multiprocessing.spawn(of_spawn, (os.getcwd(),), nprocs=2)
    train(mlp(), steps=3)


def meets_by_the_environment(fails=False):
    dist.init_process_group("gloo")
    model = wrapped()
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if fails and step == 3:
            raise ValueError("fails once")
    if RANK == 0:
        show(*model.parameters())
    dist.destroy_process_group()


@started(torchrun=2)
def under_an_agent():
    """torchrun's agent starts both ranks."""
    meets_by_the_environment()


@started(torchrun=2, restarts=1, variables={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
def started_again():
    """The ranks fail once, and the agent starts them again."""
    meets_by_the_environment(fails=RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")


@started(torchrun=2, ends=[1], finds="(every|one)-rank-raises")
def recorded_errors():
    """The agent's file of a rank's exception, written by its decorator."""
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        meets_by_the_environment(fails=True)
    main()
