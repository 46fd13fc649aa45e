"""What `lockstep diagnose` names in programs without a call to a probe: every variant of evaluation/silence_cost and of
evaluation/gestures, recorded with LOCKSTEP_TRACE alone.

usage: python3 evaluation/unprobed.py [--ranks N] [--seed S] [--settings a,b] [--build FOLDER] [--out FILE]

What to find stands in each one's truths.json, read off the programs. A step is right where it is the truth's, or between that
and the first probed one after it. Exit code: 0; 3 where something could not be run.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import scoring

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEADLINE_S = 180
SHORT = ("--epochs", "6", "--samples", "1027")  # fewer epochs have no restart at an epoch's end
PROGRAMS = ("silence_cost", "gestures")


def call(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL, env={**os.environ, **more})


def must(done):
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def found_in(program, setting, variant, ranks, seed):
    """The findings of one run."""
    with tempfile.TemporaryDirectory(prefix="lockstep-unprobed-") as folder:
        traces = pathlib.Path(folder) / "traces"
        must(call([program, pathlib.Path(folder) / "lines", "--settings", setting, "--variants", variant, "--seeds", seed,
                   "--ranks", ranks, *SHORT], LOCKSTEP_TRACE=str(traces)))
        done = call([program.parent.parent / "lockstep-course", "diagnose", "--json", traces])
        if done.returncode not in (0, 1):
            must(done)
        return [{key: each[key] for key in ("pitfall", "severity", "ranks", "step")} for each in json.loads(done.stdout)["findings"]]


def first_probed(step):
    """Where values are recorded: ProbeOptions of record/probes.h."""
    while step > 4 and (step % 64 if step > 64 else step & (step - 1)):
        step += 1
    return step


def truth_of(record, world_size):
    step = scoring.of_size(record["step"], world_size)
    return scoring.Truth.of(record, world_size, 0, 0 if step is None else first_probed(step) - step)


def verdict(variant, truths, world_size, findings):
    truth = scoring.Truth(fault=False) if variant == "correct" else truth_of(truths[variant], world_size)
    return scoring.verdict(truth, findings)


def settings_of(program):
    """The variants of each setting."""
    variants = {}
    for line in must(call([program, "--list"])).splitlines():
        setting, fault = line.split()
        variants.setdefault(setting, ["correct"]).append(fault)
    return variants


def score(program, truths, wanted, options):
    runs = []
    for setting, variants in settings_of(program).items():
        for variant in variants if not wanted or setting in wanted else []:
            findings = found_in(program, setting, variant, options.ranks, options.seed)
            word = verdict(variant, truths[setting], options.ranks, findings)
            runs.append({"setting": setting, "variant": variant, "verdict": word, "findings": findings})
            print(f"{setting:22} {variant:38} {word:12} {', '.join(one['pitfall'] for one in findings)}", flush=True)
    count = scoring.counts(run["verdict"] for run in runs)
    print(f"{program.name}: " + ", ".join(f"{word} {number}" for word, number in count.items()), flush=True)
    return {"count": count, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", default="")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "clang-2.11.0")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "out" / "unprobed.json")
    options = parser.parse_args()

    wanted = [name for name in options.settings.split(",") if name]
    programs = {}
    for name in PROGRAMS:
        truths = json.loads((ROOT / "evaluation" / name / "truths.json").read_text(encoding="utf-8"))
        programs[name] = score(options.build / "evaluation" / name, truths, wanted, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"ranks": options.ranks, "seed": options.seed, "programs": programs}, indent=1) + "\n",
                           encoding="utf-8")


if __name__ == "__main__":
    main()
