"""Every program under every operator, judged by the oracle and scored against the detectors.

  python3 mutants.py FOLDER [--build BUILD] [--world-sizes 2 3] [--half known|held_out|later|unseen|all] [--only WORDS ...]
                            [--jobs 2] [--json FILE]

FOLDER keeps a folder for each mutant, so that an interrupted run goes on where it was. The halves are scored apart,
as `./lockstep matrix` does. A truth says neither ranks nor step, so `exact` counts as `named`. Exit code 0: no mutant
whose oracle fails was passed over in silence, no healthy one raised an alarm, and every benign change was one; 1
otherwise.
"""

import argparse
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "evaluation"), str(ROOT / "reports")]
import recorded_runs  # noqa: E402
import results  # noqa: E402
import scoring  # noqa: E402

DEADLINE = 90  # s, of one mutant; its own launcher ends it before
HALVES = ("known", "held_out", "later", "unseen")


# What no event of these programs can tell apart. A replica that has become another one: by its update, or by
# something after it. A job that ended at the first call that was not the same on all ranks: whether one was left
# out, made once more, in another order, or with other sizes. A rank that has left: it has left out every later call.
CLASSES = ({"update-differs", "replicas-diverged"},
           {"rank-conditional-collective", "order-mismatch", "shape-mismatch"},
           {"no-progress", "rank-conditional-collective"})


def mutants(program, world_sizes, halves, only):
    listed = json.loads(subprocess.run([program, "list"], stdout=subprocess.PIPE, check=True, timeout=30).stdout)
    for operator in listed["operators"]:
        half = operator["half"]
        for name in operator["programs"]:
            for size in world_sizes:
                one = f"{name}.{operator['name']}.{size}"
                if half in halves and (not only or any(word in one for word in only)):
                    yield half, name, operator["name"], size


def run(program, folder, half, name, operator, size):
    target = folder / half / f"{name}.{operator}.{size}"
    if (target / "verdict.json").exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([program, "run", name, operator, "--folder", target, "--world-size", str(size)],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
    if done.returncode != 0:
        raise RuntimeError(f"{target.name} could not be run:\n{done.stdout[-2000:]}")
    for tensors in target.glob("*.pt"):  # the oracle has read them
        tensors.unlink()


def score(build, folder):
    """Our detectors' runs of a half, and what the oracle said of each of its mutants."""
    verdicts = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/verdict.json")}
    return recorded_runs.by_detectors(build / "lockstep-course", [folder]), verdicts


def is_alike(label, found):
    return any(label in one and one & set(found) for one in CLASSES)


def summary(runs, verdicts):
    """Of one half: counts, the shares named and noticed, and every mutant that was not named."""
    scored, named_otherwise, silent, alarms, equivalent, alike = [], [], [], [], [], 0
    for run in runs:
        name, found = run["name"], [one["pitfall"] for one in run["findings"]]
        word = "named" if run["verdict"] == "exact" else run["verdict"]
        oracle = verdicts[name.rsplit(".", 1)[0]]
        scored.append((run["kind"] == "fault", word))
        if word == "false alarm":
            alarms.append({"mutant": name, "found": found})
        elif not oracle["label"] and oracle["fault"]:
            equivalent.append(name)
        elif oracle["label"] not in ("", "unexpected") and word != "named":
            alike += is_alike(oracle["label"], found)
            (named_otherwise if word.startswith("noticed") else silent).append(
                {"mutant": name, "label": oracle["label"], "oracle": sorted(oracle["failed"]), "found": found})
    totals = scoring.totals(scored)
    named = totals["named"]
    return {"mutants": len(runs), "verdicts": totals["verdicts"], "named": named,
            "named_or_alike": scoring.share(named["successes"] + alike, named["trials"]), "noticed": totals["noticed"],
            "false_alarms": totals["false_alarms"], "equivalent": sorted(equivalent), "alarms": alarms,
            "not_benign": sorted(name for name, oracle in verdicts.items() if oracle["label"] == "unexpected"),
            "named_otherwise": named_otherwise, "silent": silent}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "clang-2.11.0")
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--half", choices=[*HALVES, "all"], default="all")
    parser.add_argument("--only", nargs="+", default=[], help="mutants whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path, help="where to write the result")
    options = parser.parse_args()
    halves = HALVES if options.half == "all" else (options.half,)
    program = options.build / "evaluation" / "mutant"
    chosen = list(mutants(program, options.world_sizes, halves, options.only))
    if not chosen:
        parser.error("no mutant has such a name")
    unknown = {path.name for half in halves for path in options.folder.glob(f"{half}/*.*.*")}.difference(
        f"{name}.{operator}.{size}" for _, name, operator, size in chosen)
    if unknown and not options.only:  # they would be scored, too
        parser.error(f"{options.folder} has mutants that are no longer listed, such as {min(unknown)}; name another folder")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for running in [pool.submit(run, program, options.folder, *one) for one in chosen]:
            running.result()
    result = {"schema_version": 2, "world_sizes": options.world_sizes, "halves": {}}
    for half in halves:
        if (options.folder / half).is_dir():
            result["halves"][half] = summary(*score(options.build, options.folder / half))
    text = results.text(result).rstrip("\n")
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return int(any(half["silent"] or half["alarms"] or half["not_benign"] for half in result["halves"].values()))


if __name__ == "__main__":
    sys.exit(main())
