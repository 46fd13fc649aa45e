"""The gradient that an update goes by is the slope of the mean loss of the ranks."""

from __future__ import annotations

from typing import Any

import torch

from lockstep_torch.proving.job import Job, Run
from lockstep_torch.proving.relations import (
    FAILS,
    HELD,
    UNTOLD,
    Answer,
    Bounds,
    Ranks,
    dot,
    factor_text,
    fails,
    first_apart,
    gradients_apart,
    line_of,
    losses_apart,
    near,
    norm,
    of_ranks,
    rounds_of_all,
    untold,
)

MOVED = 1e3  # times the size of a step: a loss that is as far from that of a run that was not moved has another reason
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


def measured(job: Job, plain: Run, probes: list[Probe], size: float, bounds: Bounds,
             what: str) -> list[list[float]] | str:
    """Of each probe the central difference on each rank; or why there is none. Where a move is carried on to later
    steps, as by running statistics, only the first probe stays."""
    file = job.root / f"probes_{job.runs}.pt"
    torch.save([[probe.of_rank(rank) for probe in probes] for rank in range(len(plain.ranks))], file)
    losses, carried = [], False
    for by, where in ((size, "forward"), (-size, "back")):
        run = job.run(f"{what}, {where}", tilt={"size": by, "plain": str(plain.folder), "probes": str(file)})
        if run.error:
            return run.error
        if isinstance(apart := differs_elsewhere(plain.ranks, run.ranks, probes, size, bounds.rounding), str):
            return apart
        carried = carried or apart
        losses.append(run.ranks)
    forward, back = losses
    if carried:
        del probes[1:]
    return [[(forward[rank]["updates"][first]["loss"] - back[rank]["updates"][first]["loss"]) / (2 * size)
             for rank, first in enumerate(probe.first)] for probe in probes]


def differs_elsewhere(plain: Ranks, moved: Ranks, probes: list[Probe], size: float, rounding: float) -> str | bool:
    """Whether the move is carried on to steps that were not moved, or why they are others without it."""
    carried = False
    for rank, (a, b) in enumerate(zip(plain, moved, strict=True)):
        if len(a["updates"]) > len(b["updates"]):
            return f"rank {rank} made {len(a['updates'])} updates in one run and {len(b['updates'])} in another"
        probed = {probe.first[rank] for probe in probes}
        for number, (x, y) in enumerate(zip(a["updates"], b["updates"], strict=False)):
            if number in probed or losses_apart(x, y) <= rounding:
                continue
            carried = True
            if number < min(probed) or losses_apart(x, y) > MOVED * size:
                return (f"on rank {rank} the loss before update {number} is {x['loss']:.9g} in one run and "
                        f"{y['loss']:.9g} in another, which is not for the move")
    return carried


def prove(job: Job, plain: Run, bounds: Bounds) -> Answer:
    ranks = plain.ranks
    rounds = chosen(ranks)
    if not rounds:
        return untold(NAME, "no update of all ranks comes after another one and a backward; take more --steps")
    answers: list[list[Judged]] = []
    for size in bounds.sizes:
        dice = torch.Generator().manual_seed(1)  # the same directions for each size
        results: list[tuple[list[Probe], list[list[float]]]] = []
        for by_gradient in (True, False):
            probes = [Probe(each, dice, by_gradient) for each in rounds]
            found = measured(job, plain, probes, size, bounds, "parameters moved along "
                             + ("the gradient" if by_gradient else "a random direction"))
            if isinstance(found, str):
                return untold(NAME, found)
            results.append((probes, found))
        del rounds[min(len(probes) for probes, _ in results):]
        moves = [list(zip(probes, found, strict=True))[:len(rounds)] for probes, found in results]
        answers.append([judged(ranks, along, across, bounds.slope) for along, across in zip(*moves, strict=True)])
    return whole([agreed(each, bounds.slope[0]) for each in zip(*answers, strict=False)], ranks, len(rounds))


Measured = tuple[Probe, list[float]]
Judged = tuple[Answer, float, float]  # with the gradient's length over the slope's, and what is left across


def judged(ranks: Ranks, along: Measured, across: Measured, bound: tuple[float, float]) -> Judged:
    """Of one round."""
    slope, clear = bound
    world_size, step = len(ranks), along[0].first[0]
    promised = [[probe.promised(rank) for rank in range(world_size)] for probe, _ in (along, across)]
    slopes = [sum(found) / world_size for _, found in (along, across)]
    spread = across[0].spread()
    answer, everyone = Answer(NAME, HELD, "", step=step, line=line_of(ranks, step)), list(range(world_size))
    if spread == 0 and abs(slopes[0]) < slope:
        return untold(NAME, f"the gradient of update {step} is 0, and so is the slope"), 0, 0
    apart = [rank for rank in range(world_size)
             if not near(promised[0][rank], promised[0][0], slope)
             or abs(promised[1][rank] - promised[1][0]) > slope * spread]
    if apart:
        if first_apart(ranks) == 0:
            return untold(NAME, "each rank begins with parameters of its own, and goes by gradients of its own"), 0, 0
        own = all(near(promised[0][rank], along[1][rank], slope) for rank in range(world_size))
        answer.apart = True
        if not gradients_apart(along[0].rounds, slope):
            return fails(answer, "the ranks clip different gradients, and then update by equal ones", everyone,
                         ["clip-before-reduction"]), 0, 0
        return fails(answer, "the ranks update by different gradients" + (
            ", each by that of its own loss" if own else ""), sorted({0, *apart}),
            ["no-gradient-sync", "forward-bypasses-wrapper"] if own else ["gradient-not-the-mean"]), 0, 0
    factor = promised[0][0] / slopes[0] if abs(slopes[0]) > slope * abs(promised[0][0]) else 1.0
    across_it = (promised[1][0] - factor * slopes[1]) / (spread or 1)
    error = abs(across_it)
    answer.factor, answer.error = factor, max(error, abs(factor - 1))
    if answer.error <= slope:
        pass
    elif slope < error < clear or answer.error < clear:
        answer = untold(NAME, f"the gradient of update {step} and the slope are {answer.error:.2g} apart, which may be "
                        "rounding")
    elif error <= slope:
        named = (["sum-not-mean"] if near(factor, world_size, slope) else
                 ["double-average"] if near(factor, 1 / world_size, slope) else [])
        answer = fails(answer, "the gradient that the update goes by is the slope of the ranks' mean loss times "
                               + factor_text(factor, world_size, slope), everyone, named)
    else:
        answer.factor = None
        answer = fails(answer, "the gradient that the update goes by has another direction than the slope of the "
                               f"ranks' mean loss ({error:.2g} apart)", everyone, ["gradient-not-the-mean"])
    return answer, factor, across_it


def agreed(found: tuple[Judged, ...], slope: float) -> Answer:
    """By steps of several sizes."""
    answer, factor, across = found[0]
    for other, of_other, across_other in found[1:]:
        if other.standing != answer.standing or not near(of_other, factor, slope) or abs(across - across_other) > slope:
            return untold(NAME, "steps of two sizes give two slopes of a loss")
    return max((answer for answer, _, _ in found), key=lambda each: each.error)


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

