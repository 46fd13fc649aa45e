"""Signals: handlers, timers, masks, and what ends a process."""

import faulthandler
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading

from usual import mlp, quick, sgd, show, started, train

LOOK = [sys.executable, "-c", "import signal; print([signal.getsignal(n) == signal.SIG_IGN for n in (2, 15, 1, 10)])"]


class Preempted(Exception):
    pass


def handled():
    """SIGUSR1 and SIGUSR2 come in the middle of steps, to a handler that counts and one that saves."""
    seen = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda given, frame: seen.append((given, frame is not None)))
    model = mlp()
    model.register_forward_hook(lambda *_: signal.raise_signal(signal.SIGUSR1))
    model[0].weight.register_hook(lambda _gradient: signal.raise_signal(signal.SIGUSR2))
    train(model)
    show(seen)


def timers():
    """setitimer with SIGALRM and SIGPROF, while the program trains until it has seen some."""
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
    signal.signal(signal.SIGVTALRM, lambda *_: seen.append("virtual"))
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.002, 0.002)
    model = mlp()
    while not {"alarm", "virtual"} <= set(seen):
        train(model, steps=1, each=None, loss_of=lambda module, _: module.__class__ and silent(module))
    for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL):
        signal.setitimer(which, 0)
    show(sorted(set(seen)))


def silent(model):
    from usual import batch
    return model(batch()).sum() * 0


def raises_in_the_middle():
    """A handler raises wherever the program is, and the program goes on with its next step."""
    def leave(_number, _frame):
        raise Preempted
    signal.signal(signal.SIGALRM, leave)
    model = mlp()
    optimizer = sgd(model)
    caught = 0
    for delay in range(40):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0002 * delay)
            for _ in range(20):
                optimizer.zero_grad()
                silent(model).backward()
                optimizer.step()
            threading.Event().wait(5)
        except Preempted:
            caught += 1
    show(caught)
    train(model, optimizer)


@started(ends=[143])
def preempted():
    """SIGTERM's handler saves a checkpoint and leaves with sys.exit(143)."""
    import torch

    def leave(_number, _frame):
        torch.save(model.state_dict(), "last.pt")
        show("saved")
        sys.exit(143)
    signal.signal(signal.SIGTERM, leave)
    model = mlp()
    train(model, each=lambda step: step == 3 and os.kill(os.getpid(), signal.SIGTERM))


@started(ends=[-15])
def default_termination():
    """SIGTERM that nobody handles ends the process by the signal."""
    train(mlp(), each=lambda step: step == 3 and os.kill(os.getpid(), signal.SIGTERM))


@started(ends=[-2])
def interrupted():
    """Ctrl-C that nobody handles: KeyboardInterrupt's traceback, and the end by SIGINT."""
    train(mlp(), each=lambda step: step == 3 and signal.raise_signal(signal.SIGINT))


def interrupted_and_caught():
    """KeyboardInterrupt is caught, the model saved, and the training goes on."""
    model = mlp()
    try:
        train(model, each=lambda step: step == 2 and signal.raise_signal(signal.SIGINT))
    except KeyboardInterrupt:
        show("interrupted")
    train(model)


def ended_by(number):
    signal.signal(number, signal.SIG_DFL)
    train(mlp(), each=lambda step: step == 3 and os.kill(os.getpid(), number))


@started(ends=[-9])
def killed():
    """SIGKILL."""
    train(mlp(), each=lambda step: step == 3 and os.kill(os.getpid(), signal.SIGKILL))


@started(ends=[-2])
def interrupted_by_default():
    """SIG_DFL for SIGINT: the process ends without a traceback."""
    ended_by(signal.SIGINT)


@started(ends=[-1])
def hung_up():
    """SIGHUP that nobody handles."""
    ended_by(signal.SIGHUP)


def real_time():
    """The program uses SIGRTMIN and SIGRTMIN + 1 itself."""
    seen = []
    for number in (signal.SIGRTMIN, signal.SIGRTMIN + 1):
        signal.signal(number, lambda given, _frame: seen.append(given - signal.SIGRTMIN))
    train(mlp(), each=lambda _step: [signal.raise_signal(signal.SIGRTMIN + place) for place in range(2)])
    show(seen)


def ignored():
    """SIGINT and SIGTERM are ignored, so that children ignore them, too; after the program's first steps."""
    train(mlp(), steps=3)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    train(mlp(), steps=3)
    show(subprocess.run(LOOK, stdout=subprocess.PIPE, text=True, check=True).stdout)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    train(mlp(), steps=3)


def ignored_before():
    """As above, but ignored before torch is imported, as nohup does."""
    import importlib
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    importlib.import_module("torch")
    train(mlp(), steps=3)
    show(subprocess.run(LOOK, stdout=subprocess.PIPE, text=True, check=True).stdout)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    child.terminate()
    show(child.wait())


