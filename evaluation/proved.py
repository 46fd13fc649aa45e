"""What `prove` says of the eighth set's Python programs: right ones, and what each becomes by an edit.

usage: python3 evaluation/proved.py PACKAGE KEY [NAME ...]      KEY: first, later; NAME: an edit, or right-BASE

PACKAGE is the folder that holds lockstep_torch. The answers go to reports/results/prove.json under KEY. What stands
under "first" is from the first time that a program was ever proved, so a name may only be in it once. Exit code: 1
where a relation fails of a right program or a benign change, else 0.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / path) for path in ("evaluation/sets", "python/tests", "reports")]
import edits  # noqa: E402
import results  # noqa: E402
from package import environment  # noqa: E402

SOURCES = HERE / "sets" / "eighth" / "python"
DEADLINE_S = 900
WORDS = {"held": "holds", "fails": "fails", "cannot be told": "?"}


def programs():
    """By name: its kind, and its text."""
    found = {f"right-{file.stem}": ("right", file.read_text(encoding="utf-8")) for file in sorted(SOURCES.glob("*.py"))}
    for name, edit in edits.read(SOURCES).items():
        source = (SOURCES / f"{edit['base']}.py").read_text(encoding="utf-8")
        found[name] = (edit["truth"].get("class", edit["truth"]["kind"]), edits.applied(source, edit))
    return found


def proved(source):
    with tempfile.TemporaryDirectory(prefix="lockstep-proved-") as folder:
        (pathlib.Path(folder) / "train.py").write_text(source, encoding="utf-8")
        (pathlib.Path(folder) / "out").mkdir()
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run([sys.executable, "-m", "lockstep_torch.command_line", "prove", "--json", "--", "torchrun",
                               "--nproc-per-node", "2", "train.py", "out"], cwd=folder, env=environment(PATH=path),
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)
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
        for relation in ("slope", "one", "restart"):
            if run.get(relation, {}).get("standing", "?") != "?":
                kind[f"{relation} decided"] += 1
    return {kind: dict(counted) for kind, counted in sorted(counts.items())}


def main(words):
    if not words or words[0] not in ("first", "later"):
        sys.exit(__doc__)
    key, *names = words
    known, path = programs(), results.file_of("prove")
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"there is no {unknown[0]}; there are: {', '.join(known)}")
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    part = report.setdefault(key, {"runs": {}})
    for name in names or known:
        if key == "first" and name in part["runs"]:
            sys.exit(f"{name} was proved before; name others, or ask for `later`")
        part["runs"][name] = proved(known[name][1])
        print(name, known[name][0], json.dumps(part["runs"][name]), flush=True)
        part["score"] = score_of(known, part["runs"])
        path.write_text(results.text(report), encoding="utf-8")
    print(json.dumps(part["score"], indent=1))
    sys.exit(any(fails(run) and known[name][0] in ("right", "benign") for name, run in part["runs"].items()))


if __name__ == "__main__":
    main(sys.argv[1:])
