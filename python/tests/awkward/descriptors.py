"""Descriptors, streams, folders and limits."""

import fcntl
import gc
import io
import logging
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading

import torch
from torch.utils.data import DataLoader, Dataset
from usual import mlp, quick, sgd, show, started, train


class Many(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, index):
        return index


class Compared(torch.nn.Sequential):
    """In its time a hook went wrong over it, and said so."""

    def __eq__(self, other):
        return type(other) is Compared


def odd():
    torch.manual_seed(0)
    return Compared(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def by_layers(model):
    """parameters() would look for the model in a set."""
    return torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], 0.05)


def fit(model, steps=5):
    return train(model, by_layers(model), steps)


@quick()
def stderr_closed():
    """sys.stderr is closed, and then descriptor 2."""
    sys.stderr.close()
    fit(odd())
    os.close(2)
    fit(odd())


def stderr_broken():
    """Descriptor 2 is a pipe that nobody reads."""
    receives, sends = os.pipe()
    os.close(receives)
    os.dup2(sends, 2)
    fit(odd())


@started(says="several threads of this process train")
def train_in_a_thread():
    """After this one, which the recorder says."""
    fit(mlp())
    thread = threading.Thread(target=fit, args=(mlp(),))
    thread.start()
    thread.join()


@quick()
def stderr_is_data():
    """Descriptor 2 is closed, and the program's data file gets the number."""
    os.close(2)
    own = open("own", "wb", buffering=0)
    train_in_a_thread()
    show(own.fileno(), open("own", "rb").read())


@quick()
def stderr_broken_by_default():
    """Descriptor 2 was a pipe from the start, whose reader has gone; SIGPIPE is at its default."""
    if "AGAIN" not in os.environ:
        receives, sends = os.pipe()
        os.dup2(sends, 2)
        os.set_inheritable(receives, True)
        os.environ["AGAIN"] = str(receives)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.close(int(os.environ["AGAIN"]))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    train_in_a_thread()


def stderr_raises():
    """sys.stderr is a logger whose write raises; it is None; and it has no write."""
    class Logger:
        def write(self, text):
            raise RuntimeError("not in production")

        def flush(self):
            raise RuntimeError("not in production")
    before = sys.stderr
    for other in (Logger(), None, object()):
        sys.stderr = other
        fit(odd())
    sys.stderr = before


def streams_replaced():
    """sys.stdout and sys.stderr are kept in memory, and logging goes there."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    logging.basicConfig(stream=sys.stderr, level=logging.DEBUG)
    fit(odd())
    logging.info("logged")
    kept = sys.stdout.getvalue(), sys.stderr.getvalue()
    sys.stdout, sys.stderr = before
    show(*kept)


def stdout_closed():
    """sys.stdout is closed: Python says so at exit, or not."""
    fit(odd(), steps=3)
    sys.stdout.close()
    fit_silently()


def fit_silently(steps=5):
    model = odd()
    optimizer = by_layers(model)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 6)).sum().backward()
        optimizer.step()


@started(ends=[3])
def stdout_full():
    """Standard output is a device without room."""
    fit(odd(), steps=3)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    fit_silently()
    try:
        print("no room", flush=True)
    except OSError as error:
        os.write(2, f"{error.strerror}\n".encode())
        os._exit(3)


@quick()
def all_closed():
    """The program closes all that it inherited, after its first steps, and writes a file of its own."""
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, steps=3)
    os.closerange(3, 256)
    own = open("own", "wb")
    show(own.fileno())
    silent = torch.zeros(4, 6)
    for _ in range(40):
        iterator = iter(DataLoader(Many(), 4_000))
        for _ in range(3):
            next(iterator)
            optimizer.zero_grad()
            model(silent).sum().backward()
            optimizer.step()
        own.write(b"x" * 100)
        own.flush()
    own.close()
    show(os.path.getsize("own"))


def all_taken_over():
    """Each descriptor becomes another file by dup2, and what lies there is read afterwards."""
    model = mlp()
    train(model, steps=3)
    own = os.open("own", os.O_RDWR | os.O_CREAT, 0o600)
    for number in range(3, 64):
        if number != own:
            os.dup2(own, number)
    train(model, steps=30)
    os.closerange(own + 1, 64)
    os.lseek(own, 0, os.SEEK_SET)
    show(os.read(own, 1_000))


def numbers_of_descriptors():
    """What the program opens gets the lowest number that is free: the same as without a recorder."""
    def next_one():
        number = os.open(os.devnull, os.O_RDONLY)
        os.close(number)
        return number
    before = next_one()
    train(mlp(), each=lambda _step: show(next_one() - before))
    show(next_one() - before)


def closed_before():
    """Standard input, output and error are closed before torch is imported; the output goes to a file."""
    if "AGAIN" not in os.environ:
        os.environ["AGAIN"] = "yes"
        os.closerange(0, 3)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    own = os.open("own", os.O_WRONLY | os.O_CREAT, 0o600)
    sys.stdout = os.fdopen(own, "w", closefd=False)
    fit(odd())
    sys.stdout.flush()
    show(own)


def few_allowed():
    """RLIMIT_NOFILE leaves room for no more descriptors after the first steps."""
    model = mlp()
    train(model, steps=2)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, before[1]))
    held = []
    while True:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            show(error.strerror)
            break
    train(model, steps=9)
    torch.optim.Adam(model.parameters())
    for each in held:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@started(says="Too many open files", unrecorded=True)
def few_allowed_from_the_start():
    """RLIMIT_NOFILE is small before the training begins, and all that there are, are taken."""
    model, before = mlp(), resource.getrlimit(resource.RLIMIT_NOFILE)
    optimizer = sgd(model)  # torch imports more for the first one
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1, before[1]))
    train(model, optimizer, steps=9)
    for each in held:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@started(says="cannot grow: File too large", unrecorded=True)
def small_files_only():
    """RLIMIT_FSIZE: who writes more to a file gets SIGXFSZ, which ends a process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    model = mlp()
    optimizer = sgd(model)
    for _ in range(4):
        for indices in DataLoader(Many(), 4_000):
            optimizer.zero_grad()
            (model(torch.ones(4, 6)).sum() + 0 * indices.sum()).backward()
            optimizer.step()
    show(*model.parameters())


