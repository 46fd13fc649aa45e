"""./lockstep detective: a run with a fault that is not told. Ask for evidence, then name the pitfall.

usage: detective.py [--case K | --seed N] [--list] [--json] --course LOCKSTEP_COURSE --programs DIR
"""

import argparse
import json
import os
import pathlib
import signal
import sys

import cases
import game
import job as jobs
import of_state
import pages
import scores

COULD_NOT_RUN, INTERRUPTED = 3, 130


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


def play(case, options, table, every, kept):
    if not options.json:
        best = kept.best(case.name)
        print(f"Detective, {case.name} ({case.level}). " + (f"Your best: {best} points. " if best is not None else "")
              + "The job runs ...\n", flush=True)
    job = jobs.run(case.page.lesson, case.page.slug, case.world_size, options.programs, options.course)

    def compare(own):
        other = jobs.correct_beside(case.page, case.world_size, options.programs, options.course)
        if other is None:
            raise jobs.CouldNotRun("There is no such job to compare with.")
        return of_state.compared(own, other)

    one = game.Game(case, job, every, kept, compare)
    table.say(one.opening())
    while not one.over:
        line = table.ask(one.points)
        if line is None:
            table.say(one.stopped())
        elif line.strip():
            table.say(one.turn(line))
    following = next((number for number in range(1, len(cases.TEN) + 1) if kept.best(f"case {number}") is None), None)
    if not options.json:
        print(f"Next: ./lockstep detective --case {following}" if following else "Next: ./lockstep detective --seed 1")


def overview(kept, as_json):
    rows = [(f"case {number}", cases.LEVELS[level]) for number, (_, _, level) in enumerate(cases.TEN, 1)]
    rows += [(name, "any") for name in kept.cases if name.startswith("seed ")]
    for name, level in rows:
        best = kept.best(name)
        line = {"event": "score", "case": name, "level": level, "best": best}
        print(json.dumps(line) if as_json else f"  {name:<10} {level:<8} {'-' if best is None else f'{best} points'}")
    if not as_json:
        solved = sum(kept.best(name) is not None for name, _ in rows[:len(cases.TEN)])
        print(f"{solved} of {len(cases.TEN)} cases solved. Play one: ./lockstep detective --case 1")


def at_least_0(value):
    if not value.isdecimal() or len(value) > 15:
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number from 0 on")
    return int(value)


def options_of():
    parser = argparse.ArgumentParser(
        prog="./lockstep detective",
        description="A job runs with a fault that is not told. Ask for evidence, each question costs points, and name "
        "the pitfall. `help` in the game tells the commands.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--case", type=int, choices=range(1, len(cases.TEN) + 1), metavar="K",
                       help=f"1 (easy) to {len(cases.TEN)} (hard); default: the first that you have not solved")
    which.add_argument("--seed", type=at_least_0, metavar="N", help="instead any pitfall, drawn by N")
    parser.add_argument("--list", action="store_true", help="the cases and your best scores")
    parser.add_argument("--json", action="store_true", help="each answer is a line of JSON")
    parser.add_argument("--course", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


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
    every = pages.read_all()
    number = options.case or next((at for at in range(1, len(cases.TEN) + 1) if kept.best(f"case {at}") is None), 1)
    case = cases.seeded(options.seed, every) if options.seed is not None else cases.numbered(number, every)
    try:
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
