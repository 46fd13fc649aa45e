"""DistributedSampler in C++ against torch.utils.data.distributed.DistributedSampler, index for index.

usage: sampler_parity.py PROGRAM      (PROGRAM is the built sampler_parity)
Exit codes: 0 equal, 1 different, 3 the program failed, 77 skipped.
"""

import itertools
import random
import sys

from one_program import output_of, torch
from torch.utils.data.distributed import DistributedSampler

LEAST = 2000


def combinations():
    """(n, num_replicas, seed, epoch, shuffle, drop_last): the corners, then drawn ones."""
    sizes = (1, 2, 3, 5, 16, 17, 100, 1023)
    replicas = (1, 2, 3, 4, 7, 16)
    seeds_and_epochs = ((0, 0), (0, 1), (1, 0), (42, 5), (2**62, 3), (7, -1), (0, -3))
    flags = tuple(itertools.product((True, False), (True, False)))
    for n, r, (seed, epoch), (shuffle, drop) in itertools.product(sizes, replicas, seeds_and_epochs, flags):
        yield n, r, seed, epoch, shuffle, drop
    draw = random.Random(0)
    for _ in range(800):
        yield (draw.randint(1, 3000), draw.randint(1, 32), draw.randint(0, 2**63 - 1), draw.randint(0, 1000),
               draw.random() < 0.8, draw.random() < 0.5)
    # The sizes that are trained on.
    for n in (10000, 60000):
        for r in (1, 2, 4, 8):
            for epoch in range(3):
                yield n, r, 0, epoch, True, False


def main(program):
    cases = list(combinations())
    assert len(cases) >= LEAST, len(cases)
    lines = "".join(" ".join(str(int(value)) for value in case) + "\n" for case in cases)
    theirs = torch.frombuffer(bytearray(output_of(program, lines=lines, timeout=60)), dtype=torch.int64).tolist()
    position = 0
    compared = 0
    for case in cases:
        n, r, seed, epoch, shuffle, drop = case
        for rank in range(r):
            sampler = DistributedSampler(range(n), r, rank, shuffle, seed, drop)
            sampler.set_epoch(epoch)
            expected = [len(sampler), *sampler]
            found = theirs[position:position + len(expected)]
            if found != expected:
                print(f"different: n {n}, num_replicas {r}, rank {rank}, seed {seed}, epoch {epoch}, "
                      f"shuffle {shuffle}, drop_last {drop}\nPython: {expected[:12]}...\nC++:    {found[:12]}...")
                return 1
            position += len(expected)
            compared += len(expected) - 1
    if position != len(theirs):
        print(f"different: {len(theirs) - position} numbers more from C++ than from Python")
        return 1
    print(f"{len(cases)} combinations, all ranks: {compared} indices equal")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
