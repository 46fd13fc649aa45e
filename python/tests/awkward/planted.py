"""Not one of the awkward programs: it differs in all that can be compared where it is recorded, and so shows that all
of that is looked at."""

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading

import torch
from usual import mlp, show, train


def everything():
    model = train(mlp())
    if "LOCKSTEP_TRACE" not in os.environ:
        return
    show("the output")
    os.write(2, b"what goes to stderr\nlockstep: what the recorder says\n")
    vars(sys).update(kept=model, file=open("in the folder", "w"), excepthook=show)
    tempfile.mkstemp()
    threading.Thread(target=threading.Event().wait, daemon=True, name="one more").start()
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    random.random()
    torch.set_default_dtype(torch.float64)
    gc.disable()
    sys.setrecursionlimit(2_000)
    os.environ["ANOTHER"] = "1"
    os.umask(0o077)
    sys.exit(5)
