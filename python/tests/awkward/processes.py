"""Processes beside and below the one that trains."""

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading

import torch
import torch.multiprocessing
from usual import batch, loss_of, mlp, quick, sgd, show, started, train

SECOND = "there is a trace already"  # of a process that trained by itself
TRAINS = ("import torch; torch.manual_seed(0); m = torch.nn.Linear(3, 1); o = torch.optim.SGD(m.parameters(), 0.1)\n"
          "for _ in range(3): o.zero_grad(); l = m(torch.ones(2, 3)).sum(); l.backward(); o.step()\n"
          "print(l.item().hex(), flush=True)\n")


def child(number=0, connection=None):
    torch.manual_seed(number)
    model = torch.nn.Linear(6, 1)
    train(model, steps=3)
    if connection is not None:
        connection.send([each.detach().tolist() for each in model.parameters()])


def started_by(method, first):
    """Children train, after the parent has trained, or before it has."""
    if first:
        train(mlp(), steps=3)
    context = multiprocessing.get_context(method)
    for number in range(2):
        receives, sends = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(number, sends))
        process.start()
        show(receives.recv())
        process.join()
        show(process.exitcode)
    train(mlp(), steps=3)


def spawned():
    """Spawned children train, one after another."""
    started_by("spawn", first=True)


def forked():
    """Forked children of a process that has trained."""
    started_by("fork", first=True)


@started(says=SECOND)
def forked_before():
    """Forked children of a process that has not trained yet."""
    started_by("fork", first=False)


def of_a_server():
    """Children of a forkserver."""
    started_by("forkserver", first=True)


@started(says=SECOND)
def raises_in_a_child():
    """A forked and a spawned child raise; the parent goes on."""
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=fails)
        process.start()
        process.join()
        show(process.exitcode)
    train(mlp())


def fails():
    train(mlp(), steps=2)
    raise ValueError("this child fails")


def work(number):
    return number * number


def pools():
    """A Pool and a ProcessPoolExecutor, forked from a process that trains, evaluate beside it."""
    model = train(mlp(), steps=3)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        show(pool.map(work, range(6)))
        train(model, steps=3)
        show(pool.map(work, range(6)))
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        show(pool.submit(work, 7).result())


