"""The gradient that an update goes by is the slope of the mean loss of the ranks."""

from __future__ import annotations

from typing import Any

import torch

from lockstep_torch.proving.job import Job, Run
from lockstep_torch.proving.relations import (
    CLEAR,
    FACTOR,
    FAILS,
    HELD,
    ROUNDING,
    SLOPE,
    UNTOLD,
    Answer,
    Ranks,
    dot,
    factor_text,
    fails,
    first_apart,
    line_of,
    near,
    norm,
    of_ranks,
    rounds_of_all,
    untold,
)

SIZE = 1e-6  # of a step along a direction, as a part of each parameter's root mean square
MOVED = 1e-3  # relative; of a loss that is no other for a move by SIZE
ZEROS = 1e-2  # in place of it, where a parameter is 0
NAME = "slope"


def direction(update: dict[str, Any], dice: torch.Generator, along: bool) -> list[torch.Tensor]:
    """Random; `along`: with the gradient's signs, so that the loss changes much. What does not train stays."""
    found = []
    for parameter, gradient, trains in zip(update["before"], update["unclipped"], update["trains"], strict=True):
        noise = torch.randn(parameter.shape, generator=dice, dtype=torch.float64)
        if along and gradient is not None:
            noise = torch.where(gradient != 0, noise.abs() * gradient.sign(), noise)
        size = float(parameter.double().square().mean().sqrt()) if parameter.numel() else 0
        found.append(noise * (size or ZEROS) * trains)
    return found


class Probe:
    """A round that is moved: of each rank its first update, and the directions, which are the same on all."""

    def __init__(self, of_ranks: list[tuple[int, Any]], dice: torch.Generator, along: bool) -> None:
        self.first = [begins for begins, _ in of_ranks]
        self.rounds = [updates for _, updates in of_ranks]
        self.directions = [direction(update, dice, along) for update in self.rounds[0]]

    def of_rank(self, rank: int) -> dict[str, Any]:
        return {"first": self.first[rank], "calls": any(update["rows"] for update in self.rounds[rank]),
                "directions": {update["optimizer"]: directions
                               for update, directions in zip(self.rounds[rank], self.directions, strict=True)}}

    def promised(self, rank: int) -> float:
        """By the gradient: the change of the loss, for a step of size 1."""
        return sum(dot(update["unclipped"], directions)
                   for update, directions in zip(self.rounds[rank], self.directions, strict=True))

    def spread(self) -> float:
        """Of the random sum that `promised` is."""
        return norm([gradient * along for update, directions in zip(self.rounds[0], self.directions, strict=True)
                     for gradient, along in zip(update["unclipped"], directions, strict=True) if gradient is not None])


def held_before(rank: dict[str, Any], begins: int, updates: Any) -> bool:
    """Whether each optimizer of a round had the same parameters in an update before."""
    return all(any(other["optimizer"] == update["optimizer"] and [one.shape for one in other["before"]] == [
        one.shape for one in update["before"]] for other in rank["updates"][:begins]) for update in updates)