def stacks_of(number, chain):
    own = tempfile.TemporaryFile()
    faulthandler.register(number, file=own, all_threads=True, chain=chain)
    model = mlp()
    train(model, each=lambda step: step == 2 and os.kill(os.getpid(), number), steps=6)
    own.seek(0)
    show(b"most recent call first" in own.read())
    faulthandler.unregister(number)
    train(model, steps=2)


@quick()
def stacks_at_sigterm():
    """The program's faulthandler.register(SIGTERM, chain=False) writes to its own file, and the program goes on."""
    stacks_of(signal.SIGTERM, chain=False)


def stacks_at_sigint():
    """The same of SIGINT."""
    stacks_of(signal.SIGINT, chain=False)


def stacks_and_a_handler():
    """faulthandler.register(SIGTERM, chain=True) before the program's own handler is called."""
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("handled"))
    stacks_of(signal.SIGTERM, chain=True)
    show(seen)


def handler_set_between():
    """The program sets and unsets handlers between its steps, and finds those that it had."""
    found = []
    for number in (signal.SIGTERM, signal.SIGINT):
        def change(step, at=number):
            found.append(str(signal.signal(at, [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler][step % 3])))
        train(mlp(), each=change)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    show([name.split(" at ")[0] for name in found])


@started(ends=[-15])
def registered_is_asked():
    """faulthandler.unregister says whether a signal was registered: none was by the program."""
    train(mlp())
    show([faulthandler.unregister(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)])
    train(mlp(), each=lambda step: step == 3 and os.kill(os.getpid(), signal.SIGTERM))


def register_real_time():
    model, own = mlp(), tempfile.TemporaryFile()
    train(model, steps=2)
    numbers = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    for number in numbers:
        faulthandler.register(number, file=own, all_threads=False)
        os.kill(os.getpid(), number)
    own.seek(0)
    show(own.read().count(b"most recent call first"))
    show(all(map(faulthandler.unregister, numbers)), any(map(faulthandler.unregister, numbers)))
    train(model, steps=2)


@quick()
def stacks_at_real_time():
    """faulthandler.register of each real-time signal, after the first steps."""
    register_real_time()


@started(variables={"LOCKSTEP_STACKS": "1"})
def stacks_at_real_time_under_a_timeout():
    """The same as under `watch --timeout`, which takes SIGRTMIN."""
    register_real_time()


def dumps_later():
    """faulthandler.dump_traceback_later to the program's file, cancelled, and faulthandler.enable to it."""
    own = tempfile.TemporaryFile()
    faulthandler.enable(own)
    faulthandler.dump_traceback_later(3_600, file=own)
    train(mlp())
    faulthandler.cancel_dump_traceback_later()
    show(faulthandler.is_enabled(), own.tell())
    faulthandler.disable()


def masked():
    """Signals are blocked while the program trains, waited for, and read from the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
    train(mlp(), each=lambda step: step == 2 and os.kill(os.getpid(), signal.SIGTERM))
    show(sorted(signal.sigpending()), signal.sigwait({signal.SIGTERM}))
    show(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def woken():
    """A wakeup descriptor gets a byte for each signal."""
    receives, sends = os.pipe()
    os.set_blocking(sends, False)
    signal.set_wakeup_fd(sends)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    train(mlp(), each=lambda _step: signal.raise_signal(signal.SIGUSR1))
    show(len(os.read(receives, 100)), select.select([receives], [], [], 0)[0], signal.set_wakeup_fd(-1) == sends)


def chained():
    """The program keeps what handled SIGTERM and SIGINT before, and calls it after its own."""
    seen, model = [], mlp()
    train(model, steps=2)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    show([str(each).split(" at ")[0] for each in before.values()])

    def own(number, frame):
        seen.append(number)
        if callable(before[number]):
            before[number](number, frame)
    for number in before:
        signal.signal(number, own)
    train(model, each=lambda step: step == 1 and signal.raise_signal(signal.SIGTERM))
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        seen.append("interrupted")
    show(seen)


def stopped_and_continued():
    """A child stops the process by SIGSTOP and lets it go on."""
    train(mlp(), steps=3)
    if (pid := os.fork()) == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        while pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            pass
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    show(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    train(mlp(), steps=3)


@started(variables={"LOCKSTEP_STACKS": "1"})
def real_time_under_a_timeout():
    """As under `watch --timeout`, which takes SIGRTMIN: a program that does not use it sees no difference."""
    train(mlp(), steps=3)


@started(ends=[-13])
def broken_pipes():
    """SIGPIPE at its default: a write to a closed pipe ends the process."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    train(mlp(), steps=3)
    receives, sends = os.pipe()
    os.close(receives)
    os.write(sends, b"nobody reads")
