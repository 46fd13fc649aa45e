"""Runs the programs of a set under `lockstep watch`, and scores what is said; or asks their oracles.

usage: python3 evaluation/sets.py PACKAGE oracles SET [NAME ...]      no trace is looked at
       python3 evaluation/sets.py PACKAGE score KEY SET [NAME ...]    KEY: first, later

PACKAGE is the folder that holds lockstep_torch, BUILD/python. A SET is

  eighth/python, eighth/cpp  small changes to right programs (sets/edits.py); C++'s are targets, set_eighth_BASE
  threads                    programs after other projects' issue threads; only they have no oracle
  twins                      the lessons' pitfalls as scripts; right-PROGRAM is one without a fault

oracles asks whether each program is what its truth says. A score goes to reports/results/SET.json under KEY. What
stands under "first" is from the first time that a program was ever watched, so a name may only be in it once; program
and truth were committed before. Later only pitfalls that are younger than the set are added to a truth's names. Exit
code of oracles: 0, 1 where one does not hold.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / path) for path in
                ("evaluation", "evaluation/sets", "python/tests", "lessons/python", "reports")]
import edit_oracles  # noqa: E402
import edits  # noqa: E402
import fold  # noqa: E402
import results  # noqa: E402
import scoring  # noqa: E402
import truths  # noqa: E402
from package import FOLDER, environment  # noqa: E402
from watched import started, watched  # noqa: E402

PLAIN_DEADLINE_S = 90  # torch may be long in coming


class Set:
    def is_proved(self, name, run):
        """Whether a watched run is what its truth says, where its program's oracle was asked."""
        return True


class Changes(Set):
    """`truths` has each name's truth. `watch` gives exit code, findings and what else is known of a run under watch."""

    def __init__(self, programs):
        self.programs, self.bases = programs, {}
        self.truths = {name: edit["truth"] for name, edit in programs.every.items()}

    def watch(self, name):
        edit = self.programs.every[name]
        with tempfile.TemporaryDirectory(prefix="lockstep-changes-") as folder:
            program, arguments = self.programs.written(folder, edit["base"], edit)
            code, found = watched(program, edits.attempts(edit["base"]), *arguments)
        return {"exit": code, "found": found}

    def proof(self, name):
        """Whether its oracle holds, and in words what that saw."""
        edit, base = self.programs.every[name], self.programs.every[name]["base"]
        if base not in self.bases:
            self.bases[base] = self.programs.bare(base, None)
            if edit_oracles.from_base(self.bases[base], self.programs.bare(base, None)) != 0:
                raise edits.EditError(f"{base} does not train the same twice; take out what is random")
        run, decide = self.programs.bare(base, edit), edit_oracles.ORACLES[edit["oracle"]]
        if run.code != 0 and decide is not edit_oracles.fails:
            return False, {"exit": run.code, "error": run.error}
        holds, figures = decide(self.bases[base], run)
        return holds, f"{edit['oracle']} {figures}"


class Threads(Set):
    def __init__(self):
        self.truths = json.loads((HERE / "threads" / "truths.json").read_text(encoding="utf-8"))

    def watch(self, name):
        code, found = watched(HERE / "threads" / f"{name}.py", self.truths[name].get("attempts", 1))
        return {"exit": code, "found": found}


class Twins(Set):
    RIGHT = "right-"
    PATHS = os.pathsep.join([str(ROOT / "lessons" / "python"), str(FOLDER)])

    def __init__(self):
        self.runs = {slug or self.RIGHT + program: (program, slug) for program, slug in truths.runs()}
        self.truths = {name: self.truth(slug) for name, (_, slug) in self.runs.items()}

    @staticmethod
    def truth(slug):
        if not slug:
            return {"kind": "benign"}
        calls = truths.TRUTHS[slug].get("calls")
        return {**truths.record_of(slug), "class": "needs a call" if calls else "needs no call"}

    def run(self, how, name):
        program, slug = self.runs[name]
        with tempfile.TemporaryDirectory(prefix="lockstep-twins-") as notes:
            code, found = how(fold.file_of(program), truths.ATTEMPTS.get(program, 1), TWIN_FAULT=slug, TWIN_NOTES=notes,
                              PYTHONPATH=self.PATHS, **truths.variables(program))
            return {"exit": code, "oracle": truths.judged(program, code, notes), "found": found}

    def watch(self, name):
        return self.run(watched, name)

    def is_proved(self, name, run):
        return truths.is_proved(self.runs[name][1], run["oracle"])

    def proof(self, name):
        result = self.run(plain, name)
        return self.is_proved(name, result), f"exit {result['exit']}, {result['oracle']}"


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


def set_of(name):
    """None where there is none."""
    which, _, language = name.partition("/")
    sources = HERE / "sets" / which / language
    if language == "python" and sources.is_dir():
        return Changes(edits.InPython(sources))
    if language == "cpp" and sources.is_dir():
        return Changes(edits.InCpp(sources, FOLDER.parent / "evaluation" / "sets" / which))
    return {"threads": Threads, "twins": Twins}.get(name, lambda: None)()


def verdict(truth, found):
    return scoring.verdict(scoring.Truth.of(truth), found)


def score_of(truths_of, runs):
    """{class, or benign: {verdict: how many}}"""
    classes = {}
    for name, run in runs.items():
        truth = truths_of[name]
        classes.setdefault(truth.get("class", truth["kind"]), []).append(run["verdict"])
    return {group: scoring.counts(words) for group, words in sorted(classes.items())}


def score(programs, which, key, names):
    path, unproved = results.file_of(which), []
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    part = report.setdefault(key, {"runs": {}})
    for name in names:
        if key == "first" and name in part["runs"]:
            sys.exit(f"{name} was watched before; name others, or ask for `score later`")
        run = programs.watch(name)
        part["runs"][name] = {"verdict": verdict(programs.truths[name], run["found"]), **run}
        told = [(one["severity"][0], one["pitfall"], one["ranks"], one["step"]) for one in run["found"]]
        print(f"{name}: {part['runs'][name]['verdict']}; exit {run['exit']}; {told}", flush=True)
        if not programs.is_proved(name, run):
            unproved.append(name)
        part["score"] = score_of(programs.truths, part["runs"])
        path.write_text(results.text(report), encoding="utf-8")
    print(part["score"])
    if unproved:
        sys.exit(f"not what its truth says, by its oracle: {', '.join(unproved)}; mend it, or run it again")


def oracles(programs, names):
    wrong = 0
    for name in names:
        holds, figures = programs.proof(name)
        wrong += not holds
        print(f"{'ok' if holds else 'NOT'} {name}: {figures}", flush=True)
    sys.exit(1 if wrong else 0)


def main(words):
    asked = {("oracles",): 1, ("score", "first"): 2, ("score", "later"): 2}
    begin = next((begin for begin in asked if tuple(words[:len(begin)]) == begin), None)
    if begin is None or len(words) <= asked[begin]:
        sys.exit(__doc__)
    which, *names = words[asked[begin]:]
    programs = set_of(which)
    if programs is None or (begin == ("oracles",) and not hasattr(programs, "proof")):
        sys.exit(f"there is no such set: {which}; there are eighth/python, eighth/cpp, twins and, to score, threads")
    unknown = [name for name in names if name not in programs.truths]
    if unknown:
        sys.exit(f"{which} has no {', '.join(unknown)}; there are: {', '.join(programs.truths)}")
    try:
        if begin == ("oracles",):
            oracles(programs, names or list(programs.truths))
        score(programs, which, begin[1], names or list(programs.truths))
    except edits.EditError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
