"""jingyaogong/minimind#853: the policy is wrapped in DDP, and the forward of the loss goes to the module inside.

No gradient is reduced, and the ranks train apart.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(21)
prompts = TensorDataset(torch.randint(0, 20, (96, 6)))
model = torch.nn.Sequential(torch.nn.Embedding(20, 16), torch.nn.Flatten(), torch.nn.Linear(96, 20))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler = DistributedSampler(prompts)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (tokens,) in DataLoader(prompts, batch_size=8, sampler=sampler):
        model_unwrapped = model.module if isinstance(model, DistributedDataParallel) else model
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=model_unwrapped(tokens)).sample()
        rewards = (actions % 2).float() - 0.5
        log_probability = torch.distributions.Categorical(logits=model_unwrapped(tokens)).log_prob(actions)
        loss = -(rewards * log_probability).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
total = sum(parameter.detach().double().sum() for parameter in model.parameters())
print(f"rank {dist.get_rank()}: sum of all weights {total:.6f}")
dist.destroy_process_group()
