"""What the driver compares: a hash of every bit of the models that a program trained."""

import hashlib
import sys

import torch
import torch.distributed as dist


def say(*models):
    digest = hashlib.sha256()
    for model in models:
        for name, value in model.state_dict().items():
            digest.update(name.encode())
            if hasattr(value, "to_local"):  # this rank's part
                value = value.to_local()
            digest.update(bytes(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()))
    sys.stdout.write(f"rank {dist.get_rank()}: {digest.hexdigest()[:32]}\n")  # in one piece, of several ranks
    sys.stdout.flush()
