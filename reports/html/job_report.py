"""One page of a job of one's own: lockstep report FOLDER ...

Reads what `lockstep diagnose FOLDER --json --pictures` says (reports/schema/job.schema.json) from standard input, and
writes one HTML file that needs no network and no other file.
"""

import ctrl_c  # noqa: F401, I001

import argparse
import json
import os
import pathlib
import re
import sys

import charts
import files
import losses
import pictures
import specs
import template

LOSSES = [("step", "step"), ("mean", "mean loss"), ("low", "lowest rank"), ("high", "highest rank")]


def as_variant(job):
    """What the pictures of a lesson's variant are drawn from."""
    return {"name": "job", "kind": "job", "outcome": "hang" if job["stall"] else "completed", "pictures": job["pictures"]}


def losses_by_step(drawn, job):
    """None where no loss was recorded. One that is not a number cannot be drawn, and is told of."""
    if not job["losses"]:
        return None
    rows = [[point[field] for field, _ in LOSSES] for point in job["losses"]]
    numbers = [row[1] for row in rows if None not in row]
    without = [row[0] for row in rows if None in row]
    x = specs.of("step", "quantitative", "step", axis={"format": "d", "grid": False, "tickMinStep": 1},
                 scale={"nice": False, "zero": False})
    y = specs.of("mean", "quantitative", "loss", scale=losses.scale_of(numbers) if numbers else {})
    spec = specs.chart(200, encoding={"x": x}, layer=[
        {"mark": {"type": "area", "color": specs.JOB, "opacity": 0.2},
         "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}}},
        {"mark": {"type": "line", "color": specs.JOB, "point": {"color": specs.JOB}},
         "encoding": {"y": y, "tooltip": specs.tips(*LOSSES)}}])
    text = "The ranks' mean loss by step, where it was recorded. The band goes from the lowest rank to the highest."
    if without:
        text += f" From step {without[0]} on, {len(without)} of {len(rows)} are not numbers on every rank."
    return drawn.add("losses", "Losses", text, LOSSES, rows, spec)


def page(name, job):
    drawn, variant = charts.Charts(), as_variant(job)
    loss = losses_by_step(drawn, job)
    shown = [pictures.alone(drawn, "job", kind, variant) for kind in pictures.TRACED if kind.of(variant)]
    missing = [kind.MISSING for kind in pictures.TRACED if not kind.of(variant)] + ([] if loss else ["losses"])
    states = {}
    for detector in job["detectors"]:
        states.setdefault(detector["state"], []).append(detector)
    return template.page("job.html.j2", drawn, name=name, job=job, pictures=shown + ([loss] if loss else []), missing=missing,
                         states=states)


def default_page(folder):
    """In the working directory: a folder of traces, which may be somebody else's, is only read."""
    name = files.shown(os.path.basename(os.path.abspath(folder))).encode("ascii", "backslashreplace").decode("ascii")
    return pathlib.Path(f"report-{re.sub('[^A-Za-z0-9_.-]+', '_', name)[:100] or 'job'}.html")


def main(line):
    parser = argparse.ArgumentParser(prog="lockstep report")
    parser.add_argument("folder", help="the job's, for the page's title")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="the page (default: report-FOLDER.html here)")
    arguments = parser.parse_args(line)
    return template.written("report", arguments.out or default_page(arguments.folder),
                            lambda: page(files.shown(arguments.folder), json.load(sys.stdin.buffer)))


if __name__ == "__main__":
    template.run(main)
