"""Starts the ranks of a job as torchrun would, from a process that has torch already: a run then takes as long as its
steps. It reads a run a line from its standard input, and answers each with a line.

Called by file, with the Python of the job: python server.py FOLDER, in which lockstep_torch is"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import runpy
import signal
import socket
import sys
import time
from typing import Any

HANGS_S = 10.0  # a job whose ranks have all done what they are to do
ENDS_S = 5.0  # the other ranks, when one has failed


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def be_rank(rank: int, run: dict[str, Any], port: int) -> None:
    """Never returns."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for sent in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sent, signal.SIG_DFL)
    processes.end_with_parent()
    code = 1
    try:
        os.chdir(run["work"])
        output = os.open(os.path.join(run["folder"], "output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        world_size = str(run["ranks"])
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size, GROUP_RANK="0",
            GROUP_WORLD_SIZE="1", ROLE_RANK=str(rank), ROLE_WORLD_SIZE=world_size, ROLE_NAME="default",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RESTART_COUNT="0",
            TORCHELASTIC_MAX_RESTARTS="0", TORCHELASTIC_RUN_ID="none", PWD=run["work"],
            LOCKSTEP_PROVE=run["plan"])
        sys.path[:] = [os.path.join(run["work"], os.path.relpath(path, run["source"]))
                       if path and pathlib.Path(path).is_relative_to(run["source"]) else path for path in sys.path]
        if run["kind"] == "executable":
            os.execvp(run["program"], [run["program"], *run["arguments"]])
        ranks.begin(run["plan"])
        code = program(run)
    except BaseException:  # noqa: BLE001 as Python's own end
        sys.excepthook(*sys.exc_info())
    finally:
        import atexit
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def program(run: dict[str, Any]) -> int:
    sys.argv = [run["program"], *run["arguments"]]
    try:
        if run["kind"] == "module":
            sys.path.insert(0, run["work"])
            runpy.run_module(run["program"], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(pathlib.Path(run["program"]).absolute().parent))
            runpy.run_path(os.path.abspath(run["program"]), run_name="__main__")
    except SystemExit as ended:
        if not isinstance(ended.code, (int, type(None))):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def start(run: dict[str, Any]) -> dict[str, Any]:
    """Until all ranks have ended, one has failed, or the time is over. Nothing of the job is left."""
    port, started = free_port(), set()
    try:
        for rank in range(run["ranks"]):
            if (pid := os.fork()) == 0:
                be_rank(rank, run, port)
            started.add(pid)
        return wait(run, started)
    finally:
        with contextlib.suppress(ChildProcessError):
            while True:  # one may start another meanwhile
                for pid in processes.descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.005)


def wait(run: dict[str, Any], started: set[int]) -> dict[str, Any]:
    until = time.monotonic() + run["limit"]
    left, failed, late, written = set(started), 0, False, False
    while left and not late:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in left:
            left.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            if code != 0 and failed == 0:
                failed, until = code, min(until, time.monotonic() + ENDS_S)
        elif pid == 0:
            time.sleep(0.005)
        if not written and all_written(run):  # what then does not end hangs in its library
            written, until = True, min(until, time.monotonic() + HANGS_S)
        late = time.monotonic() > until
    return {"code": None if late and failed == 0 else failed}


def all_written(run: dict[str, Any]) -> bool:
    return all(ranks.file_of(pathlib.Path(run["folder"]), rank).exists() for rank in range(run["ranks"]))


def leave(*_signal: Any) -> None:
    sys.exit(1)


def serve() -> None:
    import torch._dynamo
    import torch.distributed.optim
    import torch.nn.parallel
    import torch.optim.swa_utils
    import torch.utils.checkpoint
    import torch.utils.data.distributed
    torch.set_num_threads(1)
    processes.adopt_orphans()
    for sent in (signal.SIGINT, signal.SIGHUP):  # by a terminal to this process, too; its parent says what to do
        signal.signal(sent, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    processes.end_with_parent(signal.SIGTERM)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed on the way is no answer
    for line in sys.stdin:
        print(json.dumps(start(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]  # where lockstep_torch is
    from lockstep_torch import processes
    from lockstep_torch.proving import rank as ranks
    serve()
