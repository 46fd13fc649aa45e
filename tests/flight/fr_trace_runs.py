"""PyTorch's fr_trace on several folders, with one import of torch.

usage: fr_trace_runs.py ARGUMENTS...      each a JSON list [OUT, ARGUMENT...]: fr_trace's arguments, and where
                                          {"code": exit code, "output": text} goes
"""

import json
import os
import sys
import traceback

from torch.distributed.flight_recorder.fr_trace import main as fr_trace


def run(out, arguments):
    """In a process of its own, as `python -m torch.distributed.flight_recorder.fr_trace` would."""
    text = out + ".text"
    child = os.fork()
    if child == 0:
        file = os.open(text, os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            fr_trace(arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(text) as file, open(out, "w") as to:
        json.dump({"code": code, "output": file.read()}, to)


for each in sys.argv[1:]:
    where, *rest = json.loads(each)
    run(where, rest)
