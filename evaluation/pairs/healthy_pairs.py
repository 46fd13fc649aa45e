"""How far two right runs of one training are apart: what the tolerance of `lockstep compare` is measured by.

usage: python3 evaluation/pairs/healthy_pairs.py [--build FOLDER] [--course PROGRAM] [--kept FOLDER] [--only 03_ddp,...]
       [--package FOLDER] [--json FILE]

Every correct variant of every lesson is recorded on 2 ranks, and again in other ways that must train the same:

  again       as it was: equal to the bit
  kernels     with torch's and MKL's kernels for old processors, which add in another order
  ranks 1, 4  with another number of ranks; counted where each step's ids, over all ranks, are the same

With --package FOLDER (the built Python package) also the pairs of watched_pairs.py: Python's trainings on other numbers of
ranks and beside C++'s, and the right programs of evaluation/sets/eighth/python. --only then takes the names of their groups, too.

Of each pair, what `compare` says, and of each quantity the largest distance in units of its tolerance. The factors in
common/lockstep/diagnose/tolerance.cpp are at least ten times what is needed: "largest" must stay below 0.1.
Exit code: 0 all pairs are equal, to the bit where they must be, else to rounding; 1 some are not, or are nearer to the
tolerance; 3 something could not be run.
"""

import collections
import itertools
import pathlib
import sys
import tempfile

import runs  # it says where `results` is
import results
import watched_pairs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MARGIN = 10
WAYS = {"again": (2, {}), "kernels": (2, watched_pairs.OLD_KERNELS), "ranks 1": (1, {}), "ranks 4": (4, {})}  # ranks, environment


def of_lessons(course, programs, kept, left_out):
    """The pairs of each lesson's correct variants. `left_out` gets those whose other number of ranks is another training."""
    for program in programs:
        first = runs.record(program, kept / "first", "correct", 2)
        for way, (ranks, environment) in WAYS.items():
            where = kept / way.replace(" ", "_")
            other = runs.record(program, where, "correct", ranks, **environment)
            for name, run in first.items():
                if run["outcome"] != "completed" or other.get(name, {}).get("outcome") != "completed":
                    continue
                said, _ = runs.compare(course, kept / "first" / program.name / name, where / program.name / name)
                if ranks != 2 and not same_batches(said):
                    left_out.append(f"{program.name}/{name}, {way}")
                else:
                    yield {"program": f"{program.name}/{name}", "way": way, **judged(said)}


def of_python(course, options, kept):
    """The pairs of Python's jobs; of the groups that are wanted, or all."""
    for one in watched_pairs.pairs(course, options.package, options.build, kept, options.only):
        yield {"program": one["program"], "way": one["way"], "to_the_bit": one["to_the_bit"], **judged(one["said"])}


def judged(said):
    """The largest distance of each equation, over its tolerance, and how far that tolerance went."""
    largest = {}
    for measured in said["measured"]:
        # A figure's tolerance is a count of samples.
        shares = [each["distance"] / each["tolerance"] for each in measured["distances"] if each["tolerance"] > 0]
        if shares and measured["equation"] != "joined-figures":
            largest[measured["equation"]] = max(shares)
    steps = {step for measured in said["measured"] for step in measured["steps"]}
    return {"answer": said["answer"], "first": said["first"], "steps": max(steps, default=-1), "largest": largest}


def same_batches(said):
    """Whether each step's ids were the same: another number of ranks is the same training only then."""
    standing = {line["equation"]: line["standing"] for line in said["ledger"]}
    held = standing["own-samples"] == standing["new-order"] == "held"
    return held and said["a"]["updates"] == said["b"]["updates"] > 0


def main():
    parser = runs.parser_of(__doc__)
    parser.add_argument("--package", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "reports" / "out" / "compare_pairs.json")
    options = parser.parse_args()
    course = options.course or options.build / "lockstep-course"

    pairs, left_out = [], []
    with tempfile.TemporaryDirectory(prefix="lockstep-pairs-") as folder:
        kept = options.kept or pathlib.Path(folder)
        programs = [each for each in runs.programs_in(options.build / "bin") if not options.only or each.name in options.only]
        watched = of_python(course, options, kept) if options.package else []
        for pair in itertools.chain(of_lessons(course, programs, kept, left_out), watched):
            pairs.append(pair)
            print(f"{pair['program']}, {pair['way']}: {pair['answer']} {pair['first'] or ''} "
                  f"{max(pair['largest'].values(), default=0):.3f}", flush=True)
    largest = {}
    for pair in pairs:
        for equation, share in pair["largest"].items():
            largest[equation] = max(largest.get(equation, 0), share)
    count = {answer: sum(pair["answer"] == answer for pair in pairs)
             for answer in ("equal", "rounding", "different", "undecided")}
    ways = {}
    for pair in pairs:
        ways.setdefault(pair["way"], collections.Counter())[pair["answer"]] += 1
    print(f"{len(pairs)} pairs: {count}; largest distance over its tolerance: {largest}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(results.text({"schema_version": 1, "margin": MARGIN, "count": count, "ways": ways,
                                          "largest": largest, "left_out": len(left_out)}), encoding="utf-8")
    right = not count["different"] and all(share <= 1 / MARGIN for share in largest.values())
    for pair in pairs:
        if pair.get("to_the_bit") and pair["answer"] != "equal":
            print(f"not equal to the bit: {pair['program']}, {pair['way']}")
            right = False
    return 0 if right and pairs else 1


if __name__ == "__main__":
    sys.exit(main())
