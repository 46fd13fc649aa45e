"""One program for TrainCheck, which instruments a script: DDP on Gloo, 2 ranks by torchrun, 8 steps.

FAULT in the environment names one of three faults, SEED the initial weights; each fault is as in the lessons' programs in Python.
"""

import copy
import gzip
import os

import numpy
import torch
import torch.distributed as dist

FOLDER = os.environ.get("LOCKSTEP_DATA", "/usr/share/datasets/fashion-mnist")


def read(name, head, size):
    with gzip.open(os.path.join(FOLDER, f"train-{name}.gz")) as file:
        return numpy.frombuffer(file.read(head + 256 * size), numpy.uint8, offset=head).reshape(256, size)


def main():
    fault = os.environ.get("FAULT", "")
    dist.init_process_group("gloo")
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    inputs = torch.tensor(read("images-idx3-ubyte", 16, 784).astype("float32") / 255)
    targets = torch.tensor(read("labels-idx1-ubyte", 8, 1).reshape(-1).astype("int64"))
    model = torch.nn.Sequential(torch.nn.Linear(784, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    if fault == "no-gradient-sync":
        wrapped = model
    else:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    if fault == "optimizer-built-on-other-parameters":
        parameters = copy.deepcopy([parameter.detach() for parameter in model.parameters()])
        optimizer = torch.optim.SGD([torch.nn.Parameter(each) for each in parameters], lr=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        ids = torch.arange(dist.get_rank(), 256, 2)[step * 16:(step + 1) * 16]
        if fault != "gradients-not-zeroed":
            optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(inputs[ids]), targets[ids])
        loss.backward()
        optimizer.step()
        print(step, float(loss.detach()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
