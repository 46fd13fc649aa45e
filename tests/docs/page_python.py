"""The Python code of the pages, and the names that stand in it: of modules, and of the things of a small job.

A snippet is a fenced block, an indented block that is Python, or a call inside of a sentence: in backticks, or in a
paragraph that begins with "In Python:".
"""

import ast
import collections
import glob
import itertools
import math
import os
import random
import re
import socket
import sys
import textwrap
import time
import types
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.utils.checkpoint
from page_commands import COMMAND, FENCED, INDENTED, INLINE, PAGES, ROOT
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.launcher.api import LaunchConfig
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

sys.path.append(str(ROOT / "python"))
import lockstep_torch  # noqa: E402

MODULES = {
    "lockstep_torch": lockstep_torch,
    "torch": torch, "dist": dist, "F": functional, "nn": torch.nn, "np": numpy, "numpy": numpy, "os": os, "glob": glob,
    "itertools": itertools, "collections": collections, "socket": socket, "random": random, "mp": torch.multiprocessing,
    "timedelta": timedelta, "Counter": collections.Counter, "DataLoader": DataLoader, "DistributedSampler": DistributedSampler,
    "DistributedDataParallel": DistributedDataParallel, "Subset": Subset, "TensorDataset": TensorDataset, "Join": Join,
    "ShardedGradScaler": ShardedGradScaler, "FullyShardedDataParallel": FullyShardedDataParallel, "LaunchConfig": LaunchConfig,
    "init_process_group": dist.init_process_group, "math": math, "sys": sys, "time": time, "LinearLR": torch.optim.lr_scheduler.LinearLR,
    "SequentialLR": torch.optim.lr_scheduler.SequentialLR,
    "consume_prefix_in_state_dict_if_present": torch.nn.modules.utils.consume_prefix_in_state_dict_if_present,
}
IN_PYTHON = re.compile(r"In\s+Python(?:,[^:.]*)?:(?!\n\n)(.*?)(?=\n\n|\Z)", re.DOTALL)
CALL = re.compile(r"(?<![\w.:>-])[A-Za-z_][\w.]*\(")
PYTHON = re.compile(r"\b(?:print\(|assert |dist\.|torch\.|sampler\.|loader\b)")
CPP = re.compile(r"::|;\s*(?://|$)|std\b|->|\{\.|<[A-Z.]", re.MULTILINE)
SAMPLES, FEATURES, CLASSES, BATCH = 64, 8, 4, 8

Snippet = collections.namedtuple("Snippet", "page kind text")


def whole(text):
    """A statement of which a sentence shows the beginning, or its end, with what makes it one."""
    if text.startswith(("finally:", "except")):
        return f"try:\n    pass\n{text}"
    if re.match(r"(?:for|with|if|while)\b", text) and not re.search(r":.*\S", text.split("\n")[-1]):
        return f"{text.rstrip(':')}:\n    pass"
    return f"while True:\n    {text}\n    break" if re.search(r": break$", text) else text


def balanced(text, start):
    """The call whose name begins at `start`, to its last bracket; "" where there is none."""
    depth = 0
    for place in range(text.index("(", start), len(text)):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[place], 0)
        if depth == 0:
            rest = re.match(r"(?:\.\w+(?:\(\))?)*", text[place + 1:])[0]  # what is called on it, too
            return text[start:place + 1] + rest
    return ""


def blocks_of(text):
    """(kind, text) of a page's blocks."""
    for language, body in FENCED.findall(text):
        if language == "python":
            yield "fenced", body
    for body in INDENTED.findall(FENCED.sub("", text)):
        body = textwrap.dedent(body).rstrip("\n")
        if not CPP.search(body) and not COMMAND.match(body) and PYTHON.search(body):
            yield "block", body


def calls_of(text):
    """The calls in a page's sentences that are Python's, in their order."""
    prose = INDENTED.sub("\n", FENCED.sub("", text))
    found = {}
    for code in INLINE.finditer(prose):
        root = re.match(r"(?:import \w+; )?(\w+)[.(]", code[1])
        if root and root[1] in MODULES and not CPP.search(code[1]) and "(" in code[1]:
            found[code.start()] = code[1]
    for paragraph in IN_PYTHON.finditer(prose):
        start = paragraph.start(1)
        for code in INLINE.finditer(paragraph[1]):
            if re.search(r"\w\(|\w = ", code[1]) and not code[1].startswith("."):
                found[start + code.start()] = code[1]
        bare = INLINE.sub(lambda code: " " * len(code[0]), paragraph[1])
        end = 0
        for call in CALL.finditer(bare):
            if call.start() >= end and (one := balanced(bare, call.start())):
                end = call.start() + len(one)
                if "." in one or not one.endswith("()"):  # "backward()" names a function
                    found[start + call.start()] = one
    return [" ".join(found[place].split()) for place in sorted(found)]


