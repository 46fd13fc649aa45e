"""Pairs of right runs that `lockstep watch` records, for healthy_pairs.py.

  trainings  same_training.py: several models and optimizers on 1, 2 and 4 ranks, with other buckets, with the other kernels
  languages  the parity tests' program in C++ and its twin in Python, on 2 ranks: equal to the bit
  programs   the right programs of evaluation/sets/eighth/python, on 2 ranks again: equal to the bit
"""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys

import runs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OLD_KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}
TRAININGS = ["mlp sgd", "conv sgd", "norm adam", "mlp adam", "mlp sgd --bfloat16"]
RUNS = {"1 rank": (1, [], {}), "2 ranks": (2, [], {}), "4 ranks": (4, [], {}),
        "2 ranks, small buckets": (2, ["--bucket-kb", "8"], {}), "2 ranks, other kernels": (2, [], OLD_KERNELS)}
CASES = ["mlp", "mlp_view", "mlp_buckets", "mlp_static", "conv", "conv_view", "unused", "mlp_accumulated", "mlp_bf16_hook"]
ATTEMPTS = {"resume_bikes": 2}
# With a communication hook in Python, torch 2.11 aborts a rank as it exits, in 24 of 60 runs without watch.
ABORTED, MOST_ABORTS = "terminate called without an active exception", 12


def watch(package, folder, ranks, command, environment=(), attempts=1):
    """Records a job under torchrun into FOLDER, once for each attempt; what is there already is not run again. FOLDER/out is
    for what the job itself writes."""
    if (folder / "ended").is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # of a run that did not end
    (folder / "out").mkdir(parents=True)
    for attempt in range(attempts):
        into = folder / f"attempt_{attempt}" if attempts > 1 else folder
        words = [sys.executable, "-m", "lockstep_torch.command_line", "watch", "--into", into, "--", sys.executable, "-m",
                 "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, *command]
        for _ in range(MOST_ABORTS):
            done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=runs.COMPARE_S * 5,
                                  env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(package), **dict(environment)})
            if ABORTED not in done.stderr:
                break
            for file in (*into.glob("*.trace"), *into.glob("*.jsonl"), *into.glob("stack_*")):
                file.unlink()
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} on {ranks} ranks exited with {done.returncode}:\n{done.stderr}")
    (folder / "ended").touch()
    return folder


def pair(course, program, way, a, b, to_the_bit=False):
    said, _ = runs.compare(course, a, b)
    return {"program": program, "way": way, "to_the_bit": to_the_bit, "said": said}


def named(folder, name):
    return folder / name.replace(" ", "_").replace(",", "")


def trainings(course, package, kept):
    script = ROOT / "evaluation/pairs/same_training.py"
    for training in TRAININGS:
        folders = {name: watch(package, named(kept / training.replace(" ", "_"), name), ranks,
                               [script, *training.split(), *more], environment)
                   for name, (ranks, more, environment) in RUNS.items()}
        for (a, of_a), (b, of_b) in itertools.combinations(folders.items(), 2):
            yield pair(course, training, f"{a} and {b}", of_a, of_b)


def languages(course, package, build, kept):
    programs = {"cpp": ["--no-python", build / "tests" / "ddp_parity"], "python": [ROOT / "tests/parity/ddp_parity.py"]}
    for case in CASES:
        folders = []
        for language, program in programs.items():
            into = kept / f"{case}_{language}"
            folders.append(watch(package, into, 2, [*program, into / "out", "env://", -1, f"2:{case}"]))
        yield pair(course, f"DDP {case}", "C++ and Python", *folders, to_the_bit=True)


def programs(course, package, kept):
    for source in sorted((ROOT / "evaluation/sets/eighth/python").glob("*.py")):
        name = source.stem
        folders = [kept / f"{name}_{way}" for way in ("first", "again")]
        runs_of_it = [watch(package, into, 2, [source, into / "out"], attempts=ATTEMPTS.get(name, 1)) for into in folders]
        yield pair(course, name, "again", *runs_of_it, to_the_bit=True)


def pairs(course, package, build, kept, wanted):
    """Of the groups that are wanted, or all: program, way, whether they must be equal to the bit, and what compare says."""
    groups = {"trainings": lambda at: trainings(course, package, at), "languages": lambda at: languages(course, package, build, at),
              "programs": lambda at: programs(course, package, at)}
    for name, group in groups.items():
        if not wanted or name in wanted:
            yield from group(kept / name)
