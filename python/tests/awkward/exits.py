"""Ways to end, and what is called and said then."""

import atexit
import contextlib
import os
import resource
import signal
import sys
import threading
import traceback
import warnings
import weakref

import torch
from usual import batch, loss_of, mlp, sgd, show, started, train


def no_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@started(ends=[7])
def exit_code():
    """sys.exit with a number."""
    train(mlp())
    sys.exit(7)


@started(ends=[1])
def exit_text():
    """sys.exit with a text, which goes to stderr."""
    train(mlp())
    sys.exit("the program says why")


@started(ends=[9])
def exit_at_once():
    """os._exit: nothing is called at exit."""
    atexit.register(show, "never said")
    train(mlp())
    os._exit(9)


@started(ends=[1])
def uncaught():
    """An exception that nobody catches, with its traceback, causes and notes."""
    train(mlp())
    try:
        {}["key"]
    except KeyError as error:
        error.add_note("a note")
        raise ValueError("raised from another one") from error


@started(ends=[1])
def uncaught_in_a_step():
    """An exception out of a hook in the middle of backward, and out of a closure: the traceback is the program's."""
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer)

    def closure():
        model[0].weight.register_hook(lambda _gradient: 1 / 0)
        loss_of(model).backward()
    try:
        optimizer.step(closure)
    except ZeroDivisionError as error:
        show([each.name for each in traceback.extract_tb(error.__traceback__) if "awkward" in each.filename])
    raise RuntimeError("the end")


@started(ends=[1])
def group_of_exceptions():
    """An ExceptionGroup that nobody catches."""
    if sys.version_info < (3, 11):
        return
    train(mlp())
    raise ExceptionGroup("several", [ValueError("one"), KeyError("other")])  # noqa: F821 of Python 3.11


@started(ends=[1])
def says_nothing_of_itself():
    """The uncaught exception's __str__ and __repr__ raise."""
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("not to be printed")
        __repr__ = __str__
    train(mlp())
    raise Mute


@started(ends=[1])
def own_excepthook():
    """sys.excepthook of the program's, which looks at sys.last_value, and exits otherwise."""
    def hook(kind, value, trace):
        show(kind.__name__, str(value), hasattr(sys, "last_value"), len(traceback.extract_tb(trace)) > 0)
        os.write(2, b"the hook's own\n")
    sys.excepthook = hook
    train(mlp())
    raise ValueError("handled by the hook")


@started(ends=[-6])
def aborted():
    """os.abort: SIGABRT."""
    no_core()
    train(mlp())
    os.abort()


@started(ends=[-11])
def crashed():
    """A fault in C ends the process by SIGSEGV, with faulthandler's stacks, and without."""
    import ctypes
    no_core()
    train(mlp())
    ctypes.string_at(0)


@started(python=("-X", "faulthandler"), ends=[-11])
def crashed_with_stacks():
    """A fault in C, of which -X faulthandler tells to stderr."""
    import ctypes
    no_core()
    train(mlp())
    ctypes.string_at(0)


def called_at_exit():
    """What is called at exit comes in its order, trains, and raises."""
    def fails():
        raise RuntimeError("at exit")
    atexit.register(show, "registered first")
    atexit.register(fails)
    atexit.register(lambda: train(mlp(), steps=2))
    atexit.register(show, "registered last")
    train(mlp())


def unregistered_at_exit():
    """The program runs and clears all that is registered so far, as a forked server does."""
    atexit.register(show, "once")
    train(mlp())
    atexit._run_exitfuncs()
    train(mlp())


def cleared_at_exit():
    """atexit._clear(): nothing is called."""
    train(mlp())
    import state
    atexit._clear()
    atexit.register(state.tell, "exit")


def unraisable():
    """An exception in __del__, with the usual hook and with one of the program's."""
    class Fails:
        def __del__(self):
            raise ValueError("in __del__")
    Fails()
    sys.unraisablehook = lambda given: show("unraisable", given.exc_type.__name__)
    model = mlp()
    model.register_forward_hook(lambda *_: Fails() and None)
    train(model)
    sys.unraisablehook = sys.__unraisablehook__


