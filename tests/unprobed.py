"""What `lockstep diagnose` names in programs without a call to a probe: every form of benchmarks/silence, recorded with
LOCKSTEP_TRACE alone.

usage: python3 tests/unprobed.py [--ranks N] [--seed S] [--settings a,b] [--build FOLDER] [--out FILE]

A fault counts as exact where its own name is the only finding, as named where it is among them. A correct form with a
finding is a false alarm. Exit code: 0; 3 where something could not be run.
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
SHORT = ("--epochs", "3", "--samples", "1027")


def call(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL, env={**os.environ, **more})


def must(done):
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def found_in(build, setting, form, ranks, seed):
    """The findings of one run: [pitfall, severity, ranks, step]."""
    with tempfile.TemporaryDirectory(prefix="lockstep-unprobed-") as folder:
        traces = pathlib.Path(folder) / "traces"
        must(call([build / "benchmarks" / "silence_cost", pathlib.Path(folder) / "lines", "--settings", setting, "--forms",
                   form, "--seeds", seed, "--ranks", ranks, *SHORT], LOCKSTEP_TRACE=str(traces)))
        done = call([build / "lockstep-course", "diagnose", "--json", traces])
        if done.returncode not in (0, 1):
            must(done)
        return [[each["pitfall"], each["severity"], each["ranks"], each["step"]]
                for each in json.loads(done.stdout)["findings"]]


def cell_of(fault, findings):
    names = {name for name, *_ in findings}
    if fault == "correct":
        return "false-alarm" if names else "clean"
    if names == {fault}:
        return "exact"
    return "named" if fault in names else "wrong-name" if names else "silent"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", default="")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "clang-2.11.0")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "out" / "unprobed.json")
    options = parser.parse_args()

    faults = {}
    for line in must(call([options.build / "benchmarks" / "silence_cost", "--list"])).splitlines():
        setting, fault = line.split()
        faults.setdefault(setting, ["correct"]).append(fault)
    wanted = [name for name in options.settings.split(",") if name]
    runs = []
    for setting in wanted or faults:
        for form in faults[setting]:
            findings = found_in(options.build, setting, form, options.ranks, options.seed)
            runs.append({"setting": setting, "form": form, "cell": cell_of(form, findings), "findings": findings})
            print(f"{setting:22} {form:38} {runs[-1]['cell']:12} {', '.join(name for name, *_ in findings)}", flush=True)
    count = {cell: sum(run["cell"] == cell for run in runs)
             for cell in ("exact", "named", "wrong-name", "silent", "clean", "false-alarm")}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"ranks": options.ranks, "seed": options.seed, "count": count, "runs": runs},
                                      indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{cell} {number}" for cell, number in count.items()))


if __name__ == "__main__":
    main()