def own_fork():
    """os.fork in the middle; the child trains on and leaves by os._exit, sys.exit, an exception or at its end."""
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, steps=3)
    for way in ("os._exit", "sys.exit", "raise"):
        pid = os.fork()
        if pid == 0:
            train(model, optimizer, steps=2)
            if way == "os._exit":
                os._exit(4)
            if way == "sys.exit":
                sys.exit(5)
            raise RuntimeError("the child's own")
        show(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    train(model, optimizer, steps=3)


def grandchildren():
    """A child that forks again and leaves its own child to go on by itself, as a daemon does."""
    model = train(mlp(), steps=3)
    receives, sends = os.pipe()
    if (pid := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
            train(model, steps=2)
            os.write(sends, b"done")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(sends)
    show(os.read(receives, 10), os.read(receives, 10))
    train(model, steps=3)


@started(says=SECOND)
def becomes_itself():
    """os.exec of itself in the middle of the training; the second one trains, too."""
    train(mlp(), steps=3)
    if "AGAIN" not in os.environ:
        os.environ["AGAIN"] = "yes"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    show("the second one")


def becomes_another():
    """os.exec of a program that is no Python, which has the descriptors and signals that it is given."""
    train(mlp(), steps=3)
    os.execvp("sh", ["sh", "-c", "ls /proc/self/fd | wc -l; grep -E 'Sig(Ign|Blk)' /proc/self/status"])


@quick()
def children_of_other_programs():
    """subprocess, with and without close_fds: which descriptors and signals the child has."""
    train(mlp(), steps=3)
    look = ["sh", "-c", "ls /proc/self/fd | wc -l; grep -E 'Sig(Ign|Blk)' /proc/self/status"]
    for options in ({}, {"close_fds": False}, {"start_new_session": True}, {"restore_signals": False}):
        show(subprocess.run(look, stdout=subprocess.PIPE, text=True, check=True, **options).stdout)
    pid = os.posix_spawnp("sh", look, os.environ)
    show(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    with os.popen("echo from a shell") as shell:
        show(shell.read(), os.system("exit 3"))


def variables_of_children():
    """The environment that a child gets is the program's, but for the recorder's own."""
    train(mlp(), steps=3)
    names = subprocess.run(["env"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    show(sorted(each.partition("=")[0] for each in names if not each.startswith(("LOCKSTEP_", "PYTHONPATH"))))


def a_child_that_trains_by_itself():
    """A Python of its own trains, while the parent waits, and beside it."""
    for _ in range(2):
        train(mlp(), steps=3)
        show(subprocess.run([sys.executable, "-c", TRAINS], stdout=subprocess.PIPE, text=True, check=True).stdout)
    beside = [subprocess.Popen([sys.executable, "-c", TRAINS], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    train(mlp(), steps=3)
    show(*(each.communicate()[0] for each in beside))


def ended_by_its_parent():
    """A child that trains is told to end, by SIGTERM and by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = multiprocessing.get_context("fork").Process(target=for_ever)
        process.start()
        os.kill(process.pid, number)
        process.join()
        show(process.exitcode)
    train(mlp())


def for_ever():
    while True:
        train(mlp(), steps=1, each=lambda _step: None)
        threading.Event().wait(60)


def signalled_by_a_child():
    """A handler of SIGCHLD reaps children while the parent trains."""
    ended = []

    def reap(_number, _frame):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended.append(os.waitstatus_to_exitcode(status))
    signal.signal(signal.SIGCHLD, reap)
    model = mlp()
    optimizer = sgd(model)
    for step in range(5):
        if os.fork() == 0:
            os._exit(step)
        train(model, optimizer, steps=2)
    while len(ended) < 5:
        signal.pause()
    show(sorted(ended))


def shared_tensors():
    """Tensors and a model go to a child through shared memory, and it trains the model."""
    context = torch.multiprocessing.get_context("spawn")
    model = train(mlp().share_memory(), steps=3)
    process = context.Process(target=hogwild, args=(model,))
    process.start()
    process.join()
    show(process.exitcode, *model.parameters())


def hogwild(model):
    train(model, steps=3)


def a_group_of_its_own():
    """The process leads a new session and process group, in the middle."""
    train(mlp(), steps=3)
    if (pid := os.fork()) == 0:
        os.setsid()
        os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
        train(mlp(), steps=3)
        os._exit(0)
    show(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@started(says=SECOND)
def multiprocess_spawn_of_torch():
    """torch.multiprocessing.spawn: a child that raises is told by its traceback."""
    torch.multiprocessing.spawn(child, nprocs=1)
    try:
        torch.multiprocessing.spawn(fails_at, nprocs=1)
    except torch.multiprocessing.ProcessRaisedException as error:
        show(str(error).splitlines()[-1])
    train(mlp())


def fails_at(number):
    train(mlp(), steps=2)
    raise ValueError(f"number {number} fails")


def manager():
    """A manager's process holds a dict, and a queue feeds a thread."""
    with multiprocessing.get_context("fork").Manager() as shared:
        losses = shared.dict()
        train(mlp(), each=lambda step: losses.__setitem__(step, step * 2))
        show(sorted(losses.items()))


def temporary_files():
    """What a program finds in its temporary folder, and in its working one, while it trains."""
    def look(_step):
        show(sorted(os.listdir(tempfile.gettempdir())), sorted(os.listdir(".")))
    train(mlp(), each=look)


def evaluation_in_a_child():
    """A forked child evaluates each epoch's model and reports back; the parent goes on training."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(4):
        train(model, optimizer, steps=2)
        receives, sends = os.pipe()
        if (pid := os.fork()) == 0:
            with torch.no_grad():
                os.write(sends, loss_of(model, 50 + step).item().hex().encode())
            os._exit(0)
        os.waitpid(pid, 0)
        show(os.read(receives, 100))
        os.close(receives)
        os.close(sends)


@started(variables={"RANK": "3", "WORLD_SIZE": "4"})
def variables_of_a_job_that_is_none():
    """RANK and WORLD_SIZE are set, as inside of a job's rank, and the program is no part of it."""
    train(mlp())
    show(batch().sum())
