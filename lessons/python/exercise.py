"""./lockstep exercise VERB PITFALL --python: mend a Python program in which a pitfall is, and have it judged.

usage: exercise.py start|hint|check|prove|reset PITFALL [--folder DIR]
       exercise.py author-check [PITFALL ...]      fails as it is handed out, and passes as the program has it
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

import check
import handed_out
import progress
import proof
from programs import (COULD_NOT_RUN, FINDING, ROOT, ended_cleanly, files, lesson_of, lesson_with, page_of, programs, refuse,
                      title_of)
from prose import difference, hints, say_difference, say_heading, say_section, section, wrapped

FOLDER = ROOT / "exercises"


def exercise_of(lesson):
    """The pitfall that a lesson's page names first in backticks under Exercise."""
    return re.search(r"`([^`]+)`", section((lesson / "lesson.md").read_text(encoding="utf-8"), "Exercise"))[1]


def slug_of(wanted):
    lesson = lesson_of(wanted)
    slug = exercise_of(lesson) if lesson else wanted
    if slug in programs():
        return slug
    lesson = lesson or next((page.parents[1] for page in ROOT.glob(f"lessons/*/pitfalls/{wanted}.md")), None)
    there = [each for each in sorted(programs()) if lesson and lesson_with(each) == lesson]
    if not lesson:
        refuse(f"there is no pitfall \"{wanted}\"; ./lockstep explain names them all")
    refuse(f"\"{slug}\" has no program in Python; of {lesson.name} {'these have: ' + ', '.join(there) if there else 'none has'}")


def options_for(slug, file):
    """Of a command that goes on with this exercise."""
    folder = "" if file.parent == FOLDER else f" --folder {os.path.relpath(file.parent)}"
    return f"{slug} --python{folder}"


def hand_out(slug, file):
    files.write(file, handed_out.text(slug))
    print(f"Exercise of {lesson_with(slug).name}\n{wrapped(title_of(slug), '  ')}\n"
          f"{wrapped(section(page_of(slug), 'Symptom'), '  ')}\n"
          f"  mend it:     {os.path.relpath(file)}\n"
          f"  a hint:      ./lockstep exercise hint {options_for(slug, file)}\n"
          f"  is it right: ./lockstep exercise check {options_for(slug, file)}")


def start(slug, file):
    if file.exists():
        refuse(f"{os.path.relpath(file)} is there already: go on with it, or begin anew with "
               f"./lockstep exercise reset {options_for(slug, file)}")
    hand_out(slug, file)


def require(slug, file):
    if not file.exists():
        refuse(f"there is no {os.path.relpath(file)} yet: ./lockstep exercise start {options_for(slug, file)} makes it")


def hint(slug, file):
    require(slug, file)
    every = hints(page_of(slug))

    def one_more(done):
        done["hints"][slug] = min(done["hints"].get(slug, 0) + 1, len(every))
    given = progress.change(lesson_with(slug), one_more)["hints"][slug]
    for number, words in enumerate(every[:given], 1):
        print(f"Hint {number} of {len(every)}\n{wrapped(words, '  ')}")
    if given == len(every):
        print(f"That is all of them. The whole story: ./lockstep explain {slug} --python")


def judge(slug, file):
    require(slug, file)
    try:
        wrong = check.check(slug, file, say=check.Steps(4))
    except check.CannotBeJudged as why:
        refuse(f"this exercise cannot be judged here: {why}", COULD_NOT_RUN)
    if wrong:
        print("Not yet right.")
        for each in wrong:
            first, *rest = each.splitlines()
            print("\n".join([wrapped(first, "    ", "  "), *(textwrap.indent(line, "    ") for line in rest)]))
        print(f"A hint: ./lockstep exercise hint {options_for(slug, file)}")
        sys.exit(FINDING)

    def mended(done):
        done["mended"][slug] = progress.today()
        if exercise_of(lesson_with(slug)) == slug:
            done["passed"] = progress.today()
    progress.change(lesson_with(slug), mended)
    print("The program's own way:\n")
    say_difference(difference(page_of(slug)))
    say_heading("Why")
    say_section(section(page_of(slug), "Why"), lesson_with(slug) / "pitfalls")
    print(f"\nMore: ./lockstep explain {slug} --python\n"
          "Right: the oracle holds, the detectors find nothing, and no work was left out.\n"
          f"Prove it: ./lockstep exercise prove {options_for(slug, file)}")


def prove(slug, file):
    """Whether it does what one process would (docs/prove.md), by a few short runs."""
    require(slug, file)
    with tempfile.TemporaryDirectory(prefix="lockstep-exercise-") as name:
        folder = pathlib.Path(name)
        shutil.copy(file, folder)
        command, environment = proof.of(file.name, folder, os.environ.get("PYTHONPATH"))
        done = subprocess.run(command, cwd=folder, check=False, env={**os.environ, **environment})
    sys.exit(done.returncode)


def reset(slug, file):
    if not file.exists():
        print("It was never started, so there is nothing to reset; it is started now.")
    elif files.read_text(file) != handed_out.text(slug):
        number = next(n for n in range(1, 1000) if not pathlib.Path(f"{file}.old-{n}").exists())
        file.rename(f"{file}.old-{number}")
        print(f"What you had is kept as {os.path.relpath(file)}.old-{number}.")
    hand_out(slug, file)


def verdict_on(slug, references, solved):
    """What is wrong with an exercise; "" where nothing is. The right program of several is checked once."""
    program = programs()[slug]
    try:
        with check.as_file(handed_out.text(slug), program) as file:
            if not check.check(slug, file, references):
                return "passes as it is handed out"
        if program not in solved:
            with check.as_file(handed_out.right(slug), program) as file:
                solved[program] = check.check(slug, file, references)
    except check.CannotBeJudged as why:
        return str(why)
    return "".join(f"\n  its solution does not pass: {each}" for each in solved[program])


def author_check(names):
    references, solved, sound, begun = check.References(), {}, 0, time.monotonic()
    slugs = [slug_of(name) for name in names] or sorted(programs(), key=lambda slug: (programs()[slug], slug))
    for number, slug in enumerate(slugs, 1):
        print(f"exercise {number} of {len(slugs)}: {slug} ...", file=sys.stderr, flush=True)
        wrong = verdict_on(slug, references, solved)
        print(f"{lesson_with(slug).name} {slug}: {wrong or 'sound'}", flush=True)
        sound += not wrong
    print(f"{sound} of {len(slugs)} exercises in Python are sound; {time.monotonic() - begun:.0f} s")
    sys.exit(0 if sound == len(slugs) else FINDING)


VERBS = {"start": start, "hint": hint, "check": judge, "prove": prove, "reset": reset}


def main():
    if sys.argv[1:2] == ["author-check"]:
        names = [name for name in sys.argv[2:] if not name.startswith("-")]
        return None if "--dry-run" in sys.argv else author_check(names)
    parser = argparse.ArgumentParser(prog="./lockstep exercise", description="Mend a Python program, and have it judged.")
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("pitfall", help="a pitfall (missing-set-epoch), or a lesson (05) for the one that it names")
    parser.add_argument("--python", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER, help="where the file is that you mend")
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)  # refuses what it would refuse
    options = parser.parse_args()
    slug = slug_of(options.pitfall)
    file = options.folder.absolute() / f"{slug}.py"
    return require(slug, file) if options.dry_run else VERBS[options.verb](slug, file)


if __name__ == "__main__":
    ended_cleanly(main)
