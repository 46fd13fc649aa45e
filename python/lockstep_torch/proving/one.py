"""One process that is given the batches of all ranks computes the gradients that the ranks go by."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from lockstep_torch.proving.job import Job, Literal, Run, Sizes
from lockstep_torch.proving.neutral import Neutral, short
from lockstep_torch.proving.relations import (
    FACTOR,
    FAILS,
    HELD,
    ROUNDING,
    Answer,
    Bounds,
    Ranks,
    all_same_rows,
    by_gradients_apart,
    dot,
    draw_apart,
    factor_text,
    fails,
    first_apart,
    first_gap,
    line_of,
    near,
    norm,
    rounds_of_all,
    rows_in,
    untold,
)

NAME = "one"
MOST_LITERALS = 3  # numbers without a name that may be the batch size


@dataclasses.dataclass
class Difference:
    """The first update whose gradient is another."""

    step: int
    same_rows: bool | None  # None: no module was called
    rows: tuple[int, int]
    same_loss: bool
    losses: tuple[float, float]
    factor: float | None  # of the ranks' gradient over the one process's; None: another direction
    apart: float
    tensor: str

    def is_same_batch(self) -> bool:
        return self.same_loss if self.same_rows is None else self.same_rows


@dataclasses.dataclass
class Tried:
    how: str
    why: str = ""  # the run is of no use
    equal: int = 0  # updates with equal gradients, up to the first other one
    first: Difference | None = None
    draws_apart: bool = False  # up to that update, where it is not known what for

    def rank(self) -> tuple[bool, bool, int, bool]:
        """The larger, the more it says."""
        if self.first is None:
            return not self.why, not self.why, 0, False
        return False, self.first.is_same_batch(), self.equal, self.first.rows[0] == self.first.rows[1]


def same_rows(ranks: list[Any], one: Any, same: float) -> tuple[bool | None, tuple[int, int]]:
    a, b = rows_in(ranks), rows_in([one])
    if a is None or b is None:
        return None, (0, 0)
    scale = float(b.abs().mean()) if len(b) else 0
    return a.shape == b.shape and torch.allclose(a, b, rtol=same, atol=same * (1 + scale)), (len(a), len(b))


def compared(ranks: Ranks, one: dict[str, Any], how: str, same: float) -> Tried:
    """Up to the first update whose gradient is another one."""
    world_size = len(ranks)
    found = sorted((each for all_ranks in rounds_of_all([*ranks, one]).values() for each in all_ranks),
                   key=lambda each: each[0][0])
    tried = Tried(how)
    if not found:
        return dataclasses.replace(tried, why="one process has other parameters")
    for each in found:
        of_ranks, of_one = each[:world_size], each[world_size]
        if not of_one[1][0]["backwards"] and not of_ranks[0][1][0]["backwards"]:
            continue
        losses = (sum(updates[0]["loss"] for _, updates in of_ranks) / world_size, of_one[1][0]["loss"])
        same_loss = near(*losses, same) or abs(losses[0] - losses[1]) < same
        if (other := first_gap(ranks[0], of_ranks[0][1], of_one[1], same)) is not None:
            rows, numbers = same_rows(of_ranks, of_one, same)
            rows = rows and (one["joined"] or None)
            tried.first = Difference(of_ranks[0][0], rows, numbers, same_loss, losses, factor_of(other.a, other.b),
                                     other.apart, other.tensor)
            tried.draws_apart = any(draw_apart(rank, one, mine, of_one)
                                    for rank, mine in zip(ranks, of_ranks, strict=True))
            return tried
        tried.equal += 1
    return tried


def factor_of(a: Any, b: Any) -> float | None:
    """a / b, where they have one direction."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if len(pairs) < sum(x is not None or y is not None for x, y in zip(a, b, strict=True)):
        return None
    square = dot([y for _, y in pairs], [y for _, y in pairs])
    if not square:
        return None
    factor = dot([x for x, _ in pairs], [y for _, y in pairs]) / square
    return factor if norm([x - factor * y for x, y in pairs]) <= FACTOR * norm([x for x, _ in pairs]) else None


def prove(job: Job, plain: Run, made: Callable[[], Neutral], bounds: Bounds, names: tuple[str, ...]) -> Answer:
    if not job.counts:
        return untold(NAME, "the program starts its ranks itself, so it is not known how one process of it is started; "
                      "torchrun's --nproc-per-node would say")
    neutral = made()
    if neutral.why:
        return untold(NAME, neutral.why)
    two = neutral.run
    tried = attempts(job, neutral, bounds.same[0], names)
    best = max(tried, key=Tried.rank)
    if neutral.own and not (best.first is None or best.first.same_rows):  # else each takes its part of the same draws
        return untold(NAME, neutral.own)
    answer = judged(best, tried, two.ranks, bounds.same[1])
    loose = sorted({site for rank in two.ranks for site in rank["loose"]})
    if answer.standing == FAILS and loose and best.draws_apart:
        return untold(NAME, f"{answer.says}; but one process draws something else at {', '.join(map(short, loose))}")
    if (step := first_apart(two.ranks)) is not None and not (answer.standing == FAILS and (answer.step or 0) < step):
        if step == 0 and by_gradients_apart(two.ranks, bounds.same[0]):
            return untold(NAME, "each rank begins with parameters of its own, and updates by gradients of its own")
        answer = fails(answer, "the ranks hold different parameters, and one process has one model",
                       list(range(job.world_size)), ["no-initial-broadcast" if step == 0 else "replicas-diverged"])
        answer.step, answer.line, answer.factor, answer.tensor = step, line_of(two.ranks, step), None, None
    if answer.standing == HELD and same_losses(two.ranks) and (step := all_same_rows(plain.ranks)) is not None:
        answer = fails(answer, "each rank is given the same rows, which count as many times as there are ranks",
                       list(range(job.world_size)), ["no-sharding", "shares-of-data-overlap"])
        answer.step, answer.line = step, line_of(two.ranks, step)
    answer.neutral = neutral.notes()
    return answer


