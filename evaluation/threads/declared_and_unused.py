"""pytorch/pytorch#112152: the model declares a layer that its forward does not use.

DDP waits for that layer's gradient, so the bucket is never reduced: after one step the ranks have other gradients.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class ToyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = torch.nn.Linear(10, 10)
        self.net2 = torch.nn.Linear(10, 5)

    def forward(self, inputs):
        return self.net2(inputs)


dist.init_process_group("gloo")
torch.manual_seed(26)
ddp_model = DistributedDataParallel(ToyModel())
torch.manual_seed(dist.get_rank())
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
optimizer.zero_grad()
outputs = ddp_model(torch.randn(20, 10))
torch.nn.functional.mse_loss(outputs, torch.randn(20, 5)).backward()
print(f"rank {dist.get_rank()}: gradient of net2 {ddp_model.module.net2.weight.grad.norm():.6f}")
optimizer.step()
print(f"rank {dist.get_rank()}: weights of net2 {ddp_model.module.net2.weight.detach().sum():.6f}")
dist.destroy_process_group()
