"""Which runs are played: ten in a fixed order, and one for each seed."""

import dataclasses
import random

import pages

LEVELS = ("easy", "middle", "hard")
# (pitfall, ranks, level). No two are of one lesson.
TEN = (("no-sharding", 2, 0), ("sum-not-mean", 4, 0), ("missing-set-epoch", 2, 0), ("optimizer-state-missing", 2, 1),
       ("rank-conditional-collective", 3, 1), ("local-hits-global-count", 4, 1), ("scheduler-stepped-per-rank", 3, 1),
       ("train-mode-differs-across-ranks", 3, 2), ("worker-streams-copied", 2, 2), ("local-overflow-skip", 3, 2))
RANKS = (2, 3, 4)  # of a case that a seed has drawn


@dataclasses.dataclass(frozen=True)
class Case:
    name: str   # "case 3" or "seed 17": what its score is kept by
    page: object
    world_size: int
    level: str


def shows_on(page, world_size):
    """The page says what the lesson then measures."""
    return bool(pages.of_world(page.facts.get("figure", "any"), world_size))


def numbered(number, every):
    slug, world_size, level = TEN[number - 1]
    return Case(f"case {number}", every[slug], world_size, LEVELS[level])


def seeded(seed, every):
    dice = random.Random(seed)
    page = every[dice.choice(sorted(every))]
    ranks = [int(page.facts["on"])] if "on" in page.facts else [size for size in RANKS if shows_on(page, size)]
    return Case(f"seed {seed}", page, dice.choice(ranks), "any")
