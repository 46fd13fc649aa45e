"""Carts learn their ways through a store by deep Q-learning; each rank has carts and a memory of its own."""

import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import one_hot, smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 300
CARTS = 8  # of a rank; each moves once a step
BATCH = 64  # moves of a rank that a step learns from
ROOM = 1600  # moves that a rank remembers
EXPLORE = 180  # steps until carts hardly move at random
LEAST = 0.1
TARGET = 20  # steps between copies to the target
DISCOUNT = 0.85
SLIP = 0.1
MAP = ["..#...",
       "..#.#.",
       "....#.",
       ".##...",
       ".....#",
       "#.#..G"]


class Store:
    """Where a move leads, by cell and direction; the goal gives 1, any other move costs a little."""

    def __init__(self, plan):
        cells = "".join(plan)
        self.side, self.cells, self.goal = len(plan), len(cells), cells.index("G")
        self.free = torch.tensor([place for place, what in enumerate(cells) if what == "."])
        self.table = torch.zeros(self.cells, 4, dtype=torch.long)
        for cell in range(self.cells):
            for way, (down, right) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
                row, column = cell // self.side + down, cell % self.side + right
                inside = 0 <= row < self.side and 0 <= column < self.side
                there = row * self.side + column
                self.table[cell, way] = there if inside and cells[there] != "#" else cell

    def starts(self, number, dice):
        return self.free[torch.randint(len(self.free), (number,), generator=dice)]

    def move(self, cells, ways, dice):
        """Rows of cell, way, reward, next cell, and whether the goal is reached; then where the carts are."""
        slips = torch.rand(len(cells), generator=dice) < SLIP
        actual = torch.where(slips, torch.randint(4, (len(cells),), generator=dice), ways)
        there = self.table[cells, actual]
        done = there == self.goal
        reward = torch.where(done, 1.0, -0.05)
        rows = torch.stack([cells.float(), ways.float(), reward, there.float(), done.float()], 1)
        return rows, torch.where(done, self.starts(len(cells), dice), there)

    def worths(self):
        """What each move from a free cell is worth, by value iteration."""
        worth = torch.zeros(self.cells, 4)
        done = (self.table == self.goal).float()
        for _ in range(200):
            sure = torch.where(done > 0, 1.0, -0.05) + DISCOUNT * (1 - done) * worth.amax(1)[self.table]
            worth = (1 - SLIP) * sure + SLIP * sure.mean(1, keepdim=True)
        return worth[self.free]


class Memory:
    def __init__(self, room):
        self.room, self.rows = room, torch.zeros(0, 5)

    def add(self, rows):
        self.rows = torch.cat([self.rows, rows])[-self.room:]

    def draw(self, number, dice):
        return self.rows[torch.randint(len(self.rows), (number,), generator=dice)].unbind(1)


class Worth(nn.Module):
    def __init__(self, cells, hidden=64):
        super().__init__()
        self.cells = cells
        self.layers = nn.Sequential(nn.Linear(cells, hidden), nn.ReLU(), nn.Linear(hidden, 4))

    def forward(self, cells):
        return self.layers(one_hot(cells.long(), self.cells).float())


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    dice = torch.Generator().manual_seed(40 + rank)
    store, memory = Store(MAP), Memory(ROOM)
    net = Worth(store.cells)
    model = DistributedDataParallel(net)
    target = copy.deepcopy(net)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=0.002, alpha=0.95, momentum=0.5)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=STEPS, power=0.8)
    cells = store.starts(CARTS, dice)
    losses, drawn, rewards = [], [], [torch.zeros(())]
    for step in range(STEPS):
        chance = max(LEAST, 1 - step / EXPLORE)
        luck = torch.rand(CARTS, generator=dice)
        with torch.no_grad():
            best = net(cells).argmax(1)
        ways = torch.where(luck < chance, torch.randint(4, (CARTS,), generator=dice), best)
        rows, cells = store.move(cells, ways, dice)
        memory.add(rows)
        rewards.append(rows[:, 2].sum())
        now, way, reward, then, done = memory.draw(BATCH, dice)
        with torch.no_grad():
            choice = net(then).argmax(1, keepdim=True)
            goal = reward + DISCOUNT * (1 - done) * target(then).gather(1, choice).squeeze(1)
        guess = model(now).gather(1, way.long()[:, None]).squeeze(1)
        loss = smooth_l1_loss(guess, goal, beta=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        drawn.append(luck.sum().item())
        if (step + 1) % TARGET == 0:
            target.load_state_dict(net.state_dict())
        if (step + 1) % 100 == 0:
            gained = torch.stack(rewards[-100:]).sum()
            dist.all_reduce(gained)
            if rank == 0:
                print(f"step {step + 1}: loss {loss.item():.4f}, {gained / 100 / CARTS / world:.3f} a move")
    with torch.no_grad():
        held_out = (net(store.free) - store.worths()).abs().mean().item()
    torch.save(nn.ModuleDict({"net": net, "target": target}).state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "drawn": drawn, "held_out": held_out, "gained": gained.item()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
