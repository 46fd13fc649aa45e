"""All contestants on a sample of a corpus, scored, dated, with intervals.

usage: table.py CORPUS RUNS --build BUILD [--sample 20,10] [--seed 0] [--only NAME,...] [--traincheck VENV] [--seconds S]
                [--deadline S] [--out FILE]

CORPUS is what corpus.py made. RUNS keeps what each contestant said (RUNS/findings/CONTESTANT/CASE.json), so that a stopped
run goes on; with --seconds no run is started after S seconds, and the table is made once all are there. --sample says how
many faults and benign cases are drawn by the seed. --only leaves other contestants out. Each contestant runs a case anew; our
three levels share one recording. `python3 tests/docs/tables.py` takes the result, as reports/results/arena.json, into
docs/arena.md. Exit codes: 0, 2 usage, 3 something failed, 5 there are runs left.
"""

import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys
import time

import score

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "reports"))
import results  # noqa: E402
CONTESTANTS = ROOT / "evaluation" / "arena" / "contestants"
DEADLINE_S = 240  # of one contestant on one case
LEFT = 5


def contestants(options):
    """{name: the words of its command, before the case and the file that it writes}"""
    ours = ["lockstep.py", "--build", options.build, "--kept", options.runs / "traces", "--level"]
    return {"always_nothing": ["always_nothing.py"],
            **{name: ["torch_means.py", "--means", name] for name in ("plain", "detail", "flight", "barrier")},
            "traincheck": ["traincheck.py", *(["--venv", options.traincheck] if options.traincheck else []), "--right"],
            **{f"lockstep_{level}": [*ours, level] for level in (0, 1, 2)}}


def sample(corpus, faults, benign, seed):
    """Ids of cases, so many of each kind, by the seed."""
    truths = [score.read(path) for path in sorted((corpus / "truths").glob("*/truth.json"))]
    ids = {kind: [truth["id"] for truth in truths if truth["kind"] == kind] for kind in ("fault", "benign")}
    if not truths or faults > len(ids["fault"]) or benign > len(ids["benign"]):
        raise score.FindingsError(f"{corpus} has {len(ids['fault'])} faults and {len(ids['benign'])} benign cases, not "
                                  f"{faults} and {benign}; make it by corpus.py, or ask for a smaller --sample")
    draw = random.Random(seed)
    return sorted([*draw.sample(ids["fault"], faults), *draw.sample(ids["benign"], benign)])


def run(words, corpus, case, file, deadline):
    """Has a contestant write its file, whatever happens to it."""
    if words[-1] == "--right":
        words = [*words, corpus / "truths" / case / "right.py"]
    command = [sys.executable, CONTESTANTS / words[0], *words[1:], corpus / "cases" / case, file.with_suffix(".part")]
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=deadline)
        why = f"exit code {done.returncode}: {done.stderr.strip()[-200:]}" if done.returncode != 0 else ""
    except subprocess.TimeoutExpired:
        why = f"no answer in {deadline} s"
    if why:
        said = {"schema_version": 1, "case": case, "contestant": words[0], "state": "error", "reason": why, "findings": []}
        file.with_suffix(".part").write_text(json.dumps(said) + "\n", encoding="utf-8")
    file.with_suffix(".part").rename(file)


def run_all(chosen, ids, options):
    """How many runs are left."""
    begun = time.monotonic()
    waiting = [(name, case) for case in ids for name in chosen
               if not (options.runs / "findings" / name / f"{case}.json").exists()]
    while waiting and (options.seconds is None or time.monotonic() - begun < options.seconds):
        name, case = waiting.pop(0)
        file = options.runs / "findings" / name / f"{case}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        run(chosen[name], options.corpus, case, file, options.deadline)
        print(f"{name} {case}: {len(score.read(file)['findings'])} findings", file=sys.stderr, flush=True)
    return len(waiting)


def torch_version():
    return subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                          timeout=60).stdout.strip()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build folder of Lockstep")
    parser.add_argument("--sample", default="20,10", help="how many faults, and benign cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="contestants, separated by commas")
    parser.add_argument("--traincheck", type=pathlib.Path, help="a virtual environment with TrainCheck")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--deadline", type=float, default=DEADLINE_S)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "out" / "arena.json")
    options = parser.parse_args(arguments)
    every = contestants(options)
    names = [name for name in options.only.split(",") if name] or list(every)
    unknown = [name for name in names if name not in every]
    if unknown:
        parser.error(f"there is no contestant {', '.join(unknown)}; there are: {', '.join(every)}")
    numbers = options.sample.split(",")
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        parser.error(f"--sample {options.sample}: say how many faults and how many benign cases, such as 20,10")
    try:
        manifest = score.read(options.corpus / "manifest.json")
        ids = sample(options.corpus, *map(int, numbers), options.seed)
        left = run_all({name: every[name] for name in names}, ids, options)
        if left:
            print(f"{left} runs are left; run the same command again", file=sys.stderr)
            return LEFT
        result = score.score(options.corpus, options.runs / "findings", names, ids)
    except (score.ScoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(results.text({
        "schema_version": 1, "date": datetime.date.today().isoformat(), "torch": torch_version(),
        "corpus_version": manifest["corpus_version"], "split": manifest["split"], "sample": {"faults": int(numbers[0]), "benign": int(numbers[1]), "seed": options.seed},
        **result}), encoding="utf-8")
    print(score.in_words(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
