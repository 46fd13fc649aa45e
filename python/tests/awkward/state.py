"""What can be seen of a process from inside of it, to be compared between a run that is watched and one that is not.

Left out is what cannot be the same (docs/python-recorded.md): the recorder's own variables and files.
"""

import gc
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import stat
import sys
import threading
import time
import warnings

REPORT = "AWKWARD_REPORT"
# The recorder's own, and what torchrun makes anew for each job.
OTHERS = re.compile(r"LOCKSTEP_|PYTHONPATH$|MASTER_PORT$|TORCHELASTIC_")
BORN = os.getpid()


def name_of(value):
    """Without an address."""
    return value if isinstance(value, (int, str, type(None))) else getattr(value, "__qualname__", type(value).__name__)


def dispositions():
    """As Python has them, and as the kernel has."""
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    masks = {name: int(status[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")}
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        masks["SigCgt"] &= ~(1 << signal.SIGTERM - 1)  # there the recorder says where the process was
    return {"handlers": {number: name_of(signal.getsignal(number)) for number in sorted(signal.valid_signals())
                         if signal.getsignal(number) is not signal.SIG_DFL},
            **{name: f"{mask:x}" for name, mask in masks.items()},
            "timers": [signal.getitimer(which)[1] for which in range(3)]}


def descriptors():
    """Which are open, by what they are of. Above 2 their numbers depend on who was first."""
    traces, found = os.environ.get("LOCKSTEP_TRACE"), []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            of, mode = os.readlink(f"/proc/self/fd/{number}"), os.fstat(number).st_mode
        except OSError:
            continue  # of the listing itself
        if not (traces and of.startswith(os.path.join(traces, ""))):
            named = of.startswith(("anon_inode", "/dev/")) and not of.startswith("/dev/shm/")
            kind = of if named else stat.filemode(mode)[0]
            found.append(f"{number if number <= 2 else '+'} {kind} {'kept' if os.get_inheritable(number) else ''}")
    return sorted(found)


def threads():
    """Python's by name, and the kernel's. One that has ended may be on its way out."""
    until = time.monotonic() + 1
    while True:
        names = sorted(each.name for each in threading.enumerate())
        native = sorted(read_text(f"/proc/self/task/{each}/comm") for each in os.listdir("/proc/self/task"))
        if native.count("python") <= len(names) or time.monotonic() > until:
            return [names, native]
        time.sleep(0.005)


def read_text(file):
    """Empty where it has gone."""
    try:
        return pathlib.Path(file).read_text().strip()
    except OSError:
        return ""


def children():
    return sum(len(pathlib.Path(f"/proc/self/task/{thread}/children").read_text().split())
               for thread in os.listdir("/proc/self/task"))


def hash_of(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def of_torch(torch):
    """Its generators and settings, and how much the program still holds. What tensors it holds, programs say."""
    held = [type(each) for each in gc.get_objects()]
    return {
        "random numbers": hash_of((torch.get_rng_state().tolist(), random.getstate())),
        "settings": [str(each()) for each in (
            torch.get_default_dtype, torch.get_default_device, torch.is_grad_enabled, torch.is_inference_mode_enabled,
            torch.get_num_threads, torch.get_num_interop_threads, torch.are_deterministic_algorithms_enabled,
            torch.is_anomaly_enabled, torch.is_autocast_enabled, torch.get_float32_matmul_precision)],
        "held": [sum(issubclass(kind, of) for kind in held) for of in (torch.nn.Module, torch.optim.Optimizer)],
    }


def of_python():
    return {
        "hooks": [name_of(each) for each in (
            sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, sys.gettrace(), sys.getprofile(),
            warnings.showwarning, sys.stdout, sys.stderr, sys.stdin, *sys.meta_path, *gc.callbacks)],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count() > 0, len(gc.garbage)],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.flags.optimize, len(warnings.filters)],
        "variables": {name: value for name, value in os.environ.items() if not OTHERS.match(name)},
        "umask": of_this_process("umask"),
    }


def of_this_process(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return re.search(rf"^{name}:\s*(.*)$", status, re.MULTILINE | re.IGNORECASE)[1]


def of_process(moment):
    torch = sys.modules.get("torch")
    gc.collect()
    found = {"signals": dispositions(), "children": children(), **of_python()}
    if moment == "exit":  # before, helpers of the program may be on their way out
        found.update(threads=threads(), descriptors=descriptors())
    return {**found, **(of_torch(torch) if hasattr(torch, "nn") else {})}


def tell(moment):
    """Into a file of this process's rank; a second one of a moment takes the first one's place. A forked child has
    none."""
    if os.getpid() == BORN:
        pathlib.Path(f"{os.environ[REPORT]}.{os.environ.get('RANK', '0')}.{moment}").write_text(
            json.dumps(of_process(moment)))
