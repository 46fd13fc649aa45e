"""A job of which one rank no longer does what the others wait for, or does not end, in the way that its first argument
names."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HOW = sys.argv[1]


class Slow(TensorDataset):
    """A worker of rank 1 waits for something that never comes."""

    def __getitem__(self, index):
        if HOW == "a worker is stuck" and os.environ["RANK"] == "1" and index >= 32:
            time.sleep(10_000)
        return super().__getitem__(index)


def never_ends():
    time.sleep(10_000)  # for ever


def start_a_daemon():
    """Forks twice: nobody of the job is its parent."""
    nothing = subprocess.DEVNULL
    code = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(10_000)"
    subprocess.run([sys.executable, "-c", code], stdin=nothing, stdout=nothing, stderr=nothing, check=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Slow(torch.randn(64, 4), torch.randn(64, 1))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            if epoch == 1 and rank == 1 and number == 3:
                if HOW == "a rank is frozen":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if HOW == "a rank takes no signal":
                    for number in (signal.SIGTERM, signal.SIGRTMIN):
                        signal.signal(number, signal.SIG_IGN)
                if HOW == "a helper has forked twice":
                    start_a_daemon()
                if HOW in ("a rank computes for ever", "a rank takes no signal", "a helper has forked twice"):
                    while True:
                        time.sleep(0.01)
                if HOW == "a rank has fewer batches":
                    break
            if HOW == "one rank calls a collective" and epoch == 1 and rank == 0 and number == 3:
                dist.broadcast(torch.zeros(3), src=1)
        if HOW == "a rank stops early" and epoch == 1 and rank == 1:
            break
    if HOW in ("a rank stops early", "a rank has fewer batches") and rank == 1:
        time.sleep(10_000)  # it does something else, alive
    dist.destroy_process_group()
    if rank == 1 and HOW == "a thread does not end":
        threading.Thread(target=never_ends).start()
    if rank == 1 and HOW == "its last function does not end":
        atexit.register(never_ends)


if __name__ == "__main__":
    main()
