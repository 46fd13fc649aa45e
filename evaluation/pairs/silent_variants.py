"""Every broken variant that ends normally, compared with the correct one of its part: what differs first, and when.

usage: python3 evaluation/pairs/silent_variants.py [--build FOLDER] [--kept FOLDER] [--only 03_ddp,...] [--out FILE]

What should be found stands in truths.json beside this file, written by somebody who did not write the comparison: `names` are
equations, and a step is right within one probe interval. A run is
"not applicable" where no equation can show it, and "skipped" where it has no truth. --kept keeps the recorded runs there,
and takes those that are there.
Exit code: 0; 3 where something could not be run.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile

import runs  # it says where `results` is
import results

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import scoring  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TRUTHS = pathlib.Path(__file__).resolve().parent / "truths.json"


def is_probed(step):
    """Where values are recorded: ProbeOptions of record/probes.h."""
    return step <= 4 or (step % 64 == 0 if step > 64 else step & (step - 1) == 0)


def interval_around(step):
    """The probed steps before and behind a step that is not probed; else those beside it."""
    before, behind = step - 1, step + 1
    while before > 0 and not is_probed(before):
        before -= 1
    while not is_probed(behind):
        behind += 1
    return before, behind


def verdict(record, found):
    """Ranks are not asked for."""
    if record is None:
        return "skipped"
    truth = dataclasses.replace(scoring.Truth.of(record), ranks=None)
    if record["step"] is not None:
        truth = dataclasses.replace(truth, steps=interval_around(record["step"]))
    said = [{"pitfall": found["first"], "severity": "violation", "ranks": [], "step": found["step"]}] if found["first"] else []
    return scoring.verdict(truth, said)


def first_in(said):
    """Equation, step and words of the first difference, and what else differs."""
    differ = {line["equation"]: line for line in said["ledger"] if line["standing"] == "broken"}
    first = differ.get(said["first"])
    return {"answer": said["answer"], "first": said["first"], "step": first and first["step"],
            "what": first and first["broken_by"][0],
            "also": {name: each["step"] for name, each in differ.items() if name != said["first"]}}


def against(variants, part):
    """The correct variant of a part."""
    return next(name for name, run in variants.items() if run["part"] == part and run["kind"] == "correct")


def main():
    parser = runs.parser_of(__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "results" / "compare_silent.json")
    options = parser.parse_args()
    course = options.course or options.build / "lockstep-course"
    truths = json.loads(TRUTHS.read_text(encoding="utf-8"))

    found = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-silent-") as folder:
        kept = options.kept or pathlib.Path(folder)
        for program in runs.programs_in(options.build / "bin"):
            if options.only and program.name not in options.only:
                continue
            variants = runs.record(program, kept)
            for name, run in variants.items():
                if run["kind"] != "broken" or run["outcome"] != "completed":
                    continue
                key = f"{program.name}/{name}"
                right = truths.get(key, {}).get("against") or against(variants, run["part"])
                said, _ = runs.compare(course, kept / program.name / right, kept / program.name / name)
                one = {"against": right, **first_in(said)}
                one["verdict"] = verdict(truths.get(key), one)
                found[key] = one
                print(f"{key:55} {one['verdict']:14} {one['first'] or one['answer']} {one['step']}", flush=True)
    count = scoring.counts(one["verdict"] for one in found.values())
    print(", ".join(f"{word} {number}" for word, number in count.items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(results.text({"schema_version": 1, "count": count, "runs": found}), encoding="utf-8")


if __name__ == "__main__":
    main()
