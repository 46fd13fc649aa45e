"""Uneven inputs: rank 1 has more batches than rank 0, and Join steps a sharded optimizer in their place."""

import join_uneven
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Adam

if __name__ == "__main__":
    join_uneven.main(lambda parameters: ZeroRedundancyOptimizer(parameters, Adam, lr=1e-2), join_optimizer=True)
