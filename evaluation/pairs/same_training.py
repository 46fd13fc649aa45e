"""One training that any number of ranks can do: the same global batches, in one order. Run by healthy_pairs.py.

usage: torchrun --nproc-per-node N same_training.py MODEL OPTIMIZER [--bucket-kb K] [--bfloat16] [--updates U]
"""

import argparse
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, GLOBAL_BATCH, SIDE, CLASSES = 512, 32, 8, 4
MODELS = {
    "mlp": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 64), torch.nn.ReLU(),
                                       torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)),
    "conv": lambda: torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.GELU(), torch.nn.Conv2d(8, 8, 3), torch.nn.GELU(),
                                        torch.nn.Flatten(), torch.nn.Linear(128, CLASSES)),
    "norm": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 48), torch.nn.LayerNorm(48),
                                        torch.nn.Tanh(), torch.nn.Linear(48, CLASSES)),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("optimizer", choices=OPTIMIZERS)
    parser.add_argument("--bucket-kb", type=int, default=25 * 1024)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--updates", type=int, default=70)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    # torch.randn gives other numbers with the kernels for old processors.
    draw = random.Random(0)
    images = torch.tensor([draw.gauss(0, 1) for _ in range(SAMPLES * SIDE * SIDE)]).reshape(SAMPLES, 1, SIDE, SIDE)
    targets = images.flatten(1)[:, :CLASSES].argmax(1)
    torch.manual_seed(0)
    dataset = TensorDataset(images, targets)
    model = DistributedDataParallel(MODELS[options.model](), bucket_cap_mb=options.bucket_kb / 1024)
    optimizer = OPTIMIZERS[options.optimizer](model.parameters())
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH // ranks, sampler=sampler)
    done = epoch = 0
    while done < options.updates:
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
            loss.backward()
            optimizer.step()
            done += 1
            if done == options.updates:
                break
        epoch += 1
    dist.destroy_process_group()


main()
