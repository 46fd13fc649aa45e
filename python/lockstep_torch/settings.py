"""What ranks should agree on, as keys and texts: of modules, optimizers, schedules, loaders, engines and the process.

Numbers, names of classes, versions, hashes, and the variables of the environment that VARIABLES lists: no arguments, no
paths, no addresses. What differs from rank to rank by design is left out, and so are seeds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import platform
import re
import sys
from collections import Counter
from typing import Any

import torch
from torch.utils.data import DistributedSampler, RandomSampler

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "GLOO_DEVICE_TRANSPORT", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC", "NCCL_CUMEM_ENABLE", "NCCL_IB_DISABLE", "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_NET_GDR_LEVEL", "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE",
    "NVIDIA_TF32_OVERRIDE", "OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TORCHDYNAMO_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_COMPILE_DISABLE", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_HIGH_PRIORITY", "TORCH_NCCL_USE_COMM_NONBLOCKING")
LIBRARIES = ("accelerate", "apex", "datasets", "deepspeed", "lightning", "numpy", "pytorch_lightning", "timm",
             "torchaudio", "torchvision", "transformers")
ENGINE = ("broadcast_buffers", "bucket_bytes_cap", "find_unused_parameters", "gradient_as_bucket_view",
          "skip_all_reduce_unused_params", "static_graph")
LARGEST_SCRIPT = 1 << 22  # bytes


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def scalar(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(scalar(item) for item in value)
    return value is None or isinstance(value, (bool, int, float))


def of_module(module: torch.nn.Module) -> str:
    """torch's own modules with their options; of others the class alone, since they may print anything."""
    kind = type(module)
    return f"{name_of(kind)}({module.extra_repr()})" if kind.__module__.startswith("torch.nn.") else name_of(kind)


def of_engine(engine: Any) -> dict[str, str]:
    told = {f"DistributedDataParallel: {name}": repr(getattr(engine, name, None)) for name in ENGINE}
    return {**told, "DistributedDataParallel: ranks": str(engine.process_group.size())}


def of_schedule(schedule: Any) -> dict[str, str]:
    """What it was made with. Its rates are its optimizer's, and where it stands is no setting."""
    left_out = ("base_lrs", "last_epoch")
    values = {key: sorted(value.elements()) if isinstance(value, Counter) else value
              for key, value in vars(schedule).items() if not key.startswith("_") and key not in left_out}
    return {key: repr(value) for key, value in values.items() if scalar(value)}


def of_loader(loader: Any, sampler: Any, size: int) -> dict[str, str]:
    """By the size of its data set, since each rank may have data of its own."""
    told: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last,
                            "workers": loader.num_workers > 0, "batch_sampler": name_of(type(loader.batch_sampler)),
                            "sampler": name_of(type(sampler))}
    options: tuple[str, ...] = ()
    if isinstance(sampler, DistributedSampler):
        options = ("num_replicas", "shuffle", "drop_last")
    elif isinstance(sampler, RandomSampler):
        options = ("replacement",)
    told.update({f"sampler's {option}": getattr(sampler, option) for option in options})
    of = f"{size} samples" if size >= 0 else "a stream"
    return {f"{key} of the loader of {of}": str(value) for key, value in told.items()}


# ---- the process ----

def of_process() -> dict[str, str]:
    told = {f"version of {name}": version for name, version in versions().items()}
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None:
        told |= {"hash of the script": hash_of(pathlib.Path(script)),
                 "git revision": revision_at(pathlib.Path(os.path.abspath(script)).parent)}
    told |= {name: os.environ.get(name, "unset") for name in VARIABLES}
    return {key: value for key, value in told.items() if re.fullmatch(r"[\w.,:;^=+-]{1,64}", value)}


def versions() -> dict[str, str]:
    """Of what is imported. Nothing is imported for it."""
    found = {"Python": platform.python_version(), "torch": str(torch.__version__), "CUDA": str(torch.version.cuda)}
    with contextlib.suppress(Exception):  # a torch without NCCL
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    for name in LIBRARIES:
        found[name] = str(getattr(sys.modules.get(name), "__version__", ""))
    return found


def hash_of(script: pathlib.Path) -> str:
    with contextlib.suppress(OSError):
        if script.stat().st_size <= LARGEST_SCRIPT:
            return hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    return ""


def revision_at(folder: pathlib.Path) -> str:
    """What is checked out there, read as git would, and not by git, which may not be there."""
    with contextlib.suppress(OSError, ValueError):
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.is_file():  # of a worktree or a submodule
                git = place / git.read_text().partition("gitdir:")[2].strip()
            if (git / "HEAD").is_file():
                return revision_in(git)
    return ""


def revision_in(git: pathlib.Path) -> str:
    head = (git / "HEAD").read_text().strip()
    if head.startswith("ref:"):
        name = head[len("ref:"):].strip()
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        if (shared / name).is_file():
            head = (shared / name).read_text().strip()
        else:
            lines = (shared / "packed-refs").read_text().splitlines()
            head = next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")
    return head[:12] if re.fullmatch(r"[0-9a-f]{40,64}", head) else ""
