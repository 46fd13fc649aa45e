"""What the runs of one program must have in common, and whether they do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

Ranks = list[dict[str, Any]]  # as rank.py writes them, by rank
Tensors = list[torch.Tensor | None]

HELD, FAILS, UNTOLD = "held", "fails", "cannot be told"
EXACT = 1e-6  # relative; of gradients of one batch, added in another order, in 64 bits
NOISY = 1e-2  # relative; of two runs of one command: from here on they are no measure of anything
FLOOR = 4  # times the noise: what may be noise
FACTOR = 1e-3  # relative; how near a ratio is to a whole number of ranks
ROUNDING = 1e-9  # relative; of what is computed again


class Bounds(NamedTuple):
    """Relative errors: up to the first of a pair one is no fault, from the second on it is one, and between the two
    nothing is said."""

    sizes: tuple[float, ...]  # of steps along a direction, as a part of each parameter's root mean square
    slope: tuple[float, float]  # of a gradient, by a central difference
    same: tuple[float, float]  # of gradients of the same batches
    rounding: float = ROUNDING  # of what is computed again


# Measured. In 64 bits slopes of right programs were within 2e-5 of their gradient. In 32 bits the largest errors of
# five right ones were 0.055, 0.024, 0.008 and 0.016, for steps of 1e-2, 3e-3, 1e-3 and 3e-4: longer ones cross the
# kinks of a ReLU, shorter ones drown in rounding. Gradients of one process were within 5e-7, and 2e-3 with autocast.
WIDE = Bounds((1e-6,), (1e-3, 1e-2), (EXACT, EXACT))
NARROW = Bounds((3e-3, 1e-3), (3e-2, 1e-1), (1e-4, 1e-2))


def bounds_of(wide: bool, noise: float) -> Bounds:
    """Of a program with noise the steps are larger, as those of one in its own precision."""
    moved, floor = WIDE if wide and noise <= ROUNDING else NARROW, FLOOR * noise
    (slope, clear), (same, other) = moved.slope, (WIDE if wide else NARROW).same
    return Bounds(moved.sizes, (max(slope, floor), max(clear, floor)), (max(same, floor), max(other, floor)),
                  max(ROUNDING, floor))


@dataclasses.dataclass
class Answer:
    relation: str
    standing: str
    says: str  # what was seen, or why it cannot be told
    step: int | None = None  # update of the optimizer in question, from 0
    ranks: list[int] = dataclasses.field(default_factory=list)
    factor: float | None = None
    line: str | None = None  # of the program: FILE:LINE of the update
    tensor: str | None = None  # the first that differs
    pitfalls: list[str] = dataclasses.field(default_factory=list)
    looked_at: int = 0  # updates
    apart: bool = False  # slope: the ranks go by different gradients
    error: float = 0  # relative, the largest that was no fault
    neutral: list[str] = dataclasses.field(default_factory=list)  # what was changed so that runs compare


def untold(relation: str, why: str) -> Answer:
    return Answer(relation, UNTOLD, why)


def fails(answer: Answer, says: str, ranks: list[int], pitfalls: list[str]) -> Answer:
    return dataclasses.replace(answer, standing=FAILS, says=says, ranks=ranks, pitfalls=pitfalls)


# ---- rounds ----

Round = list[dict[str, Any]]  # updates with no backward between them


def rounds_of(rank: dict[str, Any]) -> list[tuple[int, Round]]:
    """Each with the number of its first update."""
    found: list[tuple[int, Round]] = []
    for number, update in enumerate(rank["updates"]):
        if update["backwards"] or not found:
            found.append((number, []))
        found[-1][1].append(update)
    return found


def shape_of(updates: Round) -> Any:
    return tuple(tuple(tuple(one.shape) for one in update["before"]) for update in updates)


def rounds_of_all(ranks: Ranks) -> dict[Any, list[list[tuple[int, Round]]]]:
    """By the shapes of the parameters: the k-th rounds of all ranks. One rank may train something else before."""
    each = [dict[Any, list[tuple[int, Round]]]() for _ in ranks]
    for own, rank in zip(each, ranks, strict=True):
        for begins, updates in rounds_of(rank):
            own.setdefault(shape_of(updates), []).append((begins, updates))
    return {shape: [list(of_ranks) for of_ranks in zip(*(own[shape] for own in each), strict=False)]
            for shape in each[0] if all(shape in own for own in each)}


def rows_in(rounds: list[Any]) -> torch.Tensor | None:
    found = [rows for _, updates in rounds for update in updates for rows in update["rows"]]
    return torch.cat(found).sort().values if found else None


def gradients_apart(rounds: list[Round], within: float) -> bool:
    """Those that updates go by, of all ranks in one round."""
    return any(distance(a, b, within * norm(first["gradients"])) > within
               for updates in rounds[1:] for mine, first in zip(updates, rounds[0], strict=True)
               for a, b in zip(mine["gradients"], first["gradients"], strict=True))


def by_gradients_apart(ranks: Ranks, within: float) -> bool:
    return any(gradients_apart([updates for _, updates in each], within)
               for of_all in rounds_of_all(ranks).values() for each in of_all)


def all_same_rows(ranks: Ranks) -> int | None:
    """The first update, where it is so in all."""
    rounds = [each for of_all in rounds_of_all(ranks).values() for each in of_all]
    rows = [[rows_in([of_rank]) for of_rank in each] for each in rounds]
    known = [each for each in rows if all(one is not None for one in each)]
    same = known and all(one is not None and each[0] is not None and torch.equal(each[0], one)
                         for each in known for one in each)
    return min(each[0][0] for each in rounds) if same else None


def draw_apart(a: dict[str, Any], b: dict[str, Any], one: tuple[int, Any], other: tuple[int, Any]) -> bool:
    """Whether numbers that are not made neutral are others, up to these rounds of two ranks."""
    return any(a["updates"][one[0] - back]["drawn"] != b["updates"][other[0] - back]["drawn"]
               for back in range(min(one[0], other[0]) + 1))


def line_of(ranks: Ranks, update: int) -> str | None:
    line: str | None = ranks[0]["updates"][update]["line"]
    return line


# ---- numbers ----

def dot(a: Tensors, b: list[torch.Tensor]) -> float:
    return sum(float((one.double() * other).sum()) for one, other in zip(a, b, strict=True) if one is not None)


def norm(tensors: Tensors) -> float:
    return math.sqrt(sum(float(one.double().square().sum()) for one in tensors if one is not None))


def distance(a: torch.Tensor | None, b: torch.Tensor | None, least: float) -> float:
    """Relative; of a value that is not there as of zeros."""
    if a is None and b is None:
        return 0.0
    if a is None or b is None:
        other = a if b is None else b
        return float(other.double().norm()) / max(float(other.double().norm()), least, 1e-300)  # type: ignore[union-attr]
    if a.shape != b.shape:
        return math.inf
    apart = float((a.double() - b.double()).norm())
    if not math.isfinite(apart):
        return 0.0 if not a.isfinite().all() and not b.isfinite().all() else math.inf
    return apart / max(float(a.double().norm()), float(b.double().norm()), least, 1e-300)


def apart(a: Tensors, b: Tensors) -> float:
    """Two gradients, relative."""
    found = norm([x - y if x is not None and y is not None else x if y is None else y
                  for x, y in zip(a, b, strict=True)]) / (max(norm(a), norm(b)) or 1)
    return found if math.isfinite(found) else math.inf


def losses_apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Of two updates, relative; where they are small, not."""
    found = abs(one["loss"] - other["loss"]) / max(abs(one["loss"]), abs(other["loss"]), 1)
    return found if math.isfinite(found) else math.inf