def chosen(ranks: Ranks) -> list[list[tuple[int, Any]]]:
    """Of each kind of round the first that another of its kind precedes, one in the middle, and the last."""
    found = []
    for all_ranks in rounds_of_all(ranks).values():
        moved = [each for each in all_ranks if all(
            updates[0]["backwards"] and held_before(rank, begins, updates)
            for rank, (begins, updates) in zip(ranks, each, strict=True))]
        found += [moved[place] for place in sorted({0, len(moved) // 2, len(moved) - 1}) if moved]
    return sorted(found, key=lambda each: each[0][0])


def measured(job: Job, plain: Run, probes: list[Probe], what: str) -> list[list[float]] | str:
    """Of each probe the central difference on each rank; or why there is none. Where a move is carried on to later
    steps, as by running statistics, only the first probe stays."""
    file = job.root / f"probes_{job.runs}.pt"
    torch.save([[probe.of_rank(rank) for probe in probes] for rank in range(len(plain.ranks))], file)
    losses, carried = [], False
    for size in (SIZE, -SIZE):
        run = job.run(f"{what}, {'forward' if size > 0 else 'back'}",
                      tilt={"size": size, "plain": str(plain.folder), "probes": str(file)})
        if run.error:
            return run.error
        if isinstance(apart := differs_elsewhere(plain.ranks, run.ranks, probes), str):
            return apart
        carried = carried or apart
        losses.append(run.ranks)
    forward, back = losses
    if carried:
        del probes[1:]
    return [[(forward[rank]["updates"][first]["loss"] - back[rank]["updates"][first]["loss"]) / (2 * SIZE)
             for rank, first in enumerate(probe.first)] for probe in probes]


def differs_elsewhere(plain: Ranks, moved: Ranks, probes: list[Probe]) -> str | bool:
    """Steps that were not moved are the same in all runs, or the program does not do the same twice. True: they are but
    for the move."""
    carried = False
    for rank, (a, b) in enumerate(zip(plain, moved, strict=True)):
        if len(a["updates"]) > len(b["updates"]):
            return f"rank {rank} made {len(a['updates'])} updates in one run and {len(b['updates'])} in another"
        probed = {probe.first[rank] for probe in probes}
        for number, (x, y) in enumerate(zip(a["updates"], b["updates"], strict=False)):
            apart = abs(x["loss"] - y["loss"]) / max(abs(x["loss"]), abs(y["loss"]), 1)
            if number in probed or apart <= ROUNDING:
                continue
            carried = True
            if apart > MOVED:
                return (f"the program does not do the same twice: on rank {rank} the loss before update {number} is "
                        f"{x['loss']:.9g} in one run and {y['loss']:.9g} in another; seed what it draws")
    return carried


def prove(job: Job, plain: Run) -> Answer:
    ranks = plain.ranks
    rounds = chosen(ranks)
    if not rounds:
        return untold(NAME, "no update of all ranks comes after another one and a backward; take more --steps")
    dice = torch.Generator().manual_seed(1)
    results: list[tuple[list[Probe], list[list[float]]]] = []
    for along in (True, False):
        probes = [Probe(each, dice, along) for each in rounds]
        found = measured(job, plain, probes, "parameters moved along the gradient" if along
                         else "parameters moved along a random direction")
        if isinstance(found, str):
            return untold(NAME, found)
        results.append((probes, found))
    number = min(len(probes) for probes, _ in results)
    answers = [judged(ranks, *((probes[place], found[place]) for probes, found in results)) for place in range(number)]
    return whole(answers, ranks, number)


Measured = tuple[Probe, list[float]]


def judged(ranks: Ranks, along: Measured, across: Measured) -> Answer:
    """Of one round."""
    world_size, step = len(ranks), along[0].first[0]
    promised = [[probe.promised(rank) for rank in range(world_size)] for probe, _ in (along, across)]
    slopes = [sum(found) / world_size for _, found in (along, across)]
    spread = across[0].spread()
    answer = Answer(NAME, HELD, "", step=step, line=line_of(ranks, step))
    if spread == 0 and abs(slopes[0]) < SLOPE:
        return untold(NAME, f"the gradient of update {step} is 0, and so is the slope")
    apart = [rank for rank in range(world_size)
             if not near(promised[0][rank], promised[0][0], SLOPE)
             or abs(promised[1][rank] - promised[1][0]) > SLOPE * spread]
    if apart:
        if first_apart(ranks) == 0:
            return untold(NAME, "each rank begins with parameters of its own, and updates by gradients of its own")
        own = all(near(promised[0][rank], along[1][rank], SLOPE) for rank in range(world_size))
        answer.apart = True
        return fails(answer, "the ranks update by different gradients" + (
            ", each by that of its own loss" if own else ""), sorted({0, *apart}),
            ["no-gradient-sync", "forward-bypasses-wrapper"] if own else ["gradient-not-the-mean"])
    factor = promised[0][0] / slopes[0] if abs(slopes[0]) > SLOPE * abs(promised[0][0]) else 1.0
    error = abs(promised[1][0] - factor * slopes[1]) / (spread or 1)
    answer.factor = factor
    if error <= SLOPE and abs(factor - 1) <= SLOPE:
        answer.error = max(error, abs(factor - 1))
        return answer
    everyone = list(range(world_size))
    if error <= SLOPE:
        named = (["sum-not-mean"] if near(factor, world_size, FACTOR) else
                 ["double-average"] if near(factor, 1 / world_size, FACTOR) else [])
        return fails(answer, "the gradient that the update goes by is the slope of the ranks' mean loss times "
                               + factor_text(factor, world_size), everyone, named)
    if error < CLEAR:
        return untold(NAME, f"the gradient of update {step} and the slope are {error:.2g} apart, which may be rounding")
    answer.factor = None
    return fails(answer, "the gradient that the update goes by has another direction than the slope of the "
                           f"ranks' mean loss ({error:.2g} apart)", everyone, ["gradient-not-the-mean"])


def whole(answers: list[Answer], ranks: Ranks, number: int) -> Answer:
    """The first that fails; a gradient's own changes by the program are said."""
    failing = [each for each in answers if each.standing == FAILS]
    told = [each for each in answers if each.standing != UNTOLD]
    if not told:
        return answers[0]
    answer = failing[0] if failing else told[0]
    answer.looked_at = len(told)
    if not failing:
        answer.step = answer.factor = answer.line = None
        answer.neutral = [f"what is detached at {line} stays as it was"
                          for line in sorted({line for rank in ranks for line in rank["constant"]})]
        answer.says = f"at {len(told)} update{'s' * (len(told) > 1)}, to {max(each.error for each in told):.1g} of it"
        return answer
    answer.says += f"; at {len(failing)} of {number} updates that were looked at"
    if functions := sorted({name for rank in ranks for name in rank["functions"]}):
        return untold(NAME, f"{answer.says}; but the program wrote the backward of {', '.join(functions)} itself, and "
                      "may mean another one")
    if any(update["hooked"] for rank in ranks for update in rank["updates"]):
        return untold(NAME, f"{answer.says}; but the program changes gradients by hooks of its own, which may be meant")
    answer.says += f" ({of_ranks(answer.ranks, len(ranks))})"
    return answer

