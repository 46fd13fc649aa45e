"""./lockstep exercise VERB PITFALL --python: mend a Python program in which a pitfall is, and have it judged.

usage: exercise.py start|hint|check|reset PITFALL [--folder DIR]
"""

import argparse
import os
import pathlib
import re
import sys
import textwrap

from programs import ROOT, ended_cleanly, fold, lesson_of, page_of, programs, programs_name, refuse, run, section, title_of

COLUMNS = 80


def wrapped(text, indent=""):
    return textwrap.fill(text, COLUMNS, initial_indent=indent, subsequent_indent=indent)


def slug_of(wanted):
    """Of a pitfall's name, or of a lesson: then the pitfall that its page names first in backticks under Exercise."""
    lesson = lesson_of(wanted)
    if lesson is not None:
        wanted = re.search(r"`([^`]+)`", section((lesson / "lesson.md").read_text(encoding="utf-8"), "Exercise"))[1]
    if wanted not in programs():
        refuse(f"\"{wanted}\" has no program in Python; ./lockstep run LESSON --python shows a lesson's")
    return wanted


def handed_out(slug):
    program = programs()[slug]
    about = [f"Exercise: {title_of(slug)}", "What is seen: " + " ".join(section(page_of(slug), "Symptom").split()),
             "One thing in this program is wrong. Mend it. note(...) tells the check what came out: leave it as it is.",
             f"  ./lockstep exercise check {slug} --python"]
    head = "\n#\n".join(wrapped(part, "# ") for part in about)
    return f"{head}\n\n{fold(program.read_text(encoding='utf-8'), slug, keep_notes=True)}"


def start(slug, file):
    if file.exists():
        refuse(f"{file} is there already: go on with it, or begin anew with ./lockstep exercise reset {slug} --python")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(handed_out(slug), encoding="utf-8")
    print(f"{title_of(slug)}\n\n  mend it:     {os.path.relpath(file)}\n  a hint:      ./lockstep exercise hint {slug} --python\n"
          f"  is it right: ./lockstep exercise check {slug} --python")


def require(file, slug):
    if not file.exists():
        refuse(f"there is no {file} yet: ./lockstep exercise start {slug} --python makes it")


def hint(slug, file):
    require(file, slug)
    hints = re.findall(r"^(\d)\. (.*?)(?=^\d\. |\Z)", section(page_of(slug), "Hints"), re.MULTILINE | re.DOTALL)
    given = file.with_suffix(".hints")
    before = given.read_text() if given.exists() else ""
    level = min((int(before) if before.isdigit() else 0) + 1, len(hints))
    given.write_text(str(level))
    for number, words in hints[:level]:
        print(f"Hint {number} of {len(hints)}\n{wrapped(' '.join(words.split()), '  ')}")


def check(slug, file):
    """Right where the oracle holds and watch finds no violation."""
    require(file, slug)
    job, seen, found = run(file, oracle=programs_name(programs()[slug]))
    wrong = [f"{what} is not as it must be" for what, holds in seen.items() if not holds and what != "ended"]
    if not seen["ended"]:
        wrong.append(f"it did not get to its end, or note(...) is gone; it ended with {job.returncode}:\n{job.stderr[-1500:]}")
    wrong += [f"found: {one['pitfall']}: {one['evidence']}" for one in found if one["severity"] == "violation"]
    if wrong:
        print("Not yet right.")
        for each in wrong:
            print(textwrap.indent(each if "\n" in each else wrapped(each), "  "))
        print(f"A hint: ./lockstep exercise hint {slug} --python")
        sys.exit(1)
    print(f"Right: all is as it must be, and nothing is found.\nThe page's own way: ./lockstep explain {slug} --python")


def reset(slug, file):
    if file.exists() and file.read_text(encoding="utf-8") != handed_out(slug):
        number = next(n for n in range(1, 1000) if not pathlib.Path(f"{file}.old-{n}").exists())
        file.rename(f"{file}.old-{number}")
        print(f"What you had is kept as {file.name}.old-{number}.")
    file.unlink(missing_ok=True)
    start(slug, file)


VERBS = {"start": start, "hint": hint, "check": check, "reset": reset}


def main():
    parser = argparse.ArgumentParser(prog="./lockstep exercise", description="Mend a Python program, and have it judged.")
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("pitfall", help="a pitfall (missing-set-epoch), or a lesson (05) for the one that it names")
    parser.add_argument("--python", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "exercises", help="where the file is that you mend")
    options = parser.parse_args()
    slug = slug_of(options.pitfall)
    VERBS[options.verb](slug, options.folder.absolute() / f"{slug}.py")


if __name__ == "__main__":
    ended_cleanly(main)
