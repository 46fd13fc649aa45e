"""What the contestants have in common: COMMAND CASE OUT takes a case's folder, and writes the findings to the file OUT."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]


class NotRun(Exception):
    """This checker cannot run here."""


class Failed(Exception):
    """It failed on this case."""


def finding(kind, text, pitfall=None, ranks=(), step=None, tensor=None, source=None):
    return {"kind": kind, "pitfall": pitfall, "text": text, "ranks": sorted(ranks), "step": step, "tensor": tensor,
            "source": source}


def words(case, out):
    """The case's command, to be run in the case's folder; `out` is an empty folder."""
    stands_for = {"PYTHON": sys.executable, "OUT": str(out)}
    return [stands_for.get(word, word) for word in case["command"]]


def call(command, folder, deadline, **variables):
    """Runs it without a word of Lockstep in its environment; past its deadline it is ended, with TimeoutExpired."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
    return subprocess.run([str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=deadline, env={**plain, "OMP_NUM_THREADS": "1", **variables})


def main(doc, name, answer, *arguments):
    """Parses the command line, has `answer(case, folder, options)` say its findings, and writes them. `arguments` are those
    of argparse's add_argument; name may be a function of the options."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flags, more in arguments:
        parser.add_argument(flags, **more)
    parser.add_argument("case", type=pathlib.Path, help="the case's folder in a corpus")
    parser.add_argument("out", type=pathlib.Path, help="the file to be written")
    options = parser.parse_args()
    described = options.case / "case.json"
    if not described.is_file():
        parser.error(f"{described} is not there; name a folder of CORPUS/cases")
    case = json.loads(described.read_text(encoding="utf-8"))
    state, reason, findings = "answered", "", []
    try:
        findings = answer(case, options.case.resolve(), options)
    except NotRun as why:
        state, reason = "not run", str(why)
    except Failed as why:
        state, reason = "error", str(why)
    for one in findings:  # "process 4242" is no rank
        one["ranks"] = [rank for rank in one["ranks"] if rank < case["ranks"]]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({
        "schema_version": 1, "case": case["id"], "contestant": name(options) if callable(name) else name, "state": state,
        "reason": reason, "findings": findings}, indent=1) + "\n", encoding="utf-8")
