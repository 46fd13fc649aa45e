"""Python twins of the lessons: each a small DDP program in a correct and a broken variant.

`run(job, broken)` is the program; the fault is switched in one place, marked PITFALL. `holds(figures)` is its oracle:
what must be so of the ranks' figures; it is asked only where every rank ended in order, and else the answer is no.
`ranks` are the sets of ranks that a message may name as those at fault; () where the fault is in what all ranks do.
"""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Twin:
    slug: str
    family: str  # the lesson's number
    run: typing.Callable
    holds: typing.Callable
    ranks: tuple


TWINS = {}


def twin(slug, family, holds=lambda figures: True, ranks=()):
    def register(run):
        TWINS[slug] = Twin(slug, family, run, holds, tuple(frozenset(each) for each in ranks))
        return run
    return register


def equal(name):
    """The figure is the same on all ranks."""
    return lambda figures: all(one[name] == figures[0][name] for one in figures)


def close(one, other):
    return abs(one - other) <= 1e-4 * max(abs(one), abs(other), 1e-3)


def mean_of_local(figures):
    """The gradient that the update used is the mean of the ranks' own."""
    mean = sum(one["local"] for one in figures) / len(figures)
    return all(close(one["used"], mean) for one in figures)


def load_all():
    from . import checkpoints, collectives, data, engine, gradients, metrics, replicas  # noqa: F401
    return TWINS
