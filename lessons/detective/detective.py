"""./lockstep detective: a run with a hidden fault. Ask for evidence, then name the pitfall.

usage: detective.py [--language cpp|python | --two] [--case K | --seed N] [--list] [--json] --course LOCKSTEP_COURSE
                    --programs DIR --mutant MUTANT      with --language python, lockstep_torch is in PYTHONPATH
"""

import argparse
import json
import os
import pathlib
import signal
import sys

import cases
import cpp_job
import game
import job as jobs
import of_state
import pages
import python_job
import scores
import two_job

COULD_NOT_RUN, INTERRUPTED = 3, 130
SOURCES = {"cpp": cpp_job, "python": python_job, "two": two_job}
WORDS = {"cpp": "", "python": " --language python", "two": " --two"}


class Table:
    """Where the game is played: a terminal, a pipe, or a script that reads JSON."""

    def __init__(self, as_json):
        self.as_json, self.terminal = as_json, sys.stdin.isatty()

    def say(self, said):
        print(json.dumps(said) if self.as_json else "\n".join([*said["lines"], ""]), flush=True)

    def ask(self, points):
        """The next line; None at the end of the input."""
        prompt = f"[{points} points] > "
        try:
            if self.terminal and not self.as_json:
                return input(prompt)
            line = sys.stdin.readline()
        except EOFError:
            line = ""
        if not self.as_json:
            print(prompt + (game.printable(line.rstrip("\n")) if line else "(end of the input)"), flush=True)
        return line.rstrip("\n") if line else None


def next_of(kind, kept):
    """The first case that is not solved."""
    return next((number for number in range(1, len(cases.KINDS[kind]) + 1)
                 if kept.best(cases.name_of(kind, number)) is None), None)


def play(case, options, table, every, kept):
    if not options.json:
        best = kept.best(case.name)
        print(f"Detective, {case.name} ({case.level}). " + (f"Your best: {best} points. " if best is not None else "")
              + "The job runs ...\n", flush=True)

    def compare(own):
        other = SOURCES[case.kind].without_fault(case, options)
        if other is None:
            raise jobs.CouldNotRun("There is no such job to compare with.")
        return of_state.compared(own, other)

    one = game.Game(case, SOURCES[case.kind].played(case, options), every, kept, compare)
    table.say(one.opening())
    while not one.over:
        line = table.ask(one.points)
        if line is None:
            table.say(one.stopped())
        elif line.strip():
            table.say(one.turn(line))
    if not options.json:
        following = next_of(case.kind, kept)
        print(f"Next: ./lockstep detective{WORDS[case.kind]} {f'--case {following}' if following else '--seed 1'}")


def overview(kept, as_json):
    rows = [(kind, cases.name_of(kind, number), cases.LEVELS[row[-1]]) for kind, every in cases.KINDS.items()
            for number, row in enumerate(every, 1)]
    drawn = [("cpp", name, "any") for name in kept.cases if "seed" in name]
    for _, name, level in rows + drawn:
        best = kept.best(name)
        line = {"event": "score", "case": name, "level": level, "best": best}
        print(json.dumps(line) if as_json else f"  {name:<20} {level:<8} {'-' if best is None else f'{best} points'}")
    if not as_json:
        solved = sum(kept.best(name) is not None for _, name, _ in rows)
        print(f"{solved} of {len(rows)} cases solved.")
        for kind in cases.KINDS:
            if following := next_of(kind, kept):
                print(f"  ./lockstep detective{WORDS[kind]} --case {following}")


def at_least_0(value):
    if not value.isdecimal() or len(value) > 15:
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 0 on")
    return int(value)


def options_of():
    parser = argparse.ArgumentParser(
        prog="./lockstep detective", allow_abbrev=False,
        description="A job runs with a hidden fault. Ask for evidence, each question costs points, and name "
        "the pitfall. `help` in the game tells the commands.")
    parser.add_argument("--language", choices=("cpp", "python"), default="cpp",
                        help="of the job's program: cpp (default), or python, run under lockstep watch")
    parser.add_argument("--two", action="store_true", help="a C++ job with two faults at once")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--case", type=at_least_0, metavar="K",
                       help=f"1 (easy) to {len(cases.TEN)} (hard), with --two to {len(cases.TWO)}; default: the first "
                       "that you have not solved")
    which.add_argument("--seed", type=at_least_0, metavar="N", help="instead any pitfall, drawn by N")
    parser.add_argument("--list", action="store_true", help="the cases and your best scores")
    parser.add_argument("--json", action="store_true", help="each answer is a line of JSON")
    for name in ("--course", "--programs", "--mutant"):
        parser.add_argument(name, type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.two and options.language == "python":
        parser.error("--two is of C++ programs")
    options.kind = "two" if options.two else options.language
    if options.case is not None and not 1 <= options.case <= len(cases.KINDS[options.kind]):
        parser.error(f"argument --case: there are cases 1 to {len(cases.KINDS[options.kind])}")
    return options


def ended(number, _):
    sys.exit(128 + number)


def main():
    options = options_of()
    sys.stdin.reconfigure(errors="replace")
    sys.stdout.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    kept = scores.Scores()
    if options.list:
        return overview(kept, options.json)
    every, kind = pages.read_all(), options.kind
    try:
        if kind == "two":
            every |= pages.generic(lambda slug: two_job.explained(slug, options))
        number = options.case or next_of(kind, kept) or 1
        case = (cases.numbered(kind, number, every, options) if options.seed is None
                else cases.seeded(kind, options.seed, every, options))
        return play(case, options, Table(options.json), every, kept)
    except jobs.CouldNotRun as error:
        print(f"lockstep detective: {error}", file=sys.stderr)
        return COULD_NOT_RUN


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nEnded. Nothing is left running.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # whoever read has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
