"""Scores our detectors, or a checker of yours, on recorded runs whose truth is known: ./lockstep matrix (docs/arena.md)

A checker is given copies of a run's traces and nothing else: no truth, no name, no path that tells. It prints
{"findings": [{"pitfall", "ranks", "step", "severity"}]} on stdout (the last three may be missing; severity is
violation or advice), or {"not_triggered": true}. Anything else, an exit code above 1, and no answer within the
deadline is an error. Exit codes: 0 nothing is wrong, 1 a run was scored wrong, 2 usage, 3 what cannot be read, a
checker that cannot be started, or no run that could be scored.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import scoring
from scoring import ScoreError

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "reports" / "html"))
import files  # noqa: E402

SCHEMAS = ROOT / "reports" / "schema"
LEVELS = (0, 1, 2)  # what our detectors are shown: the backend alone, no samples and metrics, everything
DETECTORS_S = 600  # of our detectors, for each run
NOT_STARTED = (126, 127)  # by which a shell says that it has started nothing
FINDING = {"type": "object", "required": ["pitfall"], "properties": {
    "pitfall": {"type": "string"}, "severity": {"enum": ["violation", "advice"]}, "step": {"type": "integer"},
    "ranks": {"type": "array", "items": {"type": "integer"}}}}
ANSWER = {"type": "object", "properties": {"findings": {"type": "array", "items": FINDING}}, "anyOf": [
    {"required": ["findings"]}, {"required": ["not_triggered"], "properties": {"not_triggered": {"const": True}}}]}


def read_json(file, schema, hint, required=()):
    """A file, checked against a schema of reports/schema."""
    import jsonschema
    try:
        value = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        rules = json.loads((SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))
        rules["required"] += required
        known = rules["properties"]["schema_version"]["const"]
        if isinstance(value, dict) and value.get("schema_version", known) != known:
            raise ScoreError(f"{file}: version {value['schema_version']}; this Lockstep reads {known}. {hint}")
        jsonschema.validate(value, rules, jsonschema.Draft202012Validator)
    except jsonschema.ValidationError as error:
        raise ScoreError(f"{file}: {error.json_path}: {error.message}. {hint}") from None
    except (OSError, ValueError) as error:
        raise ScoreError(f"{file}: {error}. {hint}") from None
    return value


class SameName(ScoreError):
    """Two runs cannot be told apart."""


@dataclasses.dataclass(frozen=True)
class Case:
    folder: pathlib.Path
    record: dict

    @property
    def truth(self):
        """The step is the lessons' own, and must be met."""
        return scoring.Truth.of(self.record, before=0, behind=0)


def find_cases(folders):
    """Every run at or below these folders that has a truth.json, by name."""
    cases, makes = {}, "./lockstep run all --trace FOLDER makes one for each variant"
    for top in map(pathlib.Path, folders):
        if not top.is_dir():
            raise ScoreError(f"there is no folder {top}; name one with recorded runs")
        for file in sorted(top.rglob("truth.json")):
            record = read_json(file, "truth", makes, ["schema_version", "name"])
            other = cases.setdefault(record["name"], Case(file.parent, record))
            if other.folder != file.parent:
                raise SameName(f"two runs are called {record['name']}: {other.folder} and {file.parent}; name one")
    if not cases:
        raise ScoreError(f"no truth.json in or below {folders[0]}: {makes}")
    return [case for _, case in sorted(cases.items())]


@functools.cache
def level_needed(name):
    """The level from which on our detector of this pitfall can see it, by its page; 0 where it has none."""
    levels = [re.search(r"^level: (\d)$", page.read_text(encoding="utf-8"), re.MULTILINE)
              for page in ROOT.glob(f"lessons/*/pitfalls/{name}.md")]
    return int(levels[0][1]) if levels and levels[0] else 0


def findings_of(said):
    return [{"pitfall": one["pitfall"], "severity": one.get("severity", "violation"), "ranks": one.get("ranks", []),
             "step": one.get("step", -1)} for one in said.get("findings", [])]


def diagnosed(course, folder, level):
    """What lockstep-course says of a folder of traces, shown so much of them."""
    done = subprocess.run([course, "diagnose", "--json", "--level", str(level), folder], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=DETECTORS_S)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise ScoreError(f"{folder} could not be diagnosed (exit code {done.returncode}): "
                         f"{' '.join(done.stderr.split())}") from None  # it was wrapped for a terminal