def little_memory():
    """RLIMIT_AS: little more than is taken."""
    model = mlp()
    train(model, steps=1)
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), resource.RLIM_INFINITY))
    train(model, steps=30)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def folder_is_gone():
    """The working folder is another one, and is deleted under the process, before and after the first steps."""
    model = mlp()
    optimizer = sgd(model)  # torch imports more for the first one
    for name in ("one", "other"):
        os.mkdir(name)
        os.chdir(name)
        shutil.rmtree(f"../{name}")
        train(model, optimizer, steps=3)
        try:
            os.getcwd()
        except FileNotFoundError as error:
            show(error.strerror)
        os.chdir(os.path.dirname(os.environ["TMPDIR"]) + "/here")


def temporary_folder_is_gone():
    """TMPDIR and HOME name nothing."""
    os.environ.update({"TMPDIR": "/nowhere", "HOME": "/nowhere"})
    train(mlp(), steps=9)


def environment_is_cleared():
    """os.environ.clear() in the middle, and PATH with it."""
    model = mlp()
    train(model, steps=2)
    kept = dict(os.environ)
    os.environ.clear()
    train(model, steps=9)
    os.environ.update(kept)


def umask():
    """Files that the program makes have the rights that its umask leaves."""
    os.umask(0o027)
    train(mlp(), each=lambda step: open(f"own {step}", "w").close())
    show([stat.filemode(os.stat(f"own {step}").st_mode) for step in range(5)], oct(os.umask(0o022)))


def nobody():
    """Root becomes another user in the middle, who may write nowhere."""
    model = mlp()
    train(model, steps=2)
    if os.geteuid() != 0:
        return
    os.seteuid(65_534)
    train(model, steps=9)
    for kind in (torch.optim.Adam, torch.optim.SGD):
        train(mlp(), kind(model.parameters()), steps=2)
    os.seteuid(0)


def inherited():
    """Descriptors that are handed to a child by pass_fds, and locks that are held across a fork."""
    train(mlp(), steps=3)
    with open("own", "w") as own:
        os.set_inheritable(own.fileno(), True)
        fcntl.flock(own, fcntl.LOCK_EX)
        show(subprocess.run(["sh", "-c", f"echo from a child >&{own.fileno()}"], pass_fds=[own.fileno()],
                            check=True).returncode)
    show(open("own").read())
    train(mlp(), steps=3)


def daemon():
    """The process becomes a daemon, as the books say: two forks, a session, all descriptors closed, another folder."""
    receives, sends = os.pipe()
    if os.fork():
        os.close(sends)
        with open(receives) as told:
            show(told.read())
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    here = os.getcwd()
    os.chdir("/")
    os.umask(0)
    for number in range(256):
        if number != sends:
            try:
                os.close(number)
            except OSError:
                pass
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)
    with open(sends, "w") as sys.stdout:
        fit(mlp())
        show(sorted(os.listdir(here)))
        sys.stdout.flush()
        os._exit(0)


def open_files_are_counted():
    """A ResourceWarning tells of each file that is left open; there are as many as the program left."""
    import warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open("own", "w")
        train(mlp(), steps=9)
        gc.collect()
        show([str(each.message)[:15] for each in caught])
