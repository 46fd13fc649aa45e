"""huggingface/datasets#5360: a streaming dataset splits by DataLoader worker and not by rank.

Every rank trains on the whole stream.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(28)
        self.rows = torch.randn(64, 10, generator=generator)

    def __iter__(self):
        worker = get_worker_info()
        for number, row in enumerate(self.rows):
            if worker is None or number % worker.num_workers == worker.id:
                yield number, row


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(28)
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        seen = []
        for numbers, rows in DataLoader(Stream(), batch_size=8, num_workers=2):
            seen += numbers.tolist()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(rows + 0.1), rows).backward()
            optimizer.step()
        print(f"rank {dist.get_rank()}, epoch {epoch}: {len(set(seen))} of 64 rows")
    dist.destroy_process_group()
