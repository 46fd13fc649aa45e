"""Whether lessons say the same after a change as before it: both builds run every variant; what was judged is compared.

usage: python3 tests/lessons/compare_builds.py BEFORE AFTER [LESSON[:VARIANT] ...] [--ranks default,3] [--deadline S] [--blind]

BEFORE and AFTER are folders of lesson programs: copy build/clang-2.11.0/bin away before you change a lesson. Compared
are verdict, outcome, oracles, losses, accuracy and findings (pitfall, severity, ranks, step). It prints a line for each
difference, then a count. Where two runs differ, BEFORE runs once more: a field in which it differs from itself varies,
which is said and not counted.

--blind: AFTER's programs record nothing (tests/lessons). Findings must be none, and the verdict, which needs them, may
differ; all else must be as BEFORE.

Exit code: 0 all are equal; 1 some differ, or a run left no report; 3 programs are missing.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

MEASURED = ("outcome", "oracles", "losses", "reference_losses", "accuracy")
END_S = 20  # for a launcher to end its ranks


def call(command, deadline):
    """(exit code, output); a launcher that is late is asked to end its ranks, and is then killed."""
    with subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
        try:
            said = process.communicate(timeout=deadline)[0]
            return process.returncode, said
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return None, f"no end within {deadline} s"


def described(program, deadline):
    code, said = call([program, "--describe"], deadline)
    if code != 0:
        raise OSError(f"{program} --describe exited with {code}: {said}")
    return [variant["name"] for variant in json.loads(said)["variants"]]


def report_of(program, variant, ranks, deadline):
    """What is compared of one run. Of a run without a report: how it ended."""
    with tempfile.TemporaryDirectory(prefix="lockstep-compare-") as folder:
        file = pathlib.Path(folder) / "report.json"
        code, said = call([program, "--variant", variant, "--json", file,
                           *(() if ranks == "default" else ("--world-size", ranks))], deadline)
        if not file.is_file():
            return {"report": f"none (exit code {code}: {' '.join(said.split())[-200:]})"}
        one = json.loads(file.read_text(encoding="utf-8"))["variants"][0]
    return {"report": "there", "verdict": one["verdict"], **{name: one.get(name) for name in MEASURED},
            "findings": [{name: each.get(name) for name in ("pitfall", "severity", "ranks", "step")}
                         for each in one["findings"]]}


def first_difference(before, after, at=""):
    """(where, what it was, what it is), or None."""
    if before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        pairs = [(f"{at}.{key}", before[key], after[key]) for key in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"{at}[{i}]", *pair) for i, pair in enumerate(zip(before, after))]
    else:
        return at, before, after
    return next(found for path, *pair in pairs if (found := first_difference(*pair, path)))


def differences(before, after, blind=False):
    """{field: one line}"""
    found = {}
    for field in sorted(before.keys() | after.keys()):
        was, now = before.get(field), after.get(field)
        if blind and field == "findings":
            was = []  # whatever it was
        if was != now and not (blind and field == "verdict"):
            where, was, now = first_difference(was, now, field)
            found[field] = f"{where}: {json.dumps(was)} -> {json.dumps(now)}"
    return found


class Comparison:
    def __init__(self, options):
        self.options = options
        self.runs = self.different = self.varying = 0

    def compare(self, lesson, variant, ranks):
        before, after = (folder / lesson for folder in (self.options.before, self.options.after))
        first, second = (report_of(program, variant, ranks, self.options.deadline) for program in (before, after))
        found = differences(first, second, self.options.blind)
        again = differences(first, report_of(before, variant, ranks, self.options.deadline)) if found else {}
        varies = (found.keys() & again.keys()) - ({"findings"} if self.options.blind else set())
        if first["report"] != "there" or second["report"] != "there":
            found["report"], varies = found.get("report", first["report"]), varies - {"report"}
        self.runs += 1
        self.varying += bool(varies)
        self.different += bool(found.keys() - varies)
        for field, line in found.items():
            print(f"{lesson} {variant} ({ranks} ranks) {line}{' (varies)' if field in varies else ''}", flush=True)

    def compare_lesson(self, lesson, wanted):
        before = after = wanted
        if not wanted:
            before, after = (described(folder / lesson, self.options.deadline)
                             for folder in (self.options.before, self.options.after))
        for variant in before + [name for name in after if name not in before]:
            if variant in before and variant in after:
                for ranks in self.options.ranks.split(","):
                    self.compare(lesson, variant, ranks)
            else:
                self.runs, self.different = self.runs + 1, self.different + 1
                print(f"{lesson} {variant}: only {'before' if variant in before else 'after'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("what", nargs="*", metavar="LESSON[:VARIANT]", help="default: every lesson of BEFORE")
    parser.add_argument("--ranks", default="default,3", help="world sizes, 'default' for the lesson's own")
    parser.add_argument("--deadline", type=float, default=240, help="seconds for one run")
    parser.add_argument("--blind", action="store_true")
    options = parser.parse_args()

    wanted = {}
    for each in options.what or sorted(path.name for path in options.before.glob("[0-9][0-9]_*")):
        lesson, _, variant = each.partition(":")
        wanted.setdefault(lesson, []).extend([variant] if variant else [])
    comparison = Comparison(options)
    try:
        for lesson, variants in wanted.items():
            comparison.compare_lesson(lesson, variants)
        if not wanted:
            raise OSError(f"there is no lesson in {options.before}")
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3)
    print(f"{comparison.runs} runs compared: {comparison.different} differ"
          + (f", {comparison.varying} vary by themselves" if comparison.varying else ""))
    sys.exit(1 if comparison.different else 0)


if __name__ == "__main__":
    main()