def same_losses(ranks: Ranks) -> bool:
    """Else each rank may take its part of what it computes of the same rows."""
    return all(near(update["loss"], first["loss"], ROUNDING) for rank in ranks[1:]
               for update, first in zip(rank["updates"], ranks[0]["updates"], strict=False))


def rows_at_once(rank: dict[str, Any]) -> int:
    """How many rows a model is mostly given in a call; 0 where none was called."""
    numbers = collections.Counter(len(rows) for update in rank["updates"] for rows in update["rows"])
    return numbers.most_common(1)[0][0] if numbers else 0


def attempts(job: Job, neutral: Neutral, same: float, names: tuple[str, ...]) -> list[Tried]:
    """Ways to give one process the ranks' batches, up to the first by which all gradients are equal."""
    two = neutral.run
    has_batches = all(rank["batches"] for rank in two.ranks)
    changes_of: dict[Sizes, list[str]] = {names: job.changes(names)}
    if not changes_of[names]:
        numbers = [Literal(rows_at_once(two.ranks[0]), place) for place in range(MOST_LITERALS)]
        changes_of = {number: job.changes(number) for number in numbers}
    ways: list[tuple[str, Sizes | None, bool]] = [("as it is", None, False)]
    for size, changes in changes_of.items():
        if changes:
            sized = (f"with its batch size times {job.world_size} ({', '.join(changes[:3])}"
                     f"{', ...' if len(changes) > 3 else ''})")
            ways += [(sized, size, False)]
            ways += [(f"{sized} and the ranks' batches", size, True)] if has_batches and size is names else []
    if has_batches and len(ways) == 1:  # else what is divided by a batch size would be too large
        ways.append(("with the ranks' batches", None, True))
    tried: list[Tried] = []
    for how, batch, is_given in ways:
        run = job.run(f"one process, {how}", number=1, still=neutral.sites, force=str(two.folder), batch=batch,
                      batches=str(two.folder) if is_given else None)
        if run.error or not run.ranks:
            tried.append(Tried(how, why=run.error))
            continue
        tried.append(compared(two.ranks, run.ranks[0], how, same))
        if tried[-1].first is None and not tried[-1].why:
            break
    return tried


def judged(best: Tried, tried: list[Tried], ranks: Ranks, clear: float) -> Answer:
    first, world_size = best.first, len(ranks)
    is_sized = any("batch size" in each.how for each in tried)
    if best.why:
        return untold(NAME, f"one process fails, {best.how}: {best.why}")
    if first is None:
        return Answer(NAME, HELD, f"one process, {best.how}, computes the ranks' gradients", looked_at=best.equal)
    if not first.is_same_batch():
        if best.equal > 1:
            return Answer(NAME, HELD, f"one process, {best.how}, computes the ranks' gradients up to update "
                          f"{first.step - 1}; from there on it has other batches", looked_at=best.equal)
        numbers = f"{first.rows[0]} rows on all ranks and {first.rows[1]} in one process"
        rows = ("no module with parameters was called" if first.same_rows is None else
                numbers if first.rows[0] != first.rows[1] else "other rows")
        advice = "" if is_sized else "; if the program has a batch size, name it with --batch"
        return untold(NAME, f"one process has other batches at update {first.step}, {best.how}: {rows}{advice}")
    if first.apart < clear:
        return untold(NAME, f"the ranks' gradient of update {first.step} is {first.apart:.2g} apart from that of one "
                      f"process ({best.how}), which may be rounding")
    if not is_sized and not first.same_loss and first.factor is not None and (near(first.factor, 1 / world_size, FACTOR)
                                                   or near(first.factor, world_size, FACTOR)):
        times = factor_text(first.factor, world_size)
        return untold(NAME, f"the ranks' gradient is that of one process times {times}: the program may divide by a "
                      "batch size that nobody could scale; name it with --batch")
    factor = None if first.factor is None or near(first.factor, 1, FACTOR) else first.factor
    answer = Answer(NAME, FAILS, "", step=first.step, ranks=list(range(world_size)), factor=factor,
                    line=line_of(ranks, first.step), tensor=first.tensor if factor is None else None,
                    looked_at=best.equal)
    loss = ("" if first.same_loss else
            f"; the loss is {first.losses[0]:.6g} in the mean of the ranks and {first.losses[1]:.6g} there")
    if factor is not None:
        answer.says = (f"the ranks' gradient is that of one process ({best.how}) times "
                       f"{factor_text(factor, world_size)}{loss}")
        answer.pitfalls = (["sum-not-mean"] if near(factor, world_size, FACTOR) else
                           ["double-average"] if near(factor, 1 / world_size, FACTOR) else [])
        return answer
    answer.says = (f"the ranks' gradient is {first.apart:.2g} apart from that of one process ({best.how}), first in "
                   f"{first.tensor}{loss}")
    answer.pitfalls = ["gradient-not-the-mean"] if first.same_loss else ["mean-of-local-means", "loss-weight-differs"]
    return answer