class Gap(NamedTuple):
    """Between the gradients of two updates."""

    apart: float
    tensor: str  # the first that is another
    a: Tensors
    b: Tensors


def first_gap(rank: dict[str, Any], updates: Round, others: Round, within: float) -> Gap | None:
    """In a round of a rank, and in another that is to be the same."""
    for update, other in zip(updates, others, strict=True):
        a, b = update["unclipped"], other["unclipped"]
        if (found := apart(a, b)) > within:
            each = [distance(x, y, within * max(norm(a), norm(b))) for x, y in zip(a, b, strict=True)]
            first = next((place for place, value in enumerate(each) if value > within), 0)
            return Gap(found, rank["names"][update["optimizer"]][first], a, b)
    return None


def near(a: float, b: float, relative: float) -> bool:
    return abs(a - b) <= relative * max(abs(a), abs(b))


def factor_text(factor: float, world_size: int, within: float = FACTOR) -> str:
    for value, text in ((world_size, f"{world_size}, the number of ranks"), (1 / world_size, f"1/{world_size}"),
                        (0.0, "0")):
        if abs(factor - value) <= within * max(value, 1):
            return text
    return f"{factor:.4g}"


def of_ranks(ranks: list[int], world_size: int) -> str:
    if len(ranks) == world_size:
        return "all ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def refusals(ranks: Ranks) -> Iterator[str]:
    """What no relation is made for."""
    updates = [update for rank in ranks for update in rank["updates"]]
    if any(update["sharded"] for update in updates):
        yield "each rank holds a part of the parameters, and no run of one process holds the same"
    if any(update["cleared"] for update in updates):
        yield "gradients are cleared between two backwards of one update, so it does not go by all of them"
    bad = next((number for rank in ranks for number, update in enumerate(rank["updates"])
                if not all(one is None or one.isfinite().all() for one in update["gradients"])), None)
    if bad is not None:
        yield f"the gradient of update {bad} is not finite"
    if any(update.get("closure") for update in updates):
        yield "the optimizer calls backward itself, in its step"
    if (again := equal_again(ranks)) is not None:
        yield f"each rank trains by itself for a while, and they are made equal again (at update {again})"


def same_before(of_all: list[tuple[int, Round]]) -> bool:
    """Whether all ranks hold the same parameters."""
    return all(torch.equal(a, b) for _, updates in of_all[1:]
               for mine, first in zip(updates, of_all[0][1], strict=True)
               for a, b in zip(mine["before"], first["before"], strict=True))


def first_apart(ranks: Ranks) -> int | None:
    """The update before which the ranks hold different parameters."""
    steps = [each[0][0] for of_all in rounds_of_all(ranks).values() for each in of_all if not same_before(each)]
    return min(steps, default=None)


def equal_again(ranks: Ranks) -> int | None:
    """The update before which all ranks hold the same parameters, after one before which they did not."""
    for of_all in rounds_of_all(ranks).values():
        same = [same_before(each) for each in of_all]
        if False in same and True in same[same.index(False):]:
            return of_all[same.index(True, same.index(False))][0][0]
    return None
