"""A rank of a mixed job, under torchrun: odd ranks become the C++ program, the others stay Python.

usage: mixed_rank.py PROGRAM OUT KILLED WORLD:CASE ...

In the first attempt, rank KILLED kills itself after its first case.
"""

import os
import signal
import subprocess
import sys

program, out, killed, *specs = sys.argv[1:]
is_cpp = int(os.environ["RANK"]) % 2 == 1
dies = os.environ["RANK"] == killed and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if dies:
    del specs[1:]
if is_cpp:
    command = [program, out, "env://", "-1", *specs]
    if not dies:
        os.execv(program, command)
    subprocess.run(command, check=True)
else:
    import ddp_parity

    ddp_parity.main(out, "env://", -1, specs)
if dies:
    os.kill(os.getpid(), signal.SIGKILL)
