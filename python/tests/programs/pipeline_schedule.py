"""torch.distributed.pipelining: a GPipe schedule of two stages, fed by the first, with targets on the last."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randn(160, 5))
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))
    parts = [nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32)), nn.Sequential(nn.ReLU(), nn.Linear(32, 5))]
    model = parts[rank]
    stage = PipelineStage(model, rank, stages, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=y, losses=[])
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
