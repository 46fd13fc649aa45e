"""What `lockstep diagnose` names in programs without a call to a probe: every variant of evaluation/silence_cost and of
evaluation/gestures, recorded with LOCKSTEP_TRACE alone.

usage: python3 evaluation/unprobed.py [--ranks N] [--seed S] [--settings a,b] [--build FOLDER] [--out FILE]

What to find stands in each one's truths.json, read off the programs: which ranks are at fault, and the first
step at which it can be seen. A fault counts as exact where its own name is the only finding, with those ranks, at that
step or the first probed one after it; as named where it is among the findings. A correct variant with a finding is a false
alarm. Advice that is right for every variant of a setting counts for nothing. Exit code: 0; 3 where something could not be
run.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

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
    """The findings of one run: [pitfall, severity, ranks, step]."""
    with tempfile.TemporaryDirectory(prefix="lockstep-unprobed-") as folder:
        traces = pathlib.Path(folder) / "traces"
        must(call([program, pathlib.Path(folder) / "lines", "--settings", setting, "--variants", variant, "--seeds", seed,
                   "--ranks", ranks, *SHORT], LOCKSTEP_TRACE=str(traces)))
        done = call([program.parent.parent / "lockstep-course", "diagnose", "--json", traces])
        if done.returncode not in (0, 1):
            must(done)
        return [[each["pitfall"], each["severity"], each["ranks"], each["step"]]
                for each in json.loads(done.stdout)["findings"]]


def of(ranks, value):
    """A value, or one for each number of ranks."""
    return value[str(ranks)] if isinstance(value, dict) else value


def first_probed(step):
    """Where values are recorded: ProbeOptions of record/probes.h."""
    while step > 4 and (step % 64 if step > 64 else step & (step - 1)):
        step += 1
    return step


def fits(truth, world_size, ranks, step):
    at_fault, first = of(world_size, truth["ranks"]), of(world_size, truth["step"])
    if ranks != (list(range(world_size)) if at_fault == "all" else at_fault):
        return False
    return first is None or first <= step <= first_probed(first)


def cell_of(fault, truths, world_size, findings):
    advice = truths.get("correct", {}).get("advice", [])
    findings = [each for each in findings if each[1] != "advice" or each[0] == fault or each[0] not in advice]
    if fault == "correct":
        return "false-alarm" if findings else "clean"
    truth = truths[fault]
    of_fault = [each for each in findings if each[0] == truth.get("name", fault)]
    if not of_fault:
        return "wrong-name" if findings else "silent"
    if len(findings) > len(of_fault):
        return "named"
    return "exact" if all(fits(truth, world_size, ranks, step) for *_, ranks, step in of_fault) else "other-place"


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
            cell = cell_of(variant, truths[setting], options.ranks, findings)
            runs.append({"setting": setting, "variant": variant, "cell": cell, "findings": findings})
            print(f"{setting:22} {variant:38} {cell:12} {', '.join(name for name, *_ in findings)}", flush=True)
    count = {cell: sum(run["cell"] == cell for run in runs)
             for cell in ("exact", "other-place", "named", "wrong-name", "silent", "clean", "false-alarm")}
    print(f"{program.name}: " + ", ".join(f"{cell} {number}" for cell, number in count.items()), flush=True)
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
        truths = json.loads((ROOT / "evaluation" / name / "truths.json").read_text(encoding="utf-8"))["settings"]
        programs[name] = score(options.build / "evaluation" / name, truths, wanted, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"ranks": options.ranks, "seed": options.seed, "programs": programs}, indent=1) + "\n",
                           encoding="utf-8")


if __name__ == "__main__":
    main()
