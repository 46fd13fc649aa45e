"""How far two right runs of one training are apart: what the tolerance of `lockstep compare` is measured by.

usage: python3 tests/compare/healthy_pairs.py [--build FOLDER] [--course PROGRAM] [--kept FOLDER] [--only 03_ddp,...]
       [--package FOLDER] [--json FILE]

Every correct variant of every lesson is recorded on 2 ranks, and again in other ways that must train the same:

  again       as it was: equal to the bit
  kernels     with torch's and MKL's kernels for old processors, which add in another order
  ranks 1, 4  with another number of ranks; counted where each step's ids, over all ranks, are the same

With --package FOLDER (the built Python package) also same_training.py under `lockstep watch`: several models and optimizers
on 1, 2 and 4 ranks, with other buckets, and with the other kernels.

Of each pair, what `compare` says, and of each quantity the largest distance in units of its tolerance. The factors in
common/lockstep/compare/tolerance.cpp are at least ten times what is needed: "largest" must stay below 0.1.
Exit code: 0 all pairs are equal, to the bit or to rounding; 1 some differ or are nearer to the tolerance; 3 something
could not be run.
"""

import argparse
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import runs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MARGIN = 10
OLD_KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}
WAYS = {"again": (2, {}), "kernels": (2, OLD_KERNELS), "ranks 1": (1, {}), "ranks 4": (4, {})}  # ranks, environment
TRAININGS = ["mlp sgd", "conv sgd", "norm adam", "mlp adam", "mlp sgd --bfloat16"]
RUNS = {"1 rank": (1, [], {}), "2 ranks": (2, [], {}), "4 ranks": (4, [], {}),
        "2 ranks, small buckets": (2, ["--bucket-kb", "8"], {}), "2 ranks, other kernels": (2, [], OLD_KERNELS)}


def watch(package, folder, ranks, arguments, environment):
    """Records same_training.py; what is there already is not run again."""
    if (folder / "ended").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)  # of a run that did not end
    command = [sys.executable, "-m", "lockstep_torch.command_line", "watch", "--into", folder, "--", sys.executable, "-m",
               "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, ROOT / "tests/compare/same_training.py",
               *arguments]
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=runs.COMPARE_S * 2, env={**os.environ, "PYTHONPATH": str(package), **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))} on {ranks} ranks exited with {done.returncode}:\n{done.stderr}")
    (folder / "ended").touch()


def trainings(course, package, kept):
    """The pairs of each training."""
    for training in TRAININGS:
        folders = {}
        for name, (ranks, more, environment) in RUNS.items():
            folders[name] = kept / "watched" / training.replace(" ", "_") / name.replace(" ", "_").replace(",", "")
            folders[name].parent.mkdir(parents=True, exist_ok=True)
            watch(package, folders[name], ranks, [*training.split(), *more], environment)
        for (a, of_a), (b, of_b) in itertools.combinations(folders.items(), 2):
            said, _ = runs.compare(course, of_a, of_b)
            yield {"program": training, "way": f"{a} and {b}", **judged(said)}


def of_lessons(course, programs, kept, left_out):
    """The pairs of each lesson's correct variants. `left_out` gets those whose other number of ranks is another training."""
    for program in programs:
        first = runs.record(program, kept / "first", "correct", 2)
        for way, (ranks, environment) in WAYS.items():
            where = kept / way.replace(" ", "_")
            other = runs.record(program, where, "correct", ranks, **environment)
            for name, run in first.items():
                if run["outcome"] != "completed" or other.get(name, {}).get("outcome") != "completed":
                    continue
                said, _ = runs.compare(course, kept / "first" / program.name / name, where / program.name / name)
                if ranks != 2 and not same_batches(said):
                    left_out.append(f"{program.name}/{name}, {way}")
                else:
                    yield {"program": f"{program.name}/{name}", "way": way, **judged(said)}


def judged(said):
    """The largest distance of each aspect, over its tolerance, and how far that tolerance went."""
    largest = {}
    for aspect in said["aspects"]:
        # A metric's tolerance is a count of samples.
        shares = [each["distance"] / each["tolerance"] for each in aspect["distances"] if each["tolerance"] > 0]
        if shares and aspect["aspect"] != "metric":
            largest[aspect["aspect"]] = max(shares)
    steps = {step for aspect in said["aspects"] for step in aspect["steps"]}
    return {"answer": said["answer"], "first": said["first"], "steps": max(steps, default=-1), "largest": largest}


def same_batches(said):
    """Whether each step's ids were the same: another number of ranks is the same training only then."""
    data = next(each for each in said["aspects"] if each["aspect"] == "data")
    return bool(data["steps"]) and data["first"] is None and said["a"]["updates"] == said["b"]["updates"] > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "clang-2.11.0")
    parser.add_argument("--course", type=pathlib.Path, help="default: lockstep-course of the build")
    parser.add_argument("--kept", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--package", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "reports" / "out" / "compare_pairs.json")
    options = parser.parse_args()
    course = options.course or options.build / "lockstep-course"
    wanted = {name for name in options.only.split(",") if name}

    pairs, left_out = [], []
    with tempfile.TemporaryDirectory(prefix="lockstep-pairs-") as folder:
        kept = options.kept or pathlib.Path(folder)
        programs = [each for each in runs.programs_in(options.build / "bin") if not wanted or each.name in wanted]
        watched = trainings(course, options.package, kept) if options.package else []
        for pair in itertools.chain(of_lessons(course, programs, kept, left_out), watched):
            pairs.append(pair)
            print(f"{pair['program']}, {pair['way']}: {pair['answer']} {pair['first'] or ''} "
                  f"{max(pair['largest'].values(), default=0):.3f}", flush=True)
    largest = {}
    for pair in pairs:
        for aspect, share in pair["largest"].items():
            largest[aspect] = max(largest.get(aspect, 0), share)
    count = {answer: sum(pair["answer"] == answer for pair in pairs)
             for answer in ("equal", "rounding", "different", "undecided")}
    print(f"{len(pairs)} pairs: {count}; largest distance over its tolerance: {largest}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"schema_version": 1, "margin": MARGIN, "count": count, "largest": largest,
                                        "pairs": pairs, "left_out": left_out}, indent=1) + "\n", encoding="utf-8")
    right = not count["different"] and all(share <= 1 / MARGIN for share in largest.values())
    return 0 if right and pairs else 1


if __name__ == "__main__":
    sys.exit(main())
