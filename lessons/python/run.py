"""./lockstep run LESSON --python: the lesson's pitfalls as Python programs, each right and with its fault, under `lockstep watch`.

usage: run.py LESSON [--variant SLUG]
"""

import argparse
import sys
import textwrap

from programs import ROOT, ended_cleanly, is_proved, lesson_of, page_of, programs, run, section, title_of

COLUMNS, LINES = 80, 6


def wrapped(text, indent="    "):
    return textwrap.fill(text, COLUMNS, initial_indent=indent, subsequent_indent=indent)


def tell(program, fault):
    """Runs one variant and says what came of it; whether that is what it should be."""
    job, seen, found = run(program, fault)
    print(f"  {'with the fault' if fault else 'right'}: {program.relative_to(ROOT)}")
    printed = job.stdout.splitlines()
    print("\n".join(f"    {line}"[:COLUMNS] for line in (["..."] if len(printed) > LINES else []) + printed[-LINES:]))
    if job.returncode != 0:
        print(f"    it ended with {job.returncode}")
    wrong = [what for what, holds in seen.items() if not holds and what != "ended"]
    print(wrapped(f"not as it must be: {', '.join(wrong)}" if wrong else "all is as it must be" if all(seen.values()) else
                  "it did not get to its end"))
    for one in found:
        print(wrapped(f"found: {one['pitfall']}, ranks {', '.join(map(str, one['ranks']))}: {one['evidence']}"))
        for place in one.get("places", [])[:1]:
            print(wrapped(f"{place['file']}:{place['line']}: {place['source'].strip()}"))
    if not found:
        print("    found: nothing")
    return is_proved(fault, seen)


def main():
    parser = argparse.ArgumentParser(prog="./lockstep run", description="A lesson's pitfalls in Python, under lockstep watch.")
    parser.add_argument("lesson", nargs="?", default="all", help="05, or set_epoch; default: all")
    parser.add_argument("--python", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--variant", metavar="SLUG", help="only this pitfall")
    options = parser.parse_args()
    lesson = lesson_of(options.lesson)
    if lesson is None and options.lesson != "all":
        parser.error(f"there is no lesson \"{options.lesson}\"; ./lockstep list names them all")
    there = {slug: program for slug, program in sorted(programs().items())
             if lesson is None or (lesson / "pitfalls" / f"{slug}.md").exists()}
    if not there:
        parser.error(f"{lesson.name} has no program in Python")
    if options.variant and options.variant not in there:
        parser.error(f"{options.lesson} has no pitfall \"{options.variant}\" in Python; there are: {', '.join(there)}")
    as_expected = True
    for slug in [options.variant] if options.variant else there:
        print(f"{slug}: {title_of(slug)}", flush=True)
        as_expected = all([tell(there[slug], fault) for fault in (slug, "")]) and as_expected
        print("\n  Why")
        print(wrapped(section(page_of(slug), "Why")), flush=True)
        print(f"\n  ./lockstep explain {slug} --python\n  ./lockstep exercise start {slug} --python\n", flush=True)
    sys.exit(0 if as_expected else 1)


if __name__ == "__main__":
    ended_cleanly(main)
