"""Pairs of right runs that `lockstep watch` records, for healthy_pairs.py.

  trainings  same_training.py: several models and optimizers on 1, 2 and 4 ranks, with other buckets, with the other kernels
  languages  the parity tests' program in C++ and its twin in Python, on 2 ranks: equal to the bit
  programs   the right programs of python/tests/unseen/first, on 2 ranks again: equal to the bit; and on 1 rank with twice the batch
             where each update goes by the global batch alone
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
# Each program's batch of a rank, as it is written there. Of those left out, some draw on each rank what no other has (dropout,
# augmentation, a generator or a stream of their own), BatchNorm normalizes over a rank's batch, contrastive compares the samples
# of one, and in uneven the ranks have other numbers of batches.
ON_ONE_RANK = {"mlp": "BATCH = 16", "mixed": "BATCH = 16", "accumulation": "MICRO_BATCH = 8", "finetune": "batch_size=16",
               "resume": "batch_size=16"}
ATTEMPTS = {"resume": 2}
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
    script = ROOT / "tests/compare/same_training.py"
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
    for source in sorted((ROOT / "python/tests/unseen/first").glob("*.py")):
        name = source.stem

        def recorded(way, ranks, script):
            into = kept / f"{name}_{way}"
            return watch(package, into, ranks, [script, into / "out"], attempts=ATTEMPTS.get(name, 1))
        first = recorded("first", 2, source)
        yield pair(course, name, "again", first, recorded("again", 2, source), to_the_bit=True)
        if batch := ON_ONE_RANK.get(name):
            text = source.read_text(encoding="utf-8")
            if text.count(batch) != 1:
                sys.exit(f"{source.name}: {text.count(batch)} places have {batch!r}")
            alone = kept / f"{name}.py"
            alone.write_text(text.replace(batch, batch.replace("16", "32").replace("8", "16")), encoding="utf-8")
            yield pair(course, name, "ranks 1, twice the batch", first, recorded("alone", 1, alone))


def pairs(course, package, build, kept, wanted):
    """Of the groups that are wanted, or all: program, way, whether they must be equal to the bit, and what compare says."""
    groups = {"trainings": lambda at: trainings(course, package, at), "languages": lambda at: languages(course, package, build, at),
              "programs": lambda at: programs(course, package, at)}
    for name, group in groups.items():
        if not wanted or name in wanted:
            yield from group(kept / name)
