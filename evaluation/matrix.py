"""Every variant of every lesson over world sizes and seeds, scored at every level: python3 evaluation/matrix.py

  --world-sizes 2,3,4,8   --seeds 0,1,2   --only 05_set_epoch,16_metrics
  --build FOLDER          a build of this tree (default: the one that ./lockstep build makes)
  --kept FOLDER           score the runs that are there in w<W>_s<S>/, each that is asked for, and run nothing; the
                          commit in the result is then the one that scored them

A setting (a world size and a seed) is run with --trace into a folder, scored as `./lockstep matrix` does at levels
0 to 2, judged again under other names (recorded_test), and its traces are deleted. Its scores stay in
reports/out/matrix/KEY/, where KEY is a hash of lockstep-course: a setting that has scores of these detectors is not run
again (delete the folder to begin anew), those of other builds are not taken. All that are there make
reports/results/matrix.json (reports/schema/matrix_sweep.schema.json).
Exit code: 0 every run named exactly, nothing false; 1 otherwise; 3 something could not be run.
"""

import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "evaluation"), str(ROOT / "reports")]
import recorded_runs  # noqa: E402
import results  # noqa: E402
import scoring  # noqa: E402

SCORES = ROOT / "reports" / "out" / "matrix"
RESULT = results.FOLDER / "matrix.json"
LEVELS = recorded_runs.LEVELS
RUNS_OF_A_PROGRAM = 5  # at most so many healthy runs of one program count: more would be no new evidence
KEY_LENGTH = 12  # of 64 hexadecimal digits


def key_of(build):
    """Which detectors: a hash of lockstep-course in this build folder. What one build scored is no other's score."""
    return hashlib.sha256((build / "lockstep-course").read_bytes()).hexdigest()[:KEY_LENGTH]


def program_of(run):
    """"05_set_epoch/correct" of "05_set_epoch/correct (2 ranks, seed 0)"."""
    return run["name"].split(" (")[0]


def healthy(runs):
    """False alarms, of no more than five runs of each program; those with an alarm are among them."""
    of_program = collections.defaultdict(list)
    for run in runs:
        if run["verdict"] in scoring.RIGHT:
            of_program[program_of(run)].append(run["verdict"] == "false alarm")
    counted = [alarm for alarms in of_program.values() for alarm in sorted(alarms, reverse=True)[:RUNS_OF_A_PROGRAM]]
    return {"programs": len(of_program), "runs": sum(map(len, of_program.values())),
            "false_alarms": scoring.share(sum(counted), len(counted))}


def totals(runs):
    every = scoring.totals(recorded_runs.scored(runs))
    del every["false_alarms"]  # here of so many runs of a program
    return {**every, "healthy": healthy(runs)}


def notable(runs):
    """The runs that are not as they should be, each with what was expected and what was said."""
    kept = ("name", "names", "ranks", "step", "verdict", "findings")
    return [{key: run[key] for key in kept} for run in runs if scoring.is_wrong(run["kind"] == "fault", run["verdict"])]


def labels_that_differ(runs):
    """Runs that their oracle judged otherwise than their variant's name says."""
    def meant(run):
        variant = program_of(run).split("/")[1]
        return [] if variant.startswith(("correct", "near-miss-")) else [variant]
    return sorted(run["name"] for run in runs if run["names"] != meant(run))


def summary(settings):
    """The measured result, of settings as `measure` returns them."""
    settings = sorted(settings, key=lambda it: (it["world_size"], it["seed"]))
    levels = []
    for level in LEVELS:
        runs = [run for it in settings for run in it["levels"][level]["runs"]]
        sizes = sorted({it["world_size"] for it in settings})
        levels.append({"level": level, **totals(runs), "not_exact": notable(runs), "by_world_size": [
            {"world_size": size, **totals([run for it in settings if it["world_size"] == size
                                           for run in it["levels"][level]["runs"]])} for size in sizes]})
    everything = [run for it in settings for run in it["levels"][2]["runs"]]
    return {"schema_version": 2, "settings": [{key: it[key] for key in ("world_size", "seed", "date", "commit", "blind")}
                                              for it in settings],
            "pitfalls": len({name for run in everything for name in run["names"]}),
            "cannot_show": sorted({name for it in settings for name in it["cannot_show"]}),
            "labels_that_differ": labels_that_differ(everything), "levels": levels}


def run_lessons(build, traces, world_size, seed, only):
    """Records every variant, with each lesson's report beside its runs."""
    programs = sorted(p for p in (build / "bin").iterdir() if re.fullmatch(r"\d\d_\w+", p.name))
    for program in (p for p in programs if not only or p.name in only):
        done = subprocess.run([program, "--world-size", str(world_size), "--seed", str(seed), "--trace", traces,
                               "--json", traces / f"{program.name}.json"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=3600)
        if done.returncode not in (0, 1, 77, 124):
            raise RuntimeError(f"{program.name} on {world_size} ranks, seed {seed}: exit code {done.returncode}\n"
                               f"{done.stderr[-2000:]}")
        print(f"  {program.name}", file=sys.stderr, flush=True)


def cannot_show(traces):
    """The variants that were not run: too few ranks."""
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(traces.glob("*.json"))]
    return [f"{report['lesson']}/{variant['name']} on {variant['world_size']} ranks"
            for report in reports for variant in report["variants"] if variant["outcome"] == "skipped"]


