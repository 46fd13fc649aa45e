"""Learning-rate schedules: how they are made, and where they stand."""

from __future__ import annotations

from typing import Any

import torch

from lockstep_torch import settings
from lockstep_torch.recording import Recording, listens, wrap

STEPS_OF_TWINS = 3  # schedules of one kind and one optimizer, each after so many steps


def length_of(scheduler: Any) -> int:
    """The steps that it was made for; 0: it does not say."""
    parts = getattr(scheduler, "_schedulers", None)
    if parts and (milestones := getattr(scheduler, "_milestones", None)):
        last = length_of(parts[-1])
        return int(milestones[-1]) + last if last else 0
    lengths = [getattr(scheduler, name, None) for name in ("total_steps", "T_max", "total_iters")]
    return int(next((length for length in lengths if length), 0))


@listens("schedulers")
def scheduled(here: Recording, _result: Any, scheduler: Any, epoch: Any = None) -> None:
    inside = getattr(here.inside, "schedulers", 0)
    if epoch is not None and not inside:
        here.schedules.pop(scheduler, None)  # it is told where it stands
    # Each takes a step when it is made, and nobody knows yet whether another will hold it. SequentialLR has no count.
    if getattr(scheduler, "_step_count", 2) > 1 and not inside:
        here.rank.schedule(int(scheduler.last_epoch), length_of(scheduler))
        tell_doubled(here, scheduler)


def tell_doubled(here: Recording, scheduler: Any) -> None:
    """Two of a kind move one optimizer's rates, and another optimizer that trains has no schedule."""
    twins = [each for each in here.schedules if type(each) is type(scheduler)
             and each.optimizer is scheduler.optimizer and each._step_count > STEPS_OF_TWINS
             and abs(each._step_count - scheduler._step_count) < 2]  # not one after the other
    idle = [each for each in here.made if each.state and each not in here.scheduled]
    if not here.twins_told and len(twins) > 1 and idle:
        here.twins_told = True
        here.rank.schedule_twins(type(scheduler).__qualname__, len(twins))


@listens("schedulers' settings", early=True)
def schedule_made(here: Recording, _result: Any, scheduler: Any, *_arguments: Any, **_options: Any) -> None:
    """They are the optimizer's too: another one makes other rates."""
    kind = type(scheduler).__qualname__
    here.schedules_made[kind] += 1
    here.scheduled[scheduler.optimizer] = None
    of = kind if here.schedules_made[kind] == 1 else f"{kind} {here.schedules_made[kind]}"
    if type(scheduler).step is torch.optim.lr_scheduler.LRScheduler.step:
        here.schedules[scheduler] = None
    told = {f"{of}: {key}": value for key, value in settings.of_schedule(scheduler).items()}
    here.of_data(lambda: here.rank.settings("optimizer", told))


@listens("schedulers", early=True)
def several_step(here: Recording, change: int) -> None:
    """The schedulers inside of a SequentialLR or ChainedScheduler are not the run's."""
    here.inside.schedulers = getattr(here.inside, "schedulers", 0) + change


def install() -> None:
    wrap(torch.optim.lr_scheduler.LRScheduler, "step", after=scheduled)
    wrap(torch.optim.lr_scheduler.LRScheduler, "__init__", after=schedule_made)
    wrap(torch.optim.lr_scheduler.ReduceLROnPlateau, "__init__", after=schedule_made)
    for kind, after in ((torch.optim.lr_scheduler.SequentialLR, scheduled),
                        (torch.optim.lr_scheduler.ChainedScheduler, None)):
        wrap(kind, "step", before=lambda *_, **__: several_step(1), after=after,
             ended=lambda *_, **__: several_step(-1))
