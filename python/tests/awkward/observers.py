"""Programs that watch Python, change it, or are started otherwise than as a file."""

import builtins
import gc
import importlib
import inspect
import logging
import os
import pickle
import random
import runpy
import subprocess
import sys
import textwrap
import threading
import time
import types
import zipapp

import torch
from usual import batch, loss_of, mlp, sgd, show, started, train

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = textwrap.dedent("""
    import torch
    from usual import mlp, show, train
    if __name__ == "__main__":
        show(__name__, train(mlp())[0].bias)
    """)


def lines_are_traced():
    """sys.settrace sees the program's own lines, as often as without a recorder, and stays set."""
    counts = {}

    def trace(frame, event, _argument):
        if frame.f_code.co_filename.startswith(HERE):
            name = f"{frame.f_code.co_name} {event}"
            counts[name] = counts.get(name, 0) + 1
            return trace
        return None
    sys.settrace(trace)
    train(mlp(), steps=30)
    stays = sys.gettrace() is trace
    sys.settrace(None)
    show(stays, sorted(counts.items()))


def calls_are_profiled():
    """sys.setprofile and threading.setprofile, of the calls that the program's own lines make."""
    counts = {}

    def profile(frame, event, argument):
        if frame.f_code.co_filename.startswith(HERE) and event.startswith("c_"):
            name = f"{event} {argument.__name__}"
            counts[name] = counts.get(name, 0) + 1
    sys.setprofile(profile)
    threading.setprofile(profile)
    train(mlp())
    stays = sys.getprofile() is profile
    sys.setprofile(None)
    threading.setprofile(None)
    show(stays, sorted(counts.items()))


def imports_are_seen():
    """An import hook that is told of each module that is looked for while the program trains."""
    seen = []

    class Sees:
        def find_spec(self, name, path=None, target=None):
            seen.append(name)
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, steps=1)
    sys.meta_path.insert(0, Sees())
    train(model, optimizer, steps=30)
    sys.meta_path.pop(0)
    show(seen)


def imports_are_refused():
    """An import hook that lets nothing more be imported, from before the first step."""
    class Refuses:
        def find_spec(self, name, path=None, target=None):
            raise ImportError(f"{name} is not to be imported any more")
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    loss_of(model).backward()
    optimizer.step()
    torch.save(model.state_dict(), "warm.pt")
    sys.meta_path.insert(0, Refuses())
    train(model, optimizer, steps=30)
    torch.save(model.state_dict(), "state.pt")
    sys.meta_path.pop(0)


def lazy_imports():
    """An import hook that makes modules lazy, before torch is loaded, in a process of its own."""
    script = ("import importlib.util, sys\n"
              "class Lazy:\n"
              "    def find_spec(self, name, path=None, target=None):\n"
              "        if name in ('json.tool', 'csv'):\n"
              "            sys.meta_path.remove(self)\n"
              "            spec = importlib.util.find_spec(name)\n"
              "            sys.meta_path.insert(0, self)\n"
              "            spec.loader = importlib.util.LazyLoader(spec.loader)\n"
              "            return spec\n"
              "sys.meta_path.insert(0, Lazy())\n")
    run_script(script + SCRIPT)


def collections_are_seen():
    """gc.callbacks, while nothing but the program makes garbage: how often it ran by itself, and what it freed."""
    class Node:
        def __init__(self):
            self.me = self
    seen, model = [], mlp()
    optimizer = sgd(model)
    train(model, optimizer, steps=30)
    gc.collect()
    gc.disable()
    gc.callbacks.append(lambda phase, told: seen.append((phase, told["generation"])))
    train(model, optimizer, steps=30)
    show(seen)
    Node()
    show(gc.collect())
    gc.callbacks.pop()
    gc.enable()


def collected_by_hand():
    """gc.freeze, gc.DEBUG_SAVEALL and gc.set_threshold(1): what becomes garbage in some steps."""
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer)
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    train(model, optimizer, steps=9)
    gc.collect()
    show(sorted(type(each).__name__ for each in gc.garbage))
    gc.set_debug(0)
    gc.garbage.clear()
    gc.unfreeze()
    gc.enable()
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    train(model, optimizer, steps=9)
    gc.set_threshold(*threshold)


