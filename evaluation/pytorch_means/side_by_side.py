"""The same faults under PyTorch's own means and under our detectors, in one table: case x checker.

usage: side_by_side.py [--only SLUG,...] [--ours FILE] [--cache DIR] [--fresh] [--out FILE] [--markdown FILE]
                       [--traincheck FILE]

Runs every twin (lessons/NN_name/python), right and with its fault, under each of PyTorch's means (means.py), for real, and
judges what they gave by written rules (rules.py). Beside it stand our detectors on the same programs, as
evaluation/sets.py measured them; without its FILE they are skipped. What has been run is kept in the cache, raw
output included, and not run again: a stopped run goes on, and judging again runs nothing. Exit codes: 0, 1 where a
twin's oracle does not hold on the right program or holds on the broken one, 2 usage.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import pathlib
import re
import shutil
import sys
import tempfile

import means
import report
import rules
import scoring  # rules says where it is

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lessons" / "python"), str(ROOT / "reports")]
import results  # noqa: E402
from fold import file_of  # noqa: E402
from truths import ATTEMPTS, NODES, RANKS, TRUTHS, is_proved, judged  # noqa: E402

AT_ONCE = 3  # runs; they wait a lot
SEEDS = range(1, 6)  # of the right program, for the spread of its curve


def printed(word, text):
    """The numbers that a program prints after this word."""
    return [float(number) for number in re.findall(rf"\b{word} (nan|-?inf|-?[\d.]+\d)", text)]


def run(program, slug, name, seed):
    """A twin, right or with a fault, under a means: with the losses and metrics that rank 0 prints, and what the oracle says."""
    with tempfile.TemporaryDirectory(prefix="lockstep-twin-") as notes:
        job = means.Job(file_of(program), RANKS, NODES.get(program, 1), ATTEMPTS.get(program, 1),
                        {"TWIN_FAULT": slug, "TWIN_NOTES": notes})
        seen = means.run(job, name, seed)
        code = 0 if seen["in_time"] and seen["ended"] == [0] * RANKS else 1
        return {"slug": slug, "broken": bool(slug), **seen, "losses": [printed("loss", seen["texts"]["0"])],
                "metrics": [printed("accuracy", seen["texts"]["0"])], "oracle": judged(program, code, notes)}


def kept(cache, program, slug, name, seed):
    """A run, which may have been done before."""
    file = cache / f"{slug or program}.{name}.{seed}.json"
    if not file.exists():
        part = file.with_suffix(".part")
        part.write_text(json.dumps(run(program, slug, name, seed)))
        part.rename(file)
    return json.loads(file.read_text())


def runs_of(slugs, cache):
    """Every run: {(program, "" or slug, means, seed): run}. A right program is run once for all of its faults."""
    asked = dict.fromkeys([(TRUTHS[slug]["program"], fault, name, seed) for slug in slugs for fault in ("", slug)
                           for name in means.MEANS for seed in (0, *(SEEDS if name == "plain" and not fault else ()))])
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(AT_ONCE, mp_context=fork) as pool:
        waiting = {each: pool.submit(kept, cache, *each) for each in asked}
        return {each: future.result() for each, future in waiting.items()}


def cells_of(slug, variants, references):
    """{checker: {variant: Verdict}}."""
    plain = variants["plain"]
    cells = {name: {"broken": rules.judge_broken(runs["broken"], plain["broken"], runs["correct"], slug, ranks_of(slug)),
                    "correct": rules.judge_correct(runs["correct"], plain["correct"])} for name, runs in variants.items()}
    cells["loss-curve"] = {variant: rules.judge_curve(plain[variant], references) for variant in ("broken", "correct")}
    return cells


def ranks_of(slug):
    """The sets of ranks that a message may name as those at fault; () where the fault is in what all ranks do."""
    ranks = TRUTHS[slug].get("ranks")
    if ranks is None:
        return ({0}, {1}, {0, 1})
    return () if len(ranks) == RANKS else (set(ranks),)


def family(slug):
    """The number of its lesson."""
    return next((ROOT / "lessons").glob(f"*/pitfalls/{slug}.md")).parts[-3][:2]


def ours(slug, measured):
    """The last score of our detectors; skipped without any."""
    scores = {"broken": scoring.last(measured, slug), "correct": scoring.last(measured, f"right-{TRUTHS[slug]['program']}")}
    return {variant: rules.Verdict(one["verdict"] if one else "skipped") for variant, one in scores.items()}


def measure(slugs, arguments):
    if arguments.fresh:
        shutil.rmtree(arguments.cache, ignore_errors=True)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    done = runs_of(slugs, arguments.cache)
    measured = json.loads(arguments.ours.read_text()) if arguments.ours.exists() else {}
    cases = []
    for slug in slugs:
        program = TRUTHS[slug]["program"]
        variants = {name: {"broken": done[program, slug, name, 0], "correct": done[program, "", name, 0]}
                    for name in means.MEANS}
        plain = variants["plain"]
        cells = cells_of(slug, variants, [done[program, "", "plain", seed] for seed in SEEDS])
        cases.append({"slug": slug, "family": family(slug), "cells": {**cells, "lockstep": ours(slug, measured)},
                      "proved": is_proved("", plain["correct"]["oracle"]) and is_proved(slug, plain["broken"]["oracle"])})
    return sorted(cases, key=lambda case: (case["family"], case["slug"])), round(sum(run["seconds"] for run in done.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="slugs, separated by commas")
    parser.add_argument("--ours", type=pathlib.Path, default=ROOT / "reports" / "results" / "twins.json",
                        help="what evaluation/sets.py wrote of the set twins")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "reports" / "out" / "side_by_side")
    parser.add_argument("--fresh", action="store_true", help="run everything again")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "out" / "side_by_side.json")
    parser.add_argument("--markdown", type=pathlib.Path, default=None)
    parser.add_argument("--traincheck", type=pathlib.Path, help="what traincheck/measure.py wrote, to be taken along",
                        default=ROOT / "reports" / "out" / "side_by_side_traincheck.json")
    arguments = parser.parse_args()
    slugs = [slug for slug in arguments.only.split(",") if slug] or list(TRUTHS)
    unknown = [slug for slug in slugs if slug not in TRUTHS]
    if unknown:
        parser.error(f"there is no twin of {', '.join(unknown)}; there are: {', '.join(TRUTHS)}")
    cases, seconds = measure(slugs, arguments)
    traincheck = json.loads(arguments.traincheck.read_text()) if arguments.traincheck.exists() else None
    result = report.to_json(cases, seconds, traincheck)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(results.text(result), encoding="utf-8")
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
