"""A script that trains on one GPU where nobody says how many there are. Waits until COUNT of it run.

usage: alone.py FOLDER COUNT
"""

import os
import pathlib
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (inputs, targets) in enumerate(DataLoader(data, batch_size=16)):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    if number == 0:
        (folder / str(os.getpid())).touch()
        while len(list(folder.iterdir())) < count:
            time.sleep(0.01)