def functions_replaced():
    """The program replaces functions of torch's by its own, and puts them back."""
    calls, kept = [], []
    for owner, name in ((torch, "save"), (torch.autograd, "backward"), (torch.Tensor, "backward"),
                        (torch.nn.utils, "clip_grad_norm_"), (torch.nn.Module, "__call__"),
                        (torch.nn.Module, "load_state_dict"), (torch.optim.Optimizer, "zero_grad")):
        original = getattr(owner, name)
        kept.append((owner, name, original))

        def own(*arguments, _given=original, _name=name, **options):
            calls.append(_name)
            return _given(*arguments, **options)
        setattr(owner, name, own)
    model = train(mlp())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    torch.save(model.state_dict(), "state.pt")
    model.load_state_dict(torch.load("state.pt"))
    for owner, name, original in kept:
        setattr(owner, name, original)
    train(model)
    show(calls)


@started(unrecorded=True)
def functions_looked_at():
    """Names, signatures, texts, modules and pickles of functions that a recorder could wrap."""
    for function in (torch.save, torch.load, torch.autograd.backward, torch.nn.utils.clip_grad_norm_,
                     torch.nn.utils.clip_grad_value_, torch.nn.Module.load_state_dict, torch.nn.Module.zero_grad,
                     torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.__init__,
                     torch.utils.data.DataLoader.__iter__, torch.optim.lr_scheduler.LRScheduler.step,
                     torch.nn.parallel.DistributedDataParallel.forward, torch.distributed.init_process_group,
                     torch.distributed.destroy_process_group):
        show(function.__name__, function.__qualname__, function.__module__, (function.__doc__ or "")[:30])
        try:
            show(str(inspect.signature(function)))
        except ValueError as error:
            show(str(error)[:30])
        if function.__qualname__ == function.__name__:
            show(pickle.loads(pickle.dumps(function)) is function)
    show(type(torch.Tensor.detach_).__name__)
    show(inspect.getsource(torch.load)[:30], inspect.getfile(torch.load).endswith("serialization.py"))
    show(isinstance(torch.load, types.FunctionType), torch.save is torch.serialization.save,
         torch.load is torch.serialization.load, inspect.getdoc(torch.save)[:20])


def builtins_replaced():
    """print, open, id, isinstance and __import__ are the program's; each call of them is counted."""
    counts, kept = {}, {}
    for name in ("print", "open", "__import__", "getattr", "hasattr", "isinstance", "len", "repr", "sorted", "vars"):
        kept[name] = getattr(builtins, name)
    model = mlp()
    optimizer = sgd(model)
    losses = []

    def own(name):
        def call(*arguments, **options):
            counts[name] = counts.get(name, 0) + 1
            return kept[name](*arguments, **options)
        return call
    for name in ("print", "open"):
        setattr(builtins, name, own(name))
    for step in range(30):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    for name, function in kept.items():
        setattr(builtins, name, function)
    show(sorted(counts.items()), *losses)


def time_stands_still():
    """time.time, monotonic and sleep are replaced, as a test does."""
    kept = {name: getattr(time, name) for name in ("time", "monotonic", "monotonic_ns", "time_ns", "perf_counter")}
    for name in kept:
        setattr(time, name, lambda: 0)
    train(mlp(), steps=30)
    for name, function in kept.items():
        setattr(time, name, function)


def random_is_replaced():
    """random.random and hash functions are replaced, and the order of a set is the program's."""
    import hashlib
    import json
    kept = random.random, hashlib.sha256, json.dumps
    random.random = hashlib.sha256 = json.dumps = None
    train(mlp(), steps=30)
    random.random, hashlib.sha256, json.dumps = kept


def modules_reloaded():
    """Modules of the program are reloaded and taken out of sys.modules while it trains."""
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, steps=2)
    importlib.reload(sys.modules["usual"])
    for name in ("usual", "json", "linecache", "traceback", "argparse"):
        sys.modules.pop(name, None)
    train(model, optimizer, steps=30)


def logged():
    """The root logger is the program's, with all levels: what torch and others log."""
    class Keeps(logging.Handler):
        def emit(self, record):
            kept.append(record.getMessage()[:50])
    kept = []
    logging.root.addHandler(Keeps())
    logging.root.setLevel(logging.DEBUG)
    train(mlp(), steps=30)
    logging.root.handlers.clear()
    show(kept, len(logging.root.manager.loggerDict) > 0)


