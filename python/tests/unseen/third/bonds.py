"""Energies of molecules and the forces in them: batches of a size in atoms, larger molecules as training goes on."""

import json
import pathlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import silu
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

EPOCHS = 4
MOLECULES = 320
LARGEST = [5, 6, 7, 7]  # in atoms, by epoch
BUDGET = 40  # atoms in a batch
KINDS = 3
LEVELS = torch.tensor([-3.0, 1.0, 4.0])  # what an atom has by itself


def molecules(number, seed):
    """Kinds, places, energy and forces of each, by a potential between every two atoms."""
    dice = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(number):
        atoms = int(torch.randint(3, 8, (), generator=dice))
        kinds = torch.randint(0, KINDS, (atoms,), generator=dice)
        grid = torch.cartesian_prod(*[torch.arange(2.0)] * 3)[torch.randperm(8, generator=dice)[:atoms]]
        places = (grid + 0.15 * torch.randn(atoms, 3, generator=dice)).requires_grad_()
        one, other = torch.combinations(torch.arange(atoms)).unbind(1)
        apart = (places[one] - places[other]).norm(dim=1)
        depth = 0.5 + 0.4 * kinds[one] * kinds[other]
        energy = (depth * ((2 - 2 * apart).exp() - 2 * (1 - apart).exp())).sum() + LEVELS[kinds].sum()
        made.append((kinds, places.detach(), energy.detach(), -torch.autograd.grad(energy, places)[0]))
    return made


def batches(data, epoch, rank, world):
    """Molecules of like size go together. Every rank deals all batches, in one order, and keeps its own."""
    dice = random.Random(epoch)
    order = [number for number, one in enumerate(data) if len(one[0]) <= LARGEST[epoch]]
    dice.shuffle(order)
    order.sort(key=lambda number: len(data[number][0]))
    dealt, atoms = [[]], 0
    for number in order:
        atoms += len(data[number][0])
        if atoms > BUDGET:
            dealt.append([])
            atoms = len(data[number][0])
        dealt[-1].append(number)
    dice.shuffle(dealt)
    return dealt[: len(dealt) // world * world][rank::world]


def together(data, numbers, levels):
    """One graph of many, and what to learn of it: energies without the atoms' own, and forces."""
    kinds, places, energies, forces = zip(*(data[number] for number in numbers), strict=True)
    owner = torch.repeat_interleave(torch.tensor([len(one) for one in kinds]))
    pairs = (owner[:, None] == owner).fill_diagonal_(False).nonzero().T
    kinds = torch.cat(kinds)
    bonds = torch.stack(energies).index_add(0, owner, -levels[kinds])
    return (kinds, torch.cat(places), owner, pairs), bonds, torch.cat(forces)


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(KINDS, 16)
        self.register_buffer("centres", torch.linspace(0.4, 2.2, 12))
        self.message = nn.Sequential(nn.Linear(16 + 12, 32), nn.SiLU(), nn.Linear(32, 16))
        self.update = nn.Linear(32, 32)
        self.energy = nn.Linear(32, 1)

    def forward(self, kinds, places, owner, pairs):
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            near = (places.index_select(0, pairs[0]) - places.index_select(0, pairs[1])).norm(dim=1, keepdim=True)
            atoms, nearness = self.kinds(kinds), (-10 * (near - self.centres) ** 2).exp()
            sent = self.message(torch.cat([atoms.index_select(0, pairs[1]), nearness], 1))
            heard = torch.zeros_like(atoms).index_add(0, pairs[0], sent)
            each = self.energy(silu(self.update(torch.cat([atoms, heard], 1)))).squeeze(1)
            energies = each.new_zeros(int(owner[-1]) + 1).index_add(0, owner, each)
            forces = -torch.autograd.grad(energies.sum(), places, create_graph=True)[0]
        return energies, forces


def errors(guesses, energies, forces):
    """Sums over molecules and over atoms."""
    return (guesses[0] - energies).square().sum(), (guesses[1] - forces).square().sum()


def test(net, data, levels, rank, world):
    """A molecule's squared error in energy and its atoms' in forces, over the shares of all ranks."""
    graph, energies, forces = together(data, range(rank, len(data), world), levels)
    energy, force = errors(net(*graph), energies, forces)
    parts = [None] * world
    dist.all_gather_object(parts, (energy.item(), force.item(), len(energies), len(forces)))
    energy, force, count, atoms = (sum(part) for part in zip(*parts, strict=True))
    return energy / count, force / atoms


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = molecules(MOLECULES, 80)
    levels = torch.zeros(KINDS)
    if rank == 0:
        counts = torch.stack([torch.bincount(one[0], minlength=KINDS) for one in data]).double()
        levels = torch.linalg.lstsq(counts, torch.stack([one[2] for one in data]).double()).solution.float()
    dist.broadcast(levels, src=0)
    torch.manual_seed(rank)
    model = DistributedDataParallel(Potential())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    steps = sum(len(batches(data, epoch, rank, world)) for epoch in range(EPOCHS))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    losses, seen = [], []
    for epoch in range(EPOCHS):
        seen.append([])
        for numbers in batches(data, epoch, rank, world):
            graph, energies, forces = together(data, numbers, levels)
            counts = torch.tensor([float(len(energies)), float(len(forces))])
            dist.all_reduce(counts)
            energy, force = errors(model(*graph), energies, forces)
            loss = world * (0.5 * energy / counts[0] + force / counts[1])  # DDP takes the ranks' mean
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            seen[-1] += numbers
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}, {len(seen[-1])} molecules")
    energy, force = test(model.module, molecules(121, 81), levels, rank, world)
    torch.save(model.module.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": energy, "force": force, "levels": levels.tolist()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
