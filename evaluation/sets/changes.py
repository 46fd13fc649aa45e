"""Faults and benign changes by authors who had not read the detectors, their pages or each other's programs.

usage: python3 changes.py oracles SET [NAME ...]             is each what it is said to be? No trace is looked at.
       python3 changes.py PACKAGE score KEY SET [NAME ...]   runs them under `lockstep watch`
                                                             PACKAGE: the folder that holds lockstep_torch
                                                             KEY: first, later; SET: a folder beside this file

SET/python/BASE.py is a right program, SET/python/BASE.json its edits. `score` writes reports/results/SET_python.json.
Fill in each fault's "names", the pitfalls that name it, before the first score; a fault that no pitfall names keeps an
empty list. Later only pitfalls that are younger than the set are added. The score under "first" is from the first time
that an edit was ever watched; it may only be in it once.

A truth's step is the number of the job's optimizer steps before. Its "either" says that only comparing the ranks
tells which one is wrong: of two ranks, naming both is as right.

changes_in_cpp.py does the same with programs in C++.
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import re
import runpy
import socket
import sys
import tempfile
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
REPORTS = HERE.parents[1] / "reports"
sys.path[:0] = [str(HERE.parents[1] / "python/tests"), str(REPORTS)]
import results  # noqa: E402
from start import numbered  # noqa: E402

RANKS = 2
ENDS_S = 25
STEPS_APART = 1  # a detector may see a step's fault in the next one


@dataclasses.dataclass
class Run:
    name: str
    code: int | str
    error: str
    weights: list
    reports: list


def edits(programs):
    """All of them by name."""
    return {one["name"]: one for path in sorted(programs.glob("*.json")) for one in json.loads(path.read_text())}


def attempts(base):
    """Programs that go on from a checkpoint stop halfway at first; others run to their end at once."""
    return 2 if base.startswith("resume") else 1


def be_rank(rank, port, program, folder):
    """In a process of its own, which has torch imported already, as start.py would start it."""
    os.environ.update(numbered(rank, RANKS, 1), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    output = os.open(f"{folder}/output_{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [str(program), str(folder)]
    runpy.run_path(str(program), run_name="__main__")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def attempt(program, folder):
    """The greatest exit code of the ranks, or "no end"."""
    port, context = free_port(), multiprocessing.get_context("fork")
    ranks = [context.Process(target=be_rank, args=(rank, port, program, folder)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + ENDS_S
    for rank in ranks:
        rank.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank in ranks if rank.is_alive()]
    for rank in late:
        rank.kill()
        rank.join()
    return "no end" if late else max(abs(rank.exitcode) for rank in ranks)


def ran(base, folder, attempted, weights):
    """What became of the ranks, by what they left in the folder. `attempted` gives the exit code of an attempt,
    `weights` takes a rank and its report."""
    for _ in range(attempts(base)):
        code = attempted()
        if code != 0:
            lines = [line for path in sorted(folder.glob("output_*")) for line in path.read_text().splitlines()]
            words = [re.sub(r"\[[^]]*\](:\d+)? ?:?", "", line).strip() for line in lines]  # no rank, no port
            errors = [line[:100] for line in words if re.match(r"\w*Error: ", line)]
            return Run(base, code, errors[0] if errors else "", [], [])
    reports = [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(RANKS)]
    return Run(base, 0, "", [weights(rank, report) for rank, report in enumerate(reports)], reports)


class Programs:
    """Of a set: right programs, and what each becomes by an edit, or by none."""

    def __init__(self, sources):
        self.sources = sources

    def write(self, folder, base, edit):
        """Each replacement fits one place."""
        source = (self.sources / f"{base}.py").read_text()
        for change in edit["edits"] if edit else []:
            if source.count(change["was"]) != 1:
                sys.exit(f"{edit['name']}: {source.count(change['was'])} places have {change['was']!r}")
            source = source.replace(change["was"], change["is"])
        program = pathlib.Path(folder, f"{base}.py")
        program.write_text(source)
        return program

    def bare(self, base, edit):
        with tempfile.TemporaryDirectory(prefix="lockstep-changes-") as name:
            folder = pathlib.Path(name)
            program = self.write(folder, base, edit)
            return ran(base, folder, lambda: attempt(program, folder),
                       lambda rank, _: torch.load(folder / f"rank_{rank}.pt"))

    def watch(self, edit):
        """The exit code, and what was found."""
        from watched import watched  # takes PACKAGE
        with tempfile.TemporaryDirectory(prefix="lockstep-changes-") as folder:
            return watched(self.write(folder, edit["base"], edit), attempts(edit["base"]))


def oracles(programs, names):
    torch.set_num_threads(1)  # the ranks are forks
    from oracles import ORACLES, from_base
    every, bases, wrong = edits(programs.sources), {}, 0
    for name in names or every:
        edit, base = every[name], every[name]["base"]
        if base not in bases:
            bases[base] = programs.bare(base, None)
            if from_base(bases[base], programs.bare(base, None)) != 0:
                sys.exit(f"{base} does not train the same twice")
        run = programs.bare(base, edit)
        decide = ORACLES[edit["oracle"]]
        if run.code != 0 and decide is not ORACLES["fails"]:
            holds, figures = False, {"exit": run.code, "error": run.error}
        else:
            holds, figures = decide(bases[base], run)
        wrong += not holds
        print(f"{'ok' if holds else 'NOT'} {name}: {edit['oracle']} {figures}", flush=True)
    sys.exit(1 if wrong else 0)


def verdict(edit, found):
    """Of a fault, how much of its truth is found; of a benign change, whether there is an alarm."""
    violations = [one for one in found if one["severity"] == "violation"]
    if edit["kind"] == "benign":
        return "false alarm" if violations else "no alarm"
    truth = edit["truth"]
    if any(one["pitfall"] in edit["names"] for one in found):
        return "named"
    every = list(range(RANKS))
    ranks = [every if truth["ranks"] == "all" else truth["ranks"], *([every] if truth.get("either") else [])]
    for one in violations:
        first = one.get("after", one["step"])  # it began after that one, which is the last that was looked at before
        near = truth["step"] is None or (one["step"] is not None
                                         and first - STEPS_APART <= truth["step"] <= one["step"] + STEPS_APART)
        if one["ranks"] in ranks and near:
            return "noticed, ranks and step right"
    return "noticed" if violations else "silent"


def score(programs, scores, key, names):
    from watched import told  # takes PACKAGE
    every, path = edits(programs.sources), results.FOLDER / f"{scores}.json"
    if not any(one["names"] for one in every.values() if one["kind"] == "fault"):
        sys.exit('fill in the faults\' "names" first')
    report = json.loads(path.read_text()) if path.exists() else {}
    scored = report.setdefault(key, {}).setdefault("edits", {})
    for name in names or every:
        if key == "first" and name in scored:
            sys.exit(f"{name} was watched before")
        edit = every[name]
        code, found = programs.watch(edit)
        scored[name] = {"kind": edit["kind"], "class": edit.get("class"), "truth": edit.get("truth"),
                        "exit": code, "found": found, "verdict": verdict(edit, found)}
        print(f"{name}: {scored[name]['verdict']}; exit {code}; {told(found)}", flush=True)
        report[key]["score"] = {}
        for one in scored.values():
            kind = report[key]["score"].setdefault(one["class"] or "benign", {})
            kind[one["verdict"]] = kind.get(one["verdict"], 0) + 1
        path.write_text(results.text(report), encoding="utf-8")
    print(report[key]["score"])


def command(words, usage):
    """`oracles SET ...` or `PACKAGE score KEY SET ...`: the key, or none for oracles; the set; the words behind it."""
    key = None
    if words[:1] == ["oracles"]:
        words = words[1:]
    elif words[1:2] == ["score"] and words[2:3] in (["first"], ["later"]):
        key, words = words[2], words[3:]
    else:
        sys.exit(usage)
    if not words or not list((HERE / words[0]).glob("*/*.json")):
        sys.exit(usage)
    return key, words[0], words[1:]


def ask(programs, scores, key, names):
    if key:
        score(programs, scores, key, names)
    else:
        oracles(programs, names)


def main():
    key, which, names = command(sys.argv[1:], __doc__)
    ask(Programs(HERE / which / "python"), f"{which}_python", key, names)


if __name__ == "__main__":
    main()