def names_in_the_program():
    """The program's globals and locals have objects that must not be looked at closely."""
    class Touchy:
        def refuse(self, *_arguments):
            raise SystemExit("the program's method was called")
        __repr__ = __str__ = __iter__ = __len__ = __eq__ = __float__ = __bool__ = __getattr__ = refuse
        __hash__ = object.__hash__
    globals().update({"LEARNING_RATE": Touchy(), "rate": Touchy(), "config": {"rate": Touchy(), Touchy(): 2}})
    own = Touchy()
    train(mlp(), steps=30)
    show(type(own).__name__)


def run_script(text, *options):
    """In a process of its own, as the program of another file."""
    with open("script.py", "w") as script:
        script.write(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ["PYTHONPATH"]])}
    sys.stdout.flush()
    done = subprocess.run([sys.executable, *(options or ["script.py"])], env=environment, check=False,
                          stdin=open("script.py"))
    show(done.returncode)


@started(says="there is a trace already")
def of_the_command_line():
    """python -c, and the program from standard input."""
    run_script(SCRIPT, "-c", SCRIPT)
    run_script(SCRIPT, "-")


def of_a_module():
    """python -m."""
    run_script(SCRIPT, "-m", "script")


def of_an_archive():
    """The program is a zip file."""
    os.mkdir("packed")
    with open("packed/__main__.py", "w") as script:
        script.write(SCRIPT)
    zipapp.create_archive("packed", "packed.pyz")
    run_script(SCRIPT, "packed.pyz")


def of_a_text():
    """The training is run by exec, of a text without a file, in a namespace of its own."""
    run_script(f"exec(compile({SCRIPT!r}, '<made up>', 'exec'), {{'__name__': '__main__'}})")


def of_runpy():
    """runpy runs a file as __main__, which is put back afterwards."""
    with open("script.py", "w") as script:
        script.write(SCRIPT)
    before = sys.modules["__main__"]
    runpy.run_path("script.py", run_name="__main__")
    show(sys.modules["__main__"] is before)


def without_main():
    """__main__ is taken out of sys.modules, replaced, and its __file__ is deleted or no text."""
    before = sys.modules["__main__"]
    for change in (lambda: sys.modules.pop("__main__"),
                   lambda: sys.modules.__setitem__("__main__", types.ModuleType("__main__")),
                   lambda: vars(before).pop("__file__", None),
                   lambda: setattr(before, "__file__", object())):
        change()
        train(mlp(), steps=4)
        sys.modules["__main__"] = before


def script_is_gone():
    """The program's file is deleted and overwritten while it runs."""
    run_script(SCRIPT.replace("show(__name__", "import os; os.remove('script.py'); os.mkdir('script.py'); show(__name__"
                              ).replace('if __name__', 'import sys\nif __name__'))


def script_of_other_letters():
    """A file whose name and text are not ASCII, and that is no UTF-8."""
    name = os.fsdecode("größe ".encode() + b"\xff.py")
    with open(name, "wb") as script:
        script.write(b"# -*- coding: latin-1 -*-\n# \xe4\xf6\xfc\n" + SCRIPT.encode())
    run_script(SCRIPT, name)


@started(variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
def in_the_c_locale():
    """LC_ALL=C, without UTF-8, with module names of other letters."""
    class Größe(torch.nn.Linear):
        pass
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"größe": Größe(6, 2)})
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(9):
        optimizer.zero_grad()
        loss = model["größe"](batch(step)).sum()
        loss.backward()
        optimizer.step()
        show(loss)


def hash_seed():
    """The order of sets by PYTHONHASHSEED, and id()s that come again."""
    show(sorted({"a", "b", "c"}), list({"a", "b", "c"}))
    train(mlp())


def frames_are_looked_at():
    """forward looks at who called it: the functions of the program on the stack."""
    class Looks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.seen = []

        def forward(self, inputs):
            self.seen.append([each.function for each in inspect.stack() if each.filename.startswith(HERE)])
            return self.inner(inputs)
    model = train(Looks())
    show(model.seen[0] == model.seen[-1], model.seen[-1])


def locals_are_changed():
    """A debugger's way: locals of frames are read and written, and lines jumped."""
    class Stops:
        pass
    model = mlp()
    kept = []
    model.register_forward_pre_hook(lambda *_: kept.append(sorted(sys._getframe(1).f_locals)[:3]))
    train(model)
    show(kept[0] == kept[-1], Stops.__name__)
