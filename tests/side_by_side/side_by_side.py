"""The same faults under PyTorch's own means and under our detectors, in one table: case x checker.

usage: side_by_side.py [--only SLUG,...] [--build DIR] [--cache DIR] [--fresh] [--out FILE] [--markdown FILE]
                       [--traincheck FILE]

Runs every Python twin (twins/) in both variants under each of PyTorch's means (means.py), for real, and judges what they
gave by written rules (rules.py). Beside it stand our detectors, on the C++ lesson's variant of the same pitfall, scored
by `lockstep matrix`; without a built DIR they are skipped. What has been run is kept in the cache, raw output
included, and not run again: a stopped run goes on, and judging again runs nothing. What our detectors scored is kept
by a hash of lockstep-course, so that no other build's scores are taken. Exit codes: 0, 1 where a
twin's oracle does not hold on the correct variant or holds on the broken one, 2 usage.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import pathlib
import shutil
import subprocess
import sys
import tempfile

import means
import report
import rules
from job import load_data
from twins import load_all

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import detectors  # noqa: E402

AT_ONCE = 3  # twins; they wait a lot
SEEDS = range(1, 6)  # of the correct variant, for the spread of its curve
LESSON_DEADLINE_S = 120
WORST_FIRST = ("false-alarm", "error", "clean", "not-triggered", "not-applicable", "skipped")


def runs_of(slug, data, cache):
    """Every run of a twin: {means: {variant: run}}, and the correct variant's with other seeds."""
    def kept(broken, name, seed):
        file = cache / f"{slug}.{'broken' if broken else 'correct'}.{name}.{seed}.json"
        if not file.exists():
            done = means.run(slug, broken, name, seed, data)
            part = file.with_suffix(".part")
            part.write_text(json.dumps(done))
            part.rename(file)
        return json.loads(file.read_text())
    variants = {name: {variant: kept(variant == "broken", name, 0) for variant in ("broken", "correct")} for name in means.MEANS}
    return variants, [kept(False, "plain", seed) for seed in SEEDS]


def judged(twin, variants, references):
    """{checker: {variant: Verdict}} and whether the oracle told the variants apart."""
    plain = variants["plain"]
    cells = {name: {"broken": rules.judge_broken(runs["broken"], plain["broken"], runs["correct"], twin),
                    "correct": rules.judge_correct(runs["correct"], plain["correct"])} for name, runs in variants.items()}
    cells["loss-curve"] = {variant: rules.judge_curve(plain[variant], references) for variant in ("broken", "correct")}
    return cells, plain["correct"]["holds"] and not plain["broken"]["holds"]


def lesson_traces(build, slugs, folder):
    """Runs the C++ lessons' broken variants of these slugs, and the correct variants of those lessons."""
    for lesson in sorted((build / "bin").glob("[0-9][0-9]_*")):
        asked = sorted({page.stem for page in (ROOT / "lessons" / lesson.name / "pitfalls").glob("*.md")} & set(slugs))
        for variant in [*asked, *(["correct"] if asked else [])]:
            subprocess.run([lesson, "--variant", variant, "--world-size", "2", "--trace", folder / variant],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           timeout=LESSON_DEADLINE_S, check=False)


def ours(build, slugs):
    """{slug: {variant: cell}} of our detectors on the lessons; nothing for lessons that are not built."""
    if not slugs:
        return {}
    with tempfile.TemporaryDirectory(prefix="lockstep-side-by-side-") as name:
        folder = pathlib.Path(name)
        lesson_traces(build, slugs, folder)
        if not any(folder.iterdir()):
            return {}
        scored = detectors.score(build, folder, folder / "matrix.json", timeout=120)["runs"]
    cells = {}
    for slug in slugs:
        broken = [run["cell"] for run in scored if run["pitfall"] == slug]
        healthy = [run["cell"] for run in scored
                   if run["pitfall"] is None and run["family"] == load_all()[slug].family]
        if broken and healthy:
            cells[slug] = {"broken": broken[0], "correct": min(healthy, key=WORST_FIRST.index)}
    return cells


def ours_kept(build, slugs, cache):
    """What these detectors scored, and nothing without any."""
    if not (build / "lockstep-course").exists():
        return {}
    file = cache / f"lockstep.{detectors.key(build)}.json"
    if not file.exists() and any(cache.glob("lockstep*.json")):
        print("there are scores of other detectors in the cache, which are not taken", file=sys.stderr)
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept |= ours(build, [slug for slug in slugs if slug not in kept])
    if kept:
        file.write_text(json.dumps(kept))
    return {slug: {variant: rules.Verdict(cell) for variant, cell in variants.items()} for slug, variants in kept.items()}


def measure(slugs, arguments):
    cache = arguments.cache
    if arguments.fresh:
        shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    data, cases = load_data(), []
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(AT_ONCE, mp_context=fork) as pool:
        waiting = {slug: pool.submit(runs_of, slug, data, cache) for slug in slugs}
        for slug, future in waiting.items():
            twin = load_all()[slug]
            variants, references = future.result()
            cells, proved = judged(twin, variants, references)
            runs = [run for both in variants.values() for run in both.values()] + references
            cases.append({"slug": slug, "family": twin.family, "proved": proved, "cells": cells,
                          "seconds": sum(run["seconds"] for run in runs)})
            print(f"{slug:<40}" + " ".join(f"{each['broken'].cell:<13}" for each in cells.values())
                  + ("" if proved else "NOT PROVED"), file=sys.stderr, flush=True)
    beside = ours_kept(arguments.build, slugs, cache)
    skipped = {variant: rules.Verdict("skipped") for variant in ("broken", "correct")}
    for case in cases:
        case["cells"]["lockstep"] = beside.get(case["slug"], skipped)
    return sorted(cases, key=lambda case: (case["family"], case["slug"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="slugs, separated by commas")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev", help="where lessons are built")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "reports" / "out" / "side_by_side")
    parser.add_argument("--fresh", action="store_true", help="run everything again")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "out" / "side_by_side.json")
    parser.add_argument("--markdown", type=pathlib.Path, default=None)
    parser.add_argument("--traincheck", type=pathlib.Path, help="what traincheck/measure.py wrote, to be taken along",
                        default=ROOT / "reports" / "out" / "side_by_side_traincheck.json")
    arguments = parser.parse_args()
    known = load_all()
    slugs = [slug for slug in arguments.only.split(",") if slug] or list(known)
    unknown = [slug for slug in slugs if slug not in known]
    if unknown:
        parser.error(f"there is no twin of {', '.join(unknown)}; there are: {', '.join(known)}")
    cases = measure(slugs, arguments)
    traincheck = json.loads(arguments.traincheck.read_text()) if arguments.traincheck.exists() else None
    result = report.to_json(cases, traincheck)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    text = report.to_markdown(result)
    print(text, end="")
    if arguments.markdown:
        arguments.markdown.write_text(text)
    unproved = [case["slug"] for case in cases if not case["proved"]]
    if unproved:
        print(f"error: the oracle does not tell the variants apart of {', '.join(unproved)}", file=sys.stderr)
    return 1 if unproved else 0


if __name__ == "__main__":
    sys.exit(main())
