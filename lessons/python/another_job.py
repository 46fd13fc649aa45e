"""Another job on this machine. It serves its store at a port, until the process ends that has started it."""

import subprocess
import sys

SERVES = """
import socket
import sys
import torch.distributed as dist
here = ("127.0.0.1", int(sys.argv[1]))
listens = socket.create_server(here).detach()
store = dist.TCPStore(*here, 2, is_master=True, wait_for_workers=False, master_listen_fd=listens)
print("it serves", flush=True)
sys.stdin.read()
"""


def start_another_job(port):
    """Returns when it serves."""
    job = subprocess.Popen([sys.executable, "-I", "-c", SERVES, str(port)],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if not job.stdout.readline():
        raise OSError(f"another job cannot serve at {port}")
    return job