def ask_detectors(course, case, level):
    """(findings, state, reason). Not triggered: this pitfall's detector lacked what it needs; of a right run, all did."""
    said, names = diagnosed(course, case.folder, level), case.record.get("names")
    looked = any(row["state"] != "not-triggered" for row in said["detectors"] if names is None or row["slug"] in names)
    return findings_of(said), "answered" if looked else "not triggered", ""


def ended_in_time(command, deadline):
    """The shell's exit code and output; None where it had to be ended. What it has started ends with it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # what is left would keep a pipe open
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True) as job:
            try:
                code = job.wait(deadline)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read(files.MOST).decode("utf-8", "replace"))
        return code, *said


def ask_program(command, case, deadline):
    """As ask_detectors."""
    with tempfile.TemporaryDirectory(prefix="lockstep-case-") as blind:
        traces = sorted(case.folder.rglob("*.trace"))
        if not traces:
            raise ScoreError(f"{case.folder}: a truth.json and no trace; record this run again")
        for trace in traces:
            target = pathlib.Path(blind) / trace.relative_to(case.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(trace, target)
        code, out, err = ended_in_time(["/bin/sh", "-c", command + ' "$0"', blind], deadline)
    if code is None:
        return [], "error", f"no answer in {deadline} s"
    if code not in (0, 1):
        return [], "not started" if code in NOT_STARTED else "error", f"exit code {code} {(out + err).strip()[-500:]}"
    import jsonschema
    try:
        said = json.loads(out)
        jsonschema.validate(said, ANSWER)
    except (ValueError, jsonschema.ValidationError) as error:
        return [], "error", f"what it printed: {getattr(error, 'message', error)}"
    return findings_of(said), "not triggered" if said.get("not_triggered") else "answered", ""


def run_of(case, level, answer):
    findings, state, reason = answer
    truth = case.truth
    if level is not None and any(level_needed(name) > level for name in truth.names):
        truth = dataclasses.replace(truth, applicable=False)  # what takes more than is shown cannot be asked for
    record = case.record
    return {"name": record["name"], "class": record.get("class", ""), "kind": record["kind"],
            "names": record.get("names", []), "ranks": record.get("ranks"), "step": record.get("step"),
            "verdict": scoring.verdict(truth, findings, state), "findings": findings, "reason": reason}


def by_detectors(course, folders, level=LEVELS[-1]):
    """The runs, scored for our detectors of this build."""
    cases = find_cases(folders)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda case: ask_detectors(course, case, level), cases))
    return [run_of(case, level, answer) for case, answer in zip(cases, answers)]


def by_program(command, folders, deadline):
    runs = []
    for case in find_cases(folders):
        answer = findings, state, reason = ask_program(command, case, deadline)
        if state == "not started":
            if not runs:
                raise ScoreError(f"the checker could not be started: {command}: {reason}")
            answer = findings, "error", reason
        runs.append(run_of(case, None, answer))
    return runs


def scored(runs):
    return [(run["kind"] == "fault", run["verdict"]) for run in runs]


def beside(runs, measured):
    """PyTorch's own means beside ours: of each pitfall what each said (None: not asked; ours is the worst of its runs),
    and the totals over the pitfalls that were asked of ours. False alarms are of all right runs; of a means, of the
    twins'."""
    means = [name for name in measured["checkers"] if name != "lockstep"]
    asked = lambda word: None if word in scoring.NOT_ASKED else word
    ours = {}
    for run in runs:
        for name in run["names"] if asked(run["verdict"]) else []:
            ours[name] = max(run["verdict"], ours.get(name, run["verdict"]), key=scoring.VERDICTS.index)
    rows, columns = {}, {name: [] for name in ("ours", *means)}
    columns["ours"] = [one for one in scored(runs) if not one[0]]
    for case in measured["cases"]:
        said = {name: case["cells"][name] for name in means}
        cells = {"ours": ours.get(case["slug"]), **{name: asked(said[name]["broken"]["verdict"]) for name in means}}
        rows[case["slug"]] = cells
        if cells["ours"]:
            for name, word in cells.items():
                columns[name] += [(True, word)] if word else []
                columns[name] += [(False, said[name]["correct"]["verdict"])] if name in means else []
    source = f"PyTorch {measured['torch']}, {measured['backend']}, {measured['world_size']} ranks, {measured['date']}"
    return {"source": source, "pitfalls": dict(sorted(rows.items())),
            "totals": {name: scoring.totals(words) for name, words in columns.items()}}


