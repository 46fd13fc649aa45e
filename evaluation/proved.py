"""What `prove` says of programs whose truth is known.

usage: python3 evaluation/proved.py PACKAGE KEY SET [NAME ...]      KEY: first, later

PACKAGE is the folder that holds lockstep_torch, BUILD/python. A SET is eighth/python or eighth/cpp (right programs, and
what each becomes by an edit; C++'s are targets, set_eighth_BASE) or twins (the lessons' programs in Python, right-PROGRAM
or the name of a fault). The answers go to reports/results/prove.json under SET and KEY. What stands under "first" is from
the first time that a program was ever proved, so a name may only be in it once. Exit code: 1 where a relation fails of a
right program or a benign change, else 0.
"""

import collections
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / path) for path in ("evaluation/sets", "python/tests", "lessons/python", "reports")]
import edits  # noqa: E402
import fold  # noqa: E402
import results  # noqa: E402
import truths  # noqa: E402
from package import FOLDER, environment  # noqa: E402

DEADLINE_S = 900
WORDS = {"held": "holds", "fails": "fails", "cannot be told": "?"}


def of_set(name):
    """By name: its kind, and what writes the program into a folder and gives its words for torchrun."""
    which, _, language = name.partition("/")
    sources = HERE / "sets" / which / language
    if name == "twins":
        return {slug or f"right-{program}": ("fault" if slug else "right", functools.partial(twin, program, slug))
                for program, slug in truths.runs()}
    if language not in ("python", "cpp") or not sources.is_dir():
        sys.exit(f"there is no such set: {name}; there are eighth/python, eighth/cpp and twins")
    written = (edits.InPython(sources) if language == "python" else
               edits.InCpp(sources, FOLDER.parent / "evaluation" / "sets" / which)).written
    every = edits.read(sources)
    found = {f"right-{base}": ("right", functools.partial(changed, written, base, None))
             for base in sorted({edit["base"] for edit in every.values()})}
    for edit_name, edit in every.items():
        kind = edit["truth"].get("class", edit["truth"]["kind"])
        found[edit_name] = (kind, functools.partial(changed, written, edit["base"], edit))
    return found


def changed(written, base, edit, folder):
    program, arguments = written(folder, base, edit)
    how = [] if program.suffix == ".py" else ["--no-python"]
    return [*how, program, "out", *arguments]


def twin(program, slug, folder):
    file = folder / f"{program}.py"
    file.write_text(fold.fold(fold.file_of(program).read_text(encoding="utf-8"), slug), encoding="utf-8")
    return [file, "out"]


def proved(write):
    with tempfile.TemporaryDirectory(prefix="lockstep-proved-") as name:
        folder = pathlib.Path(name)
        words = write(folder)
        (folder / "out").mkdir()
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        python = os.pathsep.join([str(FOLDER), str(ROOT / "lessons" / "python")])
        done = subprocess.run([sys.executable, "-m", "lockstep_torch.command_line", "prove", "--json", "--", "torchrun",
                               "--nproc-per-node", "2", *map(str, words)], cwd=folder,
                              env=environment(PATH=path, PYTHONPATH=python), capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False)
    if not done.stdout:
        return {"wrong": done.stderr.strip().splitlines()[-1]}
    found = json.loads(done.stdout)
    said = {}
    for each in found["relations"]:
        said[each["relation"]] = {"standing": WORDS[each["standing"]], "says": each["says"]}
        if each["pitfalls"]:
            said[each["relation"]]["pitfalls"] = each["pitfalls"]
    return {"seconds": found["seconds"], **said}


def fails(run):
    return any(isinstance(each, dict) and each["standing"] == "fails" for each in run.values())


def score_of(known, runs):
    """By kind: how many fail, and how many a relation says something of."""
    counts = collections.defaultdict(collections.Counter)
    for name, run in runs.items():
        kind = counts[known[name][0]]
        kind["programs"] += 1
        kind["fails"] += fails(run)
        for relation, answer in run.items():
            if isinstance(answer, dict) and answer["standing"] != "?":
                kind[f"{relation} decided"] += 1
    return {kind: dict(counted) for kind, counted in sorted(counts.items())}


def main(words):
    if len(words) < 2 or words[0] not in ("first", "later"):
        sys.exit(__doc__)
    key, which, *names = words
    known, path = of_set(which), results.file_of("prove")
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"there is no {unknown[0]}; there are: {', '.join(known)}")
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    part = report.setdefault(which, {}).setdefault(key, {"runs": {}})
    for name in names or known:
        if key == "first" and name in part["runs"]:
            sys.exit(f"{name} was proved before; name others, or ask for `later`")
        kind, write = known[name]
        part["runs"][name] = proved(write)
        print(name, kind, json.dumps(part["runs"][name]), flush=True)
        part["score"] = score_of(known, part["runs"])
        path.write_text(results.text(report), encoding="utf-8")
    print(json.dumps(part["score"], indent=1))
    sys.exit(any(fails(run) and known[name][0] in ("right", "benign") for name, run in part["runs"].items()))


if __name__ == "__main__":
    main(sys.argv[1:])
