"""Runs the programs of twins/, right and with each of their faults, and compares what is said with truths.json.

usage: python3 twins.py PACKAGE KEY [PROGRAM | SLUG ...]      PACKAGE: the folder that holds lockstep_torch
                                                              KEY: plain, first, later

plain asks the programs' own oracles only, and runs them without Lockstep. The others run them under `lockstep watch`
and write reports/measured/twins.json under KEY. The score under "first" is from the first time that the programs were
ever watched; programs and truths were committed before. A program may only be in it once.
"""

import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from faults_of_others import HERE, RANKS, score, started, verdict, watched
from package import environment

PROGRAMS = HERE / "twins"
TRUTHS = json.loads((PROGRAMS / "truths.json").read_text())
REPORT = HERE.parents[1] / "reports/measured/twins.json"
ATTEMPTS = {"resumes": 2}
PLAIN_DEADLINE_S = 40
sys.path.insert(0, str(PROGRAMS))


def plain(program, attempts, **more):
    """The exit code without Lockstep; None where the job had to be ended."""
    with tempfile.TemporaryDirectory(prefix="lockstep-twins-") as own:
        job = subprocess.Popen([str(part) for part in started(program, attempts, own)], start_new_session=True,
                               env=environment(**more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return job.wait(PLAIN_DEADLINE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(job.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # nothing of it is left
            job.wait()


def judged(program, code, notes):
    """{what must be so: whether it is}, by the program's own oracle. A rank that did not get to its end notes nothing."""
    files = [notes / f"{rank}.json" for rank in range(RANKS)]
    seen = {"ended": code == 0 and all(file.exists() for file in files)}
    if seen["ended"]:
        seen |= importlib.import_module(program).oracle([json.loads(file.read_text()) for file in files])
    return seen


def run_one(how, program, slug=""):
    """Runs a program, right or with a fault: {exit, oracle, found}."""
    with tempfile.TemporaryDirectory(prefix="lockstep-twins-") as notes:
        done = how(PROGRAMS / f"{program}.py", ATTEMPTS.get(program, 1), TWIN_FAULT=slug, TWIN_NOTES=notes)
        code, found = done if isinstance(done, tuple) else (done, [])
        return {"exit": code, "oracle": judged(program, code, pathlib.Path(notes)), "found": found}


def is_proved(truth, seen):
    """The oracle tells this fault from the right program by what the truth says."""
    return truth["sees"] in seen and not seen[truth["sees"]]


def totals(part):
    """The scores of all faults, and of those that need no call of the program; false alarms of the right programs."""
    broken, right = part["broken"].values(), part["right"].values()
    alarms = [any(found["severity"] == "violation" for found in one["found"]) for one in right]
    return {"all": score([one["verdict"] for one in broken]),
            "without a call": score([one["verdict"] for one in broken if not one["truth"].get("calls")]),
            "right programs": {"false alarms": alarms.count(True), "of": len(alarms)}}


def runs(names):
    """(program, slug) of each run that is asked for; the slug is empty for the right program."""
    programs = dict.fromkeys(truth["program"] for truth in TRUTHS.values())
    every = [(program, "") for program in programs] + [(truth["program"], slug) for slug, truth in TRUTHS.items()]
    return [(program, slug) for program, slug in every if not names or (slug or program) in names]


def told(found):
    return [(one["severity"][0], one["pitfall"], one["ranks"], one["step"]) for one in found]


def main():
    key, *names = sys.argv[1:]
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    part = {"right": {}, "broken": {}} if key == "plain" else report.setdefault(key, {"right": {}, "broken": {}})
    unproved = []
    for program, slug in runs(names):
        if key == "first" and (slug or program) in part["broken" if slug else "right"]:
            sys.exit(f"{slug or program} was watched before")
        result = run_one(plain if key == "plain" else watched, program, slug)
        truth = TRUTHS.get(slug)
        if is_proved(truth, result["oracle"]) if slug else all(result["oracle"].values()):
            proof = "proved"
        else:
            proof = "NOT PROVED"
            unproved.append(slug or program)
        print(f"{program} {slug or '(right)'}: {proof} {result['oracle']}, exit {result['exit']}", flush=True)
        if key == "plain":
            continue
        if slug:
            result["verdict"] = verdict({"pitfall": slug, **truth}, result["found"])
            part["broken"][slug] = {"truth": truth, **result}
        else:
            part["right"][program] = result
        print(f"    {result.get('verdict', '')} {told(result['found'])}", flush=True)
        part["score"] = totals(part)
        REPORT.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(f"not proved: {unproved}" if unproved else 0)


if __name__ == "__main__":
    main()
