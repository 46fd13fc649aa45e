"""Runs the programs of lessons/NN_name/python, right and with each of their faults, and compares what is said with truths.json.

usage: python3 twins.py PACKAGE KEY [PROGRAM | SLUG ...]      PACKAGE: the folder that holds lockstep_torch
                                                              KEY: plain, first, later

plain asks the programs' own oracles only, and runs them without Lockstep. The others run them under `lockstep watch`
and write reports/results/twins.json under KEY. The score under "first" is from the first time that the programs were
ever watched; programs and truths were committed before. A program may only be in it once.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python/tests"), str(ROOT / "lessons/python"), str(ROOT / "reports")]
import results  # noqa: E402
from fold import file_of  # noqa: E402
from package import FOLDER, environment  # noqa: E402
from truths import ATTEMPTS, TRUTHS, is_proved, judged, runs, variables  # noqa: E402
from watched import score, started, told, verdict, watched  # noqa: E402

PATHS = os.pathsep.join([str(ROOT / "lessons/python"), str(FOLDER)])
REPORT = results.FOLDER / "twins.json"
PLAIN_DEADLINE_S = 90  # torch may be long in coming


def plain(program, attempts, **more):
    """The exit code without Lockstep, None where the job had to be ended; and no findings."""
    with tempfile.TemporaryDirectory(prefix="lockstep-twins-") as own:
        job = subprocess.Popen([str(part) for part in started(program, attempts, own)], start_new_session=True,
                               env=environment(**more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return job.wait(PLAIN_DEADLINE_S), []
        except subprocess.TimeoutExpired:
            return None, []
        finally:
            try:
                os.killpg(job.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # nothing of it is left
            job.wait()


def run_one(how, program, slug):
    """Runs a program, right or with a fault: {exit, oracle, found, verdict}."""
    with tempfile.TemporaryDirectory(prefix="lockstep-twins-") as notes:
        code, found = how(file_of(program), ATTEMPTS.get(program, 1), TWIN_FAULT=slug, TWIN_NOTES=notes, PYTHONPATH=PATHS,
                          **variables(program))
        result = {"exit": code, "oracle": judged(program, code, notes), "found": found}
    if slug:
        return {"truth": TRUTHS[slug], **result, "verdict": verdict({"pitfall": slug, **TRUTHS[slug]}, found)}
    alarms = [one for one in found if one["severity"] == "violation"]
    return {**result, "verdict": "false alarm" if alarms else "clean"}


def totals(part):
    """The scores of all faults, and of those that need no call of the program; false alarms of the right programs."""
    broken = part["broken"].values()
    right = [one["verdict"] for one in part["right"].values()]
    return {"all": score([one["verdict"] for one in broken]),
            "without a call": score([one["verdict"] for one in broken if not one["truth"].get("calls")]),
            "right programs": {"false alarms": right.count("false alarm"), "of": len(right)}}


def main():
    key, *names = sys.argv[1:]
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    part = report.setdefault(key, {"right": {}, "broken": {}})
    unproved = []
    for program, slug in runs(names):
        scored = part["broken" if slug else "right"]
        if key == "first" and (slug or program) in scored:
            sys.exit(f"{slug or program} was watched before")
        result = run_one(plain if key == "plain" else watched, program, slug)
        proved = is_proved(slug, result["oracle"])
        if not proved:
            unproved.append(slug or program)
        print(f"{program} {slug or '(right)'}: {'proved' if proved else 'NOT PROVED'}, {result['verdict']}, "
              f"exit {result['exit']}, {result['oracle']}, {told(result['found'])}", flush=True)
        scored[slug or program] = result
        if key != "plain":
            part["score"] = totals(part)
            REPORT.write_text(results.text(report), encoding="utf-8")
    sys.exit(f"the oracle does not tell: {unproved}" if unproved else 0)


if __name__ == "__main__":
    main()
