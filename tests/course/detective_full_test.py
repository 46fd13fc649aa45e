"""Every pitfall that can come up in ./lockstep detective, by number or seed, in C++, in Python and two at once: played
through all of its evidence and hints, which name nothing, and to the right answer.

usage: detective_full_test.py LOCKSTEP_COURSE PROGRAMS MUTANT PACKAGE [-v] [Every.test_LANGUAGE_SLUG ...]
"""

import os
import sys
import types
import unittest

import detective_play as play
from detective_play import PAGES

import cases
import cpp_job
import job as jobs
import python_job
import two_job

OPTIONS = types.SimpleNamespace()
ATTEMPTS = 2  # a fault may not show in every run; the game says so
SOURCES = {"cpp": cpp_job, "python": python_job, "two": two_job}


def played(case):
    for attempt in range(ATTEMPTS):
        try:
            return SOURCES[case.kind].played(case, OPTIONS)
        except jobs.CouldNotRun:
            if attempt + 1 == ATTEMPTS:
                raise
    return None


class Every(unittest.TestCase):
    maxDiff = None

    def check(self, case, every):
        job = played(case)
        self.assertEqual(play.complaints_of_job(case, job, every), [])
        one = play.game_of(case, job, every)
        for question in one.path:
            one.turn(question.name)
        for fault in one.faults:
            over = one.turn(f"answer {fault.page.slug} {','.join(map(str, fault.ranks))}")
        self.assertEqual((over["how"], over["points"]), ("solved", 100 - sum(each.cost for each in one.path)))
        self.assertEqual([line for line in over["lines"] if len(line) > play.COLUMNS], [])


def add(case, name, every=None):
    setattr(Every, f"test_{name}".replace("-", "_"), lambda self: self.check(case, every or PAGES))


def add_all():
    drawn = [cases.seeded("cpp", seed, PAGES) for seed in range(5000)]
    for slug in PAGES:  # on as many ranks as may be: the widest tables
        size = max(case.world_size for case in drawn if case.page.slug == slug)
        add(cases.Case("cpp", "seed 0", (PAGES[slug],), size, "any"), f"cpp_{slug}")
    for slug in PAGES.keys() & python_job.programs().keys():
        add(cases.Case("python", "seed 0", (PAGES[slug],), python_job.RANKS, "any"), f"python_{slug}")
    every = PAGES | play.pages.generic(lambda slug: two_job.explained(slug, OPTIONS))
    for program, operator in two_job.pairs(OPTIONS):
        for size in cases.RANKS[:2]:
            case = cases.made("two", "two faults, seed 0", (program, operator), size, "any", every, OPTIONS)
            add(case, f"two_{program}_{operator}_{size}", every)


if __name__ == "__main__":
    OPTIONS.course, OPTIONS.programs, OPTIONS.mutant, package = (sys.argv.pop(1) for _ in range(4))
    os.environ["PYTHONPATH"] = package
    add_all()
    unittest.main()
