"""hirofumi0810/neural_sp#168: the loss of each microbatch is not divided by the number that is accumulated.

The gradient is accum_grad_n_steps times the mean's.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(11)
accum_grad_n_steps = 4
speech = TensorDataset(torch.randn(256, 12), torch.randint(0, 5, (256,)))
sampler = DistributedSampler(speech)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    parts = []
    for number, (features, labels) in enumerate(DataLoader(speech, batch_size=8, sampler=sampler)):
        accumulate = (number + 1) % accum_grad_n_steps != 0
        if accumulate:
            with model.no_sync():
                loss = torch.nn.functional.cross_entropy(model(features), labels)
                loss.backward()
        else:
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            if epoch == 0 and number < accum_grad_n_steps and dist.get_rank() == 0:
                norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
                print(f"gradient norm of the first update {norm:.4f}; of the mean {norm / accum_grad_n_steps:.4f}")
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
