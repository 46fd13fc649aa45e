"""Which runs are played: ten in a fixed order for each language, four with two faults, and one for each seed."""

import dataclasses
import random

import pages
import python_job
import two_job

LEVELS = ("easy", "middle", "hard")
# (pitfall, ranks, level). No two are of one lesson.
TEN = (("no-sharding", 2, 0), ("sum-not-mean", 4, 0), ("missing-set-epoch", 2, 0), ("optimizer-state-missing", 2, 1),
       ("rank-conditional-collective", 3, 1), ("local-hits-global-count", 4, 1), ("scheduler-stepped-per-rank", 3, 1),
       ("train-mode-differs-across-ranks", 3, 2), ("worker-streams-copied", 2, 2), ("local-overflow-skip", 3, 2))
# Of the Python programs, which have two ranks: what the trace shows without a call in the program.
TEN_IN_PYTHON = (("gradients-not-zeroed", 2, 0), ("sharded-twice", 2, 0), ("epoch-differs-by-rank", 2, 0),
                 ("no-initial-broadcast", 2, 1), ("local-early-stop", 2, 1), ("buffers-not-synced", 2, 1),
                 ("scheduler-stepped-per-rank", 2, 1), ("unused-parameter", 2, 2), ("clip-before-reduction", 2, 2),
                 ("scheduler-or-rng-state-missing", 2, 2))
# (program, operators, ranks, level) of evaluation/mutants: two faults at once.
TWO = (("codes", "every-rank-reads-all+learning-rate-of-one-rank", 2, 0), ("pictures", "summed+epoch-not-told", 3, 0),
       ("letters", "evaluation-padded+not-zeroed", 2, 1), ("pictures", "score-of-one-rank+loss-divided-by-ranks", 3, 2))
RANKS = (2, 3, 4)  # of a case that a seed has drawn
KINDS = {"cpp": TEN, "python": TEN_IN_PYTHON, "two": TWO}


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    name: str     # what its score is kept by
    pages: tuple  # of its faults
    world_size: int
    level: str
    program: str = ""  # where it has two faults
    operator: str = ""

    @property
    def page(self):
        return self.pages[0]


def name_of(kind, number, word="case"):
    own = f"{word} {number}"
    return {"cpp": own, "python": f"{own} in Python", "two": f"two faults, {own}"}[kind]


def shows_on(page, world_size):
    """The page says what the lesson then measures, and which ranks are at fault."""
    return all(pages.of_world(page.facts.get(fact, "any"), world_size) for fact in ("figure", "ranks"))


def numbered(kind, number, every, options=None):
    *what, world_size, level = KINDS[kind][number - 1]
    return made(kind, name_of(kind, number), what, world_size, LEVELS[level], every, options)


def seeded(kind, seed, every, options=None):
    dice = random.Random(seed)
    if kind == "two":
        what, ranks = list(dice.choice(two_job.pairs(options))), RANKS
    elif kind == "python":
        what, ranks = [dice.choice(sorted(every.keys() & python_job.programs().keys()))], [python_job.RANKS]
    else:
        what = [dice.choice(sorted(every))]
        facts = every[what[0]].facts
        ranks = [int(facts["on"])] if "on" in facts else [size for size in RANKS if shows_on(every[what[0]], size)]
    return made(kind, name_of(kind, seed, "seed"), what, dice.choice(ranks), "any", every, options)


def made(kind, name, what, world_size, level, every, options):
    if kind == "two":
        program, operator = what
        both = tuple(every[slug] for slug in two_job.faults_of(operator, options))
        return Case(kind, name, both, world_size, level, program, operator)
    return Case(kind, name, (every[what[0]],), world_size, level)