def snippets():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for kind, body in blocks_of(text):
            yield Snippet(page, kind, body)
        for body in dict.fromkeys(calls_of(text)):
            yield Snippet(page, "call", whole(body))


def tree_of(snippet):
    return ast.parse(snippet.text, f"{snippet.page.name}: {snippet.text}")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.bn = torch.nn.Linear(FEATURES, FEATURES), torch.nn.BatchNorm1d(FEATURES)
        self.head = torch.nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs):
        return self.head(self.bn(self.trunk(inputs)))

    def loss(self, inputs):
        return self(inputs).square().mean()


def job(folder):
    """The names of a job that goes right, on the ranks of the default group, after a backward: what snippets are about."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, targets = torch.randn(SAMPLES, FEATURES), torch.arange(SAMPLES) % CLASSES
    dataset = TensorDataset(inputs, targets)
    module = Net()
    ddp = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SAMPLES)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, BATCH, sampler=sampler)
    functional.cross_entropy(ddp(inputs[:BATCH]), targets[:BATCH]).backward()
    optimizer.step()
    flat = torch.cat([p.grad.flatten() for p in ddp.parameters()])
    path = os.path.join(folder, f"state_{rank}.pt")
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 0}
    torch.save(state, path)
    count = torch.tensor(float(SAMPLES // world_size))
    return {
        **MODULES, "rank": rank, "local_rank": rank, "world_size": world_size, "W": world_size, "N": SAMPLES, "G": 4, "n": BATCH,
        "device": torch.device("cpu"), "seed": 0, "epoch": 0, "epochs": 2, "step": 0, "first_epoch": 0, "lr": 0.1, "max_norm": 1.0,
        "batch_size": BATCH, "n_last": 5, "n_devices": 2, "total_steps": 0, "i": 0, "index": 0,
        "model": ddp, "ddp": ddp, "module": module, "layer": module.trunk, "bn": module.bn, "ema": Net(), "head": module.head,
        "optimizer": optimizer, "scheduler": scheduler, "scaler": torch.amp.GradScaler("cuda", enabled=False),
        "data": dataset, "dataset": dataset, "test_set": dataset, "sampler": sampler, "loader": loader,
        "inputs": inputs, "share_inputs": inputs, "targets": targets, "x": inputs, "outputs": module(inputs), "loss_fn": functional.cross_entropy,
        "loss": functional.cross_entropy(module(inputs), targets), "first": inputs[:BATCH], "second": inputs[BATCH:2 * BATCH],
        "g": flat, "one": flat, "norm": flat.norm(), "t": torch.ones(3), "tensor": torch.ones(3), "flag": torch.zeros(1),
        "rows": inputs, "p": next(ddp.parameters()), "batches": torch.tensor(len(loader)), "features": module.trunk(inputs),
        "groups": 2, "channels": FEATURES, "lengths": [SAMPLES // 2, SAMPLES // 2], "losses": torch.ones(2), "counts": torch.ones(2),
        "gathered": [module.trunk(inputs)], "hits": count.clone(), "count": count, "loss_sum": 1.0, "per_sample": torch.ones(BATCH), "updates_made": 1,
        "microbatches": [inputs[:BATCH], inputs[BATCH:]], "batch_ids": list(range(BATCH)), "ids": list(sampler), "files": ["a", "b"],
        "folder": folder, "pattern": os.path.join(folder, "*"), "path": path, "state": state, "new": f"{path}.new",
        "classes": CLASSES, "evaluate": lambda model: model(inputs).sum().item(), "buffer": module.bn.running_mean,
        "args": types.SimpleNamespace(seed=0), "box": [0], "states": [None] * world_size,
        "shapes": [None] * world_size, "ranks": list(range(world_size)), "patient": dist.group.WORLD, "stop": False, "signum": 15,
        "work": dist.all_reduce(torch.ones(1), async_op=True), "prepare": lambda: None, "wait": lambda: None, "parameters": list(module.parameters()),
        "base_lr": 0.1, "decay": scheduler, "generator": torch.Generator(), "file": open(f"{path}.open", "wb"),  # noqa: SIM115
        "temporary": f"{path}.new", "indices": list(range(SAMPLES)), "stream": iter(range(SAMPLES)), "worker": 0, "workers": 1, "metrics": {"loss": 1.0},
    }
