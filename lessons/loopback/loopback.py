"""Keeps a job of one machine on 127.0.0.1. A store of PyTorch's listens on every interface unless it is given a socket, and
neither torchrun nor env:// gives it one. `import torch` calls load() in every process of a job that runs in environment(),
as it does for any backend of torch (lockstep_loopback-1.dist-info); the job's programs stay as they are."""

import errno
import functools
import os
import pathlib
import socket

HERE = pathlib.Path(__file__).resolve().parent
ADDRESS = "127.0.0.1"
ARGUMENTS = ("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant",
             "master_listen_fd", "use_libuv")  # of TCPStore, in their order


def environment():
    """The variables of such a job. PET_LOCAL_ADDR is torchrun's --local-addr."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "PET_LOCAL_ADDR": ADDRESS, "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo"}


def served_here(given):
    """A TCPStore's arguments with a socket to listen at. Where its port is taken the store says so, or shares the store that
    this process has there."""
    if not given["host_name"].startswith("127."):
        given["host_name"] = ADDRESS
    if given.get("is_master"):
        try:
            listening = socket.create_server((ADDRESS, given["port"]))
            given |= {"port": listening.getsockname()[1], "master_listen_fd": listening.detach()}
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return given


def load():
    from torch import distributed
    if not distributed.is_available():
        return
    original = distributed.TCPStore.__init__

    @functools.wraps(original)
    def __init__(store, *values, **named):
        given = dict(zip(ARGUMENTS, values)) | named
        original(store, **(given if given.get("master_listen_fd") is not None else served_here(given)))
    distributed.TCPStore.__init__ = __init__
