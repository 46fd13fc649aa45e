"""The cases that `./lockstep bench step_costs` measured, and the drawing that their pictures share."""

import json
import pathlib

FILE = pathlib.Path(__file__).resolve().parents[2] / "reports/results/step_costs.json"
PARTS = [("forward", "one"), ("backward", "three"), ("waiting", "bad"), ("update", "soft")]


def cases(question, over_link=None):
    measured = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
    return [case for case in measured if case["question"] == question
            and over_link in (None, case["link_megabytes_a_second"] is not None)]


def median(figure):
    return figure["median"]


def beyond_rule(case):
    """What backward cannot hide of the all-reduce, by the page's rule."""
    all_reduce, [ddp] = median(case["all_reduce"]), case["ddp"]
    return max(all_reduce / ddp["buckets"], all_reduce - median(case["no_sync"]["backward"]))


def stacked(picture, x, y, height, parts):
    """A bar of (width, colour), from the left; gives where it ends."""
    for width, colour in parts:
        picture.box(round(x, 1), y, round(width, 1), height, colour=colour, edge=None)
        x += width
    return round(x, 1)


def key(picture, x, y, entries):
    for words, colour, width in entries:
        picture.box(x, y - 11, 14, 14, colour=colour, edge=None)
        picture.text(x + 20, y, words, "soft", "start", "small")
        x += width
