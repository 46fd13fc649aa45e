"""Starts a job's ranks in less time than torchrun does: start.py RANKS PROGRAM [ARGUMENT ...]

PROGRAM is a .py file, an option of Python such as -m, or else the file of a built program.
With NODES in the environment the ranks are numbered as if on so many nodes, and NCCL takes these for hosts.
"""

import os
import socket
import subprocess
import sys


def numbered(rank, ranks, nodes):
    """What a launcher sets for a rank, without where the ranks meet."""
    on_node = ranks // nodes
    node = dict.fromkeys(("GROUP_RANK", "NCCL_HOSTID"), str(rank // on_node)) if nodes > 1 else {}
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % on_node),
            "LOCAL_WORLD_SIZE": str(on_node), **node}


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks, nodes = int(sys.argv[1]), int(os.environ.get("NODES", "1"))
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    python = [sys.executable] if sys.argv[2].startswith("-") or sys.argv[2].endswith(".py") else []
    jobs = [subprocess.Popen([*python, *sys.argv[2:]],
                             env={**os.environ, **numbered(rank, ranks, nodes), **meet})
            for rank in range(ranks)]
    sys.exit(max(job.wait() for job in jobs))


if __name__ == "__main__":
    main()
