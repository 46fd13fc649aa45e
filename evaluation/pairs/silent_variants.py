"""Every broken variant that ends normally, compared with the correct one of its part: what differs first, and when.

usage: python3 evaluation/pairs/silent_variants.py [--build FOLDER] [--kept FOLDER] [--only 03_ddp,...] [--out FILE]

What should be found stands in truths.json beside this file, written by somebody who did not write the comparison:
{"LESSON/VARIANT": {"against": "CORRECT", "kind": an aspect or a list of them, "step": N or null}}. A run counts as exact
where the kind is right and the step is within one probe interval of the truth's; as kind-only where the step is not; as
other-kind; as nothing where no difference is found; as no-event where the truth is that no kind shows it. --kept keeps the
recorded runs there, and takes those that are there.
Exit code: 0; 3 where something could not be run.
"""

import json
import pathlib
import tempfile

import runs  # it says where `results` is
import results

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TRUTHS = pathlib.Path(__file__).resolve().parent / "truths.json"
CELLS = ("exact", "kind-only", "other-kind", "nothing", "no-event", "no-truth")


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


def cell_of(truth, found):
    if truth is None:
        return "no-truth"
    if truth["kind"] is None:
        return "no-event"
    if found["first"] is None:
        return "nothing"
    kinds = truth["kind"] if isinstance(truth["kind"], list) else [truth["kind"]]
    if found["first"] not in kinds:
        return "other-kind"
    if truth["step"] is None:
        return "exact"
    before, behind = interval_around(truth["step"])
    return "exact" if before <= found["step"] <= behind else "kind-only"


def first_in(said):
    """Kind, step and words of the first difference, and what else differs."""
    differ = {each["aspect"]: each["first"] for each in said["aspects"] if each["first"]}
    first = differ.get(said["first"])
    return {"answer": said["answer"], "first": said["first"], "step": first and first["step"], "what": first and first["what"],
            "also": {name: each["step"] for name, each in differ.items() if name != said["first"]}}


def against(variants, part):
    """The correct variant of a part."""
    return next(name for name, run in variants.items() if run["part"] == part and run["kind"] == "correct")


def main():
    parser = runs.parser_of(__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "results" / "compare_silent.json")
    options = parser.parse_args()
    course = options.course or options.build / "lockstep-course"
    truths = json.loads(TRUTHS.read_text(encoding="utf-8")) if TRUTHS.is_file() else {}

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
                one["cell"] = cell_of(truths.get(key), one)
                found[key] = one
                print(f"{key:55} {one['cell']:11} {one['first'] or one['answer']} {one['step']}", flush=True)
    count = {cell: sum(one["cell"] == cell for one in found.values()) for cell in CELLS}
    print(", ".join(f"{cell} {number}" for cell, number in count.items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(results.text({"schema_version": 1, "count": count, "runs": found}), encoding="utf-8")


if __name__ == "__main__":
    main()
