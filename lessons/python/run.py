"""./lockstep run LESSON --python: the lesson's pitfalls as Python programs, each right and with its fault, under `lockstep watch`.

usage: run.py [LESSON|all] [--variant SLUG|correct|all] [--world-size 2|3]
"""

import argparse
import ast
import collections
import difflib
import re
import sys

import progress
from programs import (FINDING, OF_TWO, RANKS, ROOT, SKIPPED, TRUTHS, Setting, ended_cleanly, is_proved, lesson_of, lesson_with,
                      oracle_of, page_of, programs, programs_name, refuse, run, title_of)
from prose import COLUMNS, difference, say_difference, say_heading, say_section, section, wrapped

LINES = 4  # the last that a job printed
Variant = collections.namedtuple("Variant", "program slug")  # the right program has no slug


def variants_of(slugs, wanted="all"):
    """By program: its broken variants, then the correct one, once."""
    by_program = collections.defaultdict(list)
    for slug in slugs:
        by_program[programs()[slug]].append(slug)
    return [Variant(program, slug) for program, of_it in by_program.items()
            for slug in ([] if wanted == "correct" else of_it) + [""]]


def figure(value):
    """A number, or some; of many their number and sum."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, (int, float)):
        return f"{value:.5g}"
    if isinstance(value, dict):
        return f"{len(value)} entries"
    if not isinstance(value, list):
        return str(value)
    while value and all(isinstance(each, list) for each in value):
        value = [each for part in value for each in part]
    if len(value) > 6 and all(isinstance(each, (int, float)) for each in value):
        return f"{len(value)} numbers, their sum {sum(value):.5g}"
    return ", ".join([figure(each) for each in value[:6]] + (["..."] if len(value) > 6 else [])) or "none"


def say_figures(notes):
    """What the oracle judges by, of each rank."""
    for rank, of_rank in notes.items():
        if of_rank:
            print(wrapped("; ".join(f"{name}: {figure(value)}" for name, value in of_rank.items()), " " * 12, f"    rank {rank}: "))


def say_found(variant, found):
    for one in found:
        print(wrapped(f"found: {one['pitfall']}, ranks {', '.join(map(str, one['ranks']))}: {one['evidence']}", "    "))
        for place in one.get("places", [])[:1]:
            print(wrapped(f"{place['file'].removeprefix(f'{ROOT}/')}:{place['line']}: {place['source'].strip()}", "      "))
    if not found:
        print("    found: nothing")
    calls = TRUTHS[variant.slug].get("calls") if variant.slug else None
    if calls and variant.slug not in [one["pitfall"] for one in found]:
        print(wrapped(f"not named: it takes a call that this program does not make ({', '.join(calls)}; docs/calls.md)", "    "))


def say_variant(variant, ran):
    """What came of a variant; whether that is what it should be."""
    about = title_of(variant.slug) if variant.slug else ast.get_docstring(ast.parse(variant.program.read_text(encoding="utf-8")))
    print(wrapped(f"{variant.slug + ' (broken)' if variant.slug else 'correct'}: {about}", "  "))
    print(f"    {variant.program.relative_to(ROOT)}")
    printed = ran.job.stdout.splitlines()
    for line in (["..."] if len(printed) > LINES else []) + printed[-LINES:]:
        print(f"    | {line}"[:COLUMNS])
    wrong = [what for what, holds in ran.seen.items() if not holds and what != "ended"]
    print(wrapped(f"expected: {oracle_of(variant.program)}", "    "))
    if not ran.seen["ended"]:
        print(f"    observed: a rank did not get to its end; exit code {ran.job.returncode}")
    else:
        print(wrapped(f"observed: {'otherwise: ' + ', '.join(wrong) if wrong else 'so it is'}", "    "))
    say_figures(ran.notes)
    say_found(variant, ran.found)
    return is_proved(variant.slug, ran.seen)


def run_all(variants, ranks):
    """The variants with their runs. What cannot run on so many ranks is told, and left out."""
    can = [one for one in variants if ranks == RANKS or programs_name(one.program) not in OF_TWO]
    for program in dict.fromkeys(one.program for one in variants if one not in can):
        names = [one.slug or "correct" for one in variants if one.program == program]
        print(wrapped(f"skipped: {', '.join(names)}: {program.name} runs on {RANKS} ranks only: {OF_TWO[programs_name(program)]}", "  "))
    ran = []
    for number, one in enumerate(can, 1):
        print(f"variant {number} of {len(can)}: {one.slug or 'correct'}, {one.program.name} ...", file=sys.stderr, flush=True)
        ran.append((one, run(one.program, one.slug, setting=Setting(ranks))))
    return ran


def say_sections(lesson, *names):
    page = (lesson / "lesson.md").read_text(encoding="utf-8")
    for name in names:
        say_heading(name)
        say_section(section(page, name), lesson)


def say_after_pitfall(slug):
    folder = lesson_with(slug) / "pitfalls"
    say_heading("Why")
    say_section(section(page_of(slug), "Why"), folder)
    say_heading("The fix")
    say_section(section(page_of(slug), "Fix"), folder)
    print()
    say_difference(difference(page_of(slug)))
    say_heading("Exercise")
    print(f"  ./lockstep exercise start {slug} --python")


def say_after_lesson(lesson, slugs):
    say_sections(lesson, "The answer", "The pitfalls")
    say_heading("The fix")
    for slug in slugs:
        print(f"  ./lockstep explain {slug} --python")
    say_sections(lesson, "Exercise")
    own = re.search(r"`([^`]+)`", section((lesson / "lesson.md").read_text(encoding="utf-8"), "Exercise"))[1]
    if own in slugs and "--python" not in section((lesson / "lesson.md").read_text(encoding="utf-8"), "Exercise"):
        print(f"\nIn Python: ./lockstep exercise start {own} --python")


def tell(lesson, slugs, options):
    """A lesson, told as one: what it is about, its runs, what was seen and why. The verdict on each variant."""
    chosen = [options.variant] if options.variant in slugs else slugs
    if options.variant in slugs:
        say_sections(lesson, "The idea")
    else:
        say_sections(lesson, "What you will be able to do", "The idea", "A prediction to make")
    say_heading("The runs")
    sys.stdout.flush()
    ran = run_all(variants_of(chosen, options.variant), options.world_size)
    if not ran:
        return []
    say_heading("By variant, expected against observed, and the diagnosis")
    verdicts = [say_variant(*one) for one in ran]
    if options.variant in slugs:
        say_after_pitfall(options.variant)
    else:
        say_after_lesson(lesson, slugs)
    if options.variant == "all":
        progress.change(lesson, lambda done: done.update(ran=progress.today()))
    return verdicts


def read_options():
    parser = argparse.ArgumentParser(prog="./lockstep run", description="A lesson's pitfalls in Python, under lockstep watch.")
    parser.add_argument("lesson", nargs="?", default="all", help="05, or set_epoch; default: all")
    parser.add_argument("--python", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--variant", metavar="SLUG", default="all",
                        help="a pitfall, with the right program beside it; correct: only that; default: all")
    parser.add_argument("--world-size", type=int, choices=(RANKS, RANKS + 1), default=RANKS, help=f"ranks (default: {RANKS})")
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)  # refuses what it would refuse
    return parser.parse_args()


def chosen_lessons(options):
    """{lesson: its pitfalls in Python} of those that have any."""
    of_lessons = collections.defaultdict(list)
    for slug in sorted(programs()):
        of_lessons[lesson_with(slug)].append(slug)
    lesson = lesson_of(options.lesson)
    if options.lesson != "all" and lesson is None:
        if options.lesson in programs():
            refuse(f"\"{options.lesson}\" is a variant: ./lockstep run {lesson_with(options.lesson).name[:2]} --python "
                   f"--variant {options.lesson}")
        refuse(f"there is no lesson \"{options.lesson}\"; ./lockstep list names them all")
    if lesson and lesson not in of_lessons:
        refuse(f"{lesson.name} has no programs in Python; in C++ it runs with ./lockstep run {lesson.name[:2]}")
    chosen = {each: slugs for each, slugs in sorted(of_lessons.items()) if lesson in (None, each)}
    if options.variant in ("all", "correct"):
        return chosen
    having = {each: slugs for each, slugs in chosen.items() if options.variant in slugs}
    if not having:
        names = [slug for slugs in chosen.values() for slug in slugs]
        near = difflib.get_close_matches(options.variant, names, 3, 0) if lesson is None else names
        refuse(f"there is no variant \"{options.variant}\" in Python{' in ' + lesson.name if lesson else ''}; "
               f"{'the nearest' if lesson is None else 'there are'}: {', '.join(near)}")
    return having


def main():
    options = read_options()
    lessons = chosen_lessons(options)
    if options.dry_run:
        return
    verdicts = []
    for lesson, slugs in lessons.items():
        if options.lesson == "all":
            say_heading(lesson.name)
        verdicts += tell(lesson, slugs, options)
    if not verdicts:
        sys.exit(SKIPPED)
    as_expected = verdicts.count(True)
    print("\n" + ("Every variant ended as expected." if all(verdicts) else
                  f"{as_expected} of {len(verdicts)} variants ended as expected: see above."))
    sys.exit(0 if all(verdicts) else FINDING)


if __name__ == "__main__":
    ended_cleanly(main)
