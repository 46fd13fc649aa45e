"""Runs programs after other projects' issue threads under `lockstep watch`, and compares what is said with truths.json.

usage: python3 threads.py PACKAGE KEY [NAME ...]     PACKAGE: the folder that holds lockstep_torch
                                                     KEY: first, later

Writes reports/results/threads.json under KEY. The score under "first" is from the first time that the programs were
ever watched; programs and truths were committed before. A program may only be in it once.
"""

import json
import pathlib
import sys

PROGRAMS = pathlib.Path(__file__).resolve().parent
REPORTS = PROGRAMS.parents[1] / "reports"
sys.path[:0] = [str(PROGRAMS.parents[1] / "python/tests"), str(REPORTS)]
import results  # noqa: E402
from watched import score, told, verdict, watched  # noqa: E402

REPORT = results.FOLDER / "threads.json"


def main():
    key, *names = sys.argv[1:]
    truths = json.loads((PROGRAMS / "truths.json").read_text())
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    scored = report.setdefault(key, {}).setdefault("programs", {})
    for name in names or truths:
        if key == "first" and name in scored:
            sys.exit(f"{name} was watched before")
        truth = truths[name]
        code, found = watched(PROGRAMS / f"{name}.py", truth.get("attempts", 1))
        scored[name] = {"truth": truth, "exit": code, "found": found, "verdict": verdict(truth, found)}
        print(f"{name}: {scored[name]['verdict']}: {truth['pitfall']} {truth.get('ranks')}; exit {code}; "
              f"{told(found)}", flush=True)
        report[key]["score"] = score([one["verdict"] for one in scored.values()])
        REPORT.write_text(results.text(report), encoding="utf-8")
    print(report[key]["score"])


if __name__ == "__main__":
    main()
