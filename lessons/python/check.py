"""Whether a mended program is right: it runs on hidden settings, beside the program as it should be."""

import ast
import contextlib
import pathlib
import random
import sys
import tempfile

import handed_out
import work
from programs import OF_TWO, RANKS, Setting, files, programs, programs_name, run

DRAWS = 3  # of a seed, where the right program does not pass with one


class CannotBeJudged(Exception):
    """The right program does not pass, either."""


def drawn(program, ranks):
    """With a seed that nobody has seen."""
    return Setting(RANKS if programs_name(program) in OF_TWO else ranks, random.SystemRandom().randint(1, 999))


@contextlib.contextmanager
def as_file(text, program):
    with tempfile.TemporaryDirectory(prefix="lockstep-exercise-") as folder:
        file = pathlib.Path(folder, program.name)
        file.write_text(text, encoding="utf-8")
        yield file


class References:
    """The right programs' runs, each made once: (its setting, the Run)."""

    def __init__(self):
        self.runs = {}

    def of(self, slug, setting):
        """On this setting, or with another seed."""
        program = programs()[slug]
        draws = 0
        while (program, setting.ranks) not in self.runs:
            with as_file(handed_out.right(slug), program) as file:
                ran = run(file, oracle=programs_name(program), setting=setting)
            draws += 1
            if all(ran.seen.values()) and not any(one["severity"] == "violation" for one in ran.found):
                self.runs[program, setting.ranks] = setting, ran
            elif draws == DRAWS:
                raise CannotBeJudged(f"on {setting} the right program does not pass, either: {ran.seen}, "
                                     f"found {[one['pitfall'] for one in ran.found]}\n{ran.job.stderr[-1000:].rstrip()}")
            else:
                setting = drawn(program, setting.ranks)
        return self.runs[program, setting.ranks]


def found_in(mended, right):
    """But for what the right program has, too: that is advice."""
    accepted = {one["pitfall"] for one in right.found}
    return [f"found: {one['pitfall']}, ranks {', '.join(map(str, one['ranks']))}: {one['evidence']}"
            for one in mended.found if one["pitfall"] not in accepted]


def differences(slug, mended, right):
    """What is wrong with a run, beside the right program's."""
    wrong = [f"not as it must be: {what}" for what, holds in mended.seen.items() if not holds and what != "ended"]
    if not mended.seen["ended"]:
        wrong.append(f"it did not get to its end, or note(...) is gone; it ended with {mended.job.returncode}:\n"
                     f"{mended.job.stderr[-1500:].rstrip()}")
    wrong += found_in(mended, right)
    if wrong:
        return wrong
    if right.detectors[slug] == "clean" and mended.detectors.get(slug) == "not-triggered":
        wrong.append(f"{slug} can no longer be seen: keep the sampler, the wrapper and the optimizer that were there")
    return wrong + work.left_out(mended.work, right.work)


def check(slug, file, references=None, say=lambda _: None):
    """What is wrong, of the first setting on which anything is. `say` is told what comes next."""
    references, program = references or References(), programs()[slug]
    try:
        ast.parse(files.read(file))
    except (SyntaxError, ValueError) as error:  # ValueError: it holds a NUL
        why = f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else error
        return [f"it is no Python program: {why}"]
    for wanted in (drawn(program, RANKS), drawn(program, RANKS + 1)):
        say(f"the right program on {wanted}")
        setting, right = references.of(slug, wanted)
        say(f"yours on {setting}")
        wrong = differences(slug, run(file, oracle=programs_name(program), setting=setting), right)
        if wrong:
            return [f"on {setting}: {each}" for each in wrong]
    return []


class Steps:
    """What is being done, on stderr."""

    def __init__(self, number):
        self.done, self.number = 0, number

    def __call__(self, what):
        self.done += 1
        print(f"step {self.done} of {self.number}: {what} ...", file=sys.stderr, flush=True)