def table(rows):
    widths = [max(map(len, column)) + 2 for column in zip(*rows)]
    return ["".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows]


SHARES = {"exact": "exact", "named": "named", "noticed": "noticed", "false alarms": "false_alarms"}


def in_words(result):
    lines = []
    for run in result["runs"]:
        said = ", ".join(one["pitfall"] + " (advice)" * (one["severity"] == "advice") for one in run["findings"])
        lines.append(": ".join(filter(None, (f"{run['verdict']:31}{run['name']}", said, run["reason"]))))
    totals = result["totals"]
    lines.append(f"{result['checker']}, level {result['level']}")
    lines += table([["", word, str(number)] for word, number in totals["verdicts"].items()] +
                   [["", label, scoring.share_text(totals[key])] for label, key in SHARES.items()])
    unseen = scored(result["runs"]).count((False, "not triggered"))
    if unseen:
        plural = "s" * (unseen > 1)
        lines.append(f"note: {unseen} healthy run{plural} could not be looked at: neither right nor wrong")
    return "\n".join([*lines, *(beside_in_words(result["beside"]) if "beside" in result else [])])


def beside_in_words(one):
    rows = [["", slug, *(word or "-" for word in words.values())] for slug, words in one["pitfalls"].items()]
    labels = [label for label in SHARES if label != "exact"]
    shares = [["", name, *(scoring.share_text(totals[SHARES[label]]) for label in labels)]
              for name, totals in one["totals"].items()]
    return [f"beside PyTorch's own means ({one['source']}), on the lessons' programs in Python; ours is the worst of a pitfall's "
            "runs", *table([["", "", *one["totals"]], *rows]), "of those that were asked of ours",
            *table([["", "", *labels], *shares])]


def score(options):
    measured = None
    if options.beside:
        measured = read_json(options.beside, "side_by_side",
                             "evaluation/pytorch_means/side_by_side.py --out FILE makes such a file")
    if options.checker is None:
        runs = by_detectors(options.course, options.folder, options.level)
    else:
        runs = by_program(options.checker, options.folder, options.deadline)
    result = {"schema_version": 2, "checker": options.checker or "lockstep diagnose", "level": options.level,
              "runs": runs, "totals": scoring.totals(scored(runs))}
    if measured:
        result["beside"] = beside(runs, measured)
    print(in_words(result))
    if options.json:
        files.write(options.json, json.dumps(result, indent=2) + "\n")
    words = scored(runs)
    if all(word in scoring.NOT_ASKED or (not fault and word == "not triggered") for fault, word in words):
        raise ScoreError("nothing was scored: no run could be looked at, or show its pitfall; name other runs")
    return any(scoring.is_wrong(*one) for one in words)


def main(arguments):
    parser = argparse.ArgumentParser(prog="lockstep matrix",
                                     description="Score what names pitfalls on recorded runs whose truth is known")
    parser.add_argument("folder", nargs="+",
                        help="has runs in or below it, as ./lockstep run all --trace FOLDER makes them")
    parser.add_argument("--checker", help="a command to score, given a folder of traces, in place of our own detectors")
    parser.add_argument("--deadline", type=int, default=60, metavar="S", help="seconds for each answer of it (60)")
    parser.add_argument("--level", type=int, default=LEVELS[-1], choices=LEVELS,
                        help="what our detectors are shown: 0 the backend alone, 1 no samples and metrics, "
                             "2 everything (the default)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="a file for the whole matrix")
    parser.add_argument("--beside", metavar="FILE",
                        help="a table of PyTorch's own means, as reports/results/side_by_side.json, for columns beside")
    parser.add_argument("--course", default="", help=argparse.SUPPRESS)  # lockstep-course
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)  # refuses what it would refuse
    options = parser.parse_args(arguments)
    if options.checker == "":
        parser.error("--checker names no command")
    if options.checker and options.level != LEVELS[-1]:
        parser.error("--level is for our own detectors; a checker is given whole traces")
    if not 1 <= options.deadline <= 3600:
        parser.error(f"--deadline {options.deadline}: from 1 to 3600 seconds")
    if options.dry_run:
        return 0
    try:
        return int(score(options))
    except (ScoreError, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SameName) else 3
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