def finalizers():
    """weakref.finalize, __del__ of module globals, and what they say at exit."""
    class Says:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            os.write(1, f"{self.name} is gone\n".encode())
    model = train(mlp())
    weakref.finalize(model, show, "the model is gone")
    weakref.finalize(model[0].weight, show, "its weight is gone")
    globals()["kept"] = Says("the module's")
    model.kept = Says("the model's")


def model_of_the_module():
    """The model, the optimizer and a loader live in the module until Python takes it apart."""
    globals()["kept_model"] = model = mlp()
    globals()["kept_optimizer"] = optimizer = sgd(model)
    train(model, optimizer)


def waits_for_a_thread():
    """A thread that is no daemon goes on for some steps after the main one has ended."""
    main = threading.current_thread()

    def work():
        main.join(0.2)
        train(mlp())
    threading.Thread(target=work).start()


def recursion():
    """RecursionError in forward, caught."""
    class Deep(torch.nn.Module):
        def forward(self, inputs):
            return self.forward(inputs)
    train(mlp())
    with contextlib.suppress(RecursionError):
        Deep()(batch())
    train(mlp())


def memory_error():
    """MemoryError and torch's own, caught."""
    model = mlp()
    train(model)
    for make in (lambda: bytearray(1 << 60), lambda: torch.empty(1 << 60)):
        try:
            make()
        except (MemoryError, RuntimeError) as error:
            show(type(error).__name__)
    train(model)


@started(python=("-O",))
def without_asserts():
    """python -O."""
    assert False, "not with -O"  # noqa: B011
    train(mlp())


@started(python=("-OO", "-B"))
def without_texts():
    """python -OO: there are no docstrings."""
    show(mlp.__doc__, sgd.__doc__)
    train(mlp())


@started(python=("-X", "dev"))
def developing():
    """python -X dev: warnings, faulthandler and debug hooks of memory."""
    train(mlp())


def memory_is_traced():
    """tracemalloc: it is on, with as many frames as the program asked for, and sees the program's lines."""
    import tracemalloc
    model = mlp()
    optimizer = sgd(model)
    tracemalloc.start(3)
    train(model, optimizer)
    found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*usual.py")])
    show(tracemalloc.get_traceback_limit(), len(found.statistics("lineno")) > 0)
    tracemalloc.stop()


@started(python=("-W", "error"))
def warnings_are_errors():
    """python -W error."""
    train(mlp(), steps=30)


@started(python=("-u", "-b", "-s"))
def other_options():
    """python -u -b -s."""
    show(sys.flags.bytes_warning, sys.flags.no_user_site)
    train(mlp())


def interactive():
    """The program is a console, which trains a line at a time; sys.ps1 is set."""
    import code
    console = code.InteractiveConsole({"train": train, "mlp": mlp})
    sys.ps1 = ">>> "
    for line in ("train(mlp())", "1 / 0", "train(mlp(), steps=2) and None"):
        console.push(line)


@started(python=("-W", "always"))
def warnings_are_counted():
    """Each warning that is shown goes to the program's own function."""
    shown = []
    warnings.showwarning = lambda message, *_given, **_named: shown.append(str(message)[:60])
    train(mlp(), steps=30)
    warnings.warn("the program's own", stacklevel=1)
    show(shown)


@started(ends=[-9])
def killed_at_exit():
    """The process ends itself by a signal in what is called at exit."""
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
    train(mlp())


def exit_while_an_exception_is_handled():
    """sys.exit(0) inside of an except block: a success."""
    train(mlp())
    try:
        raise ValueError("handled")
    except ValueError:
        sys.exit(0)


def generator_is_closed():
    """The training is in a generator that the program drops."""
    def steps():
        model = mlp()
        optimizer = sgd(model)
        try:
            for step in range(100):
                train(model, optimizer, steps=1)
                yield step
        finally:
            show("closed")
    for step in steps():
        if step == 3:
            break
    train(mlp())