def measure(build, traces, world_size, seed):
    """Scores the runs in a folder at every level, and judges them again under other names."""
    levels = [{"runs": recorded_runs.by_detectors(build / "lockstep-course", [traces], level)} for level in LEVELS]
    blind = subprocess.run([build / "tests" / "recorded_test", "--gtest_also_run_disabled_tests",
                            "--gtest_filter=*RunsThatAreKept*"],
                           env={**os.environ, "LOCKSTEP_TEST_RUNS": str(traces)}, capture_output=True, text=True,
                           timeout=3600)
    if blind.returncode != 0:
        print(blind.stdout[-4000:], file=sys.stderr)
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True).stdout
    return {"world_size": world_size, "seed": seed, "date": datetime.date.today().isoformat(), "commit": commit.strip(),
            "blind": blind.returncode == 0, "cannot_show": cannot_show(traces), "levels": levels}


def kept_folder(kept, world_size, seed):
    return kept / f"w{world_size}_s{seed}"


def setting(build, world_size, seed, only, kept):
    if kept:
        return measure(build, kept_folder(kept, world_size, seed), world_size, seed)
    with tempfile.TemporaryDirectory(prefix="lockstep-matrix-") as folder:
        traces = pathlib.Path(folder)
        run_lessons(build, traces, world_size, seed, only)
        return measure(build, traces, world_size, seed)


def is_good(result):
    return not result["labels_that_differ"] and all(it["blind"] for it in result["settings"]) and not any(
        level["not_exact"] for level in result["levels"])


def in_words(result):
    lines = [f"{result['pitfalls']} pitfalls, {len(result['settings'])} settings"]
    for level in result["levels"]:
        exact, alarms = level["exact"], level["healthy"]["false_alarms"]
        lines.append(f"  level {level['level']}: exact {exact['successes']} of {exact['trials']}, false alarms "
                     f"{alarms['successes']} of {alarms['trials']} runs of {level['healthy']['programs']} programs")
        lines += [f"    {run['verdict']}: {run['name']}" for run in level["not_exact"]]
    return "\n".join(lines + [f"  judged otherwise by its oracle: {name}" for name in result["labels_that_differ"]] + [
        f"  W={it['world_size']}, seed {it['seed']}: not the same under other names" for it in result["settings"]
        if not it["blind"]])


def sweep(build, world_sizes, seeds, only=(), kept=None):
    """Runs what is missing, and returns the result over all settings that are there; (result, words)."""
    part = "".join(f"_{lesson}" for lesson in only)
    asked = [(f"w{world_size}_s{seed}{part}", world_size, seed) for seed in seeds for world_size in world_sizes]
    missing = [kept_folder(kept, *at) for _, *at in asked if kept and not kept_folder(kept, *at).is_dir()]
    if missing:
        raise RuntimeError(f"there is no folder {', '.join(map(str, missing))}: ask for the --world-sizes and --seeds "
                           "that are kept")
    key = key_of(build)
    scored = SCORES / key
    scored.mkdir(parents=True, exist_ok=True)
    for name, world_size, seed in asked:
        file = scored / f"{name}.json"
        if file.exists() and not kept:
            continue
        others = [other for other in SCORES.rglob(file.name) if other != file]
        print(f"{name} ..." + (" (it has scores of other detectors, which are not taken)" if others else ""),
              file=sys.stderr, flush=True)
        scores = setting(build, world_size, seed, only, kept)
        if key_of(build) != key:
            raise RuntimeError(f"{build / 'lockstep-course'} was built anew while {name} ran; start again")
        file.with_suffix(".new").write_text(json.dumps(scores), encoding="utf-8")
        file.with_suffix(".new").replace(file)
    there = [file for file in scored.glob("*.json") if re.fullmatch(rf"w\d+_s\d+{part}", file.stem)]
    result = summary([json.loads(file.read_text(encoding="utf-8")) for file in there])
    if not only:  # a part is no measurement of the whole
        RESULT.write_text(results.text(result), encoding="utf-8")
    return result, in_words(result)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("--world-sizes", type=numbers, default=[2, 3, 4, 8])
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--kept", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.build is None:
        done = subprocess.run([ROOT / "lockstep", "build"], capture_output=True, text=True)
        folders = re.findall(r"built: (\S+)", done.stdout + done.stderr)
        if done.returncode != 0 or not folders:
            print("could not be built; run ./lockstep build", file=sys.stderr)
            return 3
        options.build = ROOT / folders[-1]
    try:
        result, words = sweep(options.build, options.world_sizes, options.seeds, options.only, options.kept)
    except (RuntimeError, scoring.ScoreError, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(words)
    return 0 if is_good(result) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
