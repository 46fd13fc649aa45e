"""One page of two runs: lockstep compare A B --html FILE

Reads what `lockstep compare A B --json` says (reports/schema/compare.schema.json) from standard input, and writes one HTML
file that needs no network and no other file.
"""

import ctrl_c  # noqa: F401, I001

import argparse
import json
import math
import pathlib
import sys

import charts
import specs
import template

BY_STEP = [("equation", "equation"), ("step", "step"), ("distance", "distance"), ("tolerance", "tolerance"), ("share", "of the tolerance")]
BY_LAYER = [("layer", "layer"), ("step", "step"), ("how", "how"), ("distance", "distance"), ("tolerance", "tolerance"),
            ("share", "of the tolerance"), ("drawn", None)]
LEAST, MOST = 1e-4, 1e4  # of a tolerance: what is nearer or farther is drawn there
STEPS, LAYERS = 48, 60   # that a picture by layer has room for
DASHES = [[1, 0], [7, 3], [2, 2], [9, 3, 2, 3]]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]


def at(step):
    return "before training" if step < 0 else f"step {step}"


def share_of(apart):
    """How much of its tolerance a distance takes; None where it is no number or nothing is tolerated."""
    return apart["distance"] / apart["tolerance"] if apart["distance"] is not None and apart["tolerance"] > 0 else None


def first_of(said):
    """The line that parts first; None where none does."""
    return next((line for line in said["ledger"] if line["equation"] == said["first"]), None)


def steps_of(steps, **more):
    return specs.of("step", "quantitative", "step (-1: before the first)", axis={"format": "d", "grid": False, "tickMinStep": 1},
                    scale={"nice": False, "domain": [min(steps), max(max(steps), min(steps) + 1)]}, **more)


def by_step(drawn, said):
    """None where nothing is apart."""
    rows = [[measured["equation"], apart["step"], apart["distance"], apart["tolerance"], share_of(apart)]
            for measured in said["measured"] for apart in measured["distances"] if share_of(apart) is not None]
    if not rows:
        return None
    kinds, first = list(dict.fromkeys(row[0] for row in rows)), first_of(said)
    classes = [specs.series(number) for number in range(len(kinds))]
    begins = first["step"] if first else None
    text = ("How far the runs are apart, of each equation the largest distance at a step, as a share of its tolerance. Above the "
            "dashed line it is no rounding.")
    text += f" The vertical line is the first difference, {at(begins)}." if first else " Nothing is above it."
    domain = [LEAST, min(MOST, max(10, 10 ** math.ceil(math.log10(max(row[4] for row in rows) or 1))))]
    drawn_at = [{"calculate": f"clamp(datum.share, {domain[0]}, {domain[1]})", "as": "drawn"}]
    x = steps_of([row[1] for row in rows] + ([begins] if first else []))
    y = specs.of("drawn", "quantitative", "of the tolerance", axis={"format": "~g", "tickCount": 5},
                 scale={"type": "log", "domain": domain, "nice": False})
    look = {"color": specs.of("equation", "nominal", None, legend=None, scale={"domain": kinds, "range": specs.colours(classes)})}
    dashes = {"domain": kinds, "range": [DASHES[number % len(DASHES)] for number in range(len(kinds))]}
    shapes = {"domain": kinds, "range": [SHAPES[number % len(SHAPES)] for number in range(len(kinds))]}
    tooltip = specs.tips(*BY_STEP)
    layers = [
        {"data": {"values": [{"drawn": 1}]}, "mark": {"type": "rule", "strokeDash": [4, 3]},
         "encoding": {"y": {"field": "drawn", "type": "quantitative"}}},
        {"transform": drawn_at, "mark": {"type": "line", "strokeWidth": 2, "opacity": 0.85}, "encoding": {
            "x": x, "y": y, **look, "strokeDash": specs.of("equation", "nominal", None, legend=None, scale=dashes)}},
        {"transform": drawn_at, "mark": {"type": "point", "size": 45, "filled": True, "opacity": 1}, "encoding": {
            "x": x, "y": y, **look, "shape": specs.of("equation", "nominal", None, legend=None, scale=shapes), "tooltip": tooltip}}]
    if first:
        layers.append({"data": {"values": [{"step": begins}]},
                       "mark": {"type": "rule", "color": "var(--broken)", "strokeWidth": 2},
                       "encoding": {"x": {"field": "step", "type": "quantitative"}}})
    return drawn.add("by-step", "Distance by step", text, BY_STEP, rows, specs.chart(240, layer=layers),
                     legend=list(zip(kinds, classes)))


def how(apart):
    """Rounding has a distance within its tolerance."""
    return "to rounding" if apart["distance"] is not None and apart["distance"] <= apart["tolerance"] else "different"


def window(measured, line):
    """Steps to draw: all that were compared, or some before its first difference and more from there on."""
    steps = measured["steps"]
    begins = steps.index(line["step"]) if "broken_by" in line else 0
    begin = max(0, min(begins - STEPS // 4, len(steps) - STEPS))
    return steps[begin:begin + STEPS]


def farthest(tensors, steps):
    """Those to draw, in the model's order: all, or those that are most apart at these steps."""
    def most(tensor):
        return max((math.inf if share_of(apart) is None else share_of(apart)
                    for apart in tensor["distances"] if apart["step"] in steps), default=0)
    kept = sorted(tensors, key=most, reverse=True)[:LAYERS]
    return [tensor for tensor in tensors if tensor in kept]


def by_layer(drawn, measured, line):
    """None where nothing of its tensors is apart."""
    steps = window(measured, line)
    tensors = farthest(measured["tensors"], steps)
    rows = [[tensor["name"], apart["step"], how(apart), apart["distance"], apart["tolerance"], share_of(apart),
             min(MOST, max(LEAST, MOST if share_of(apart) is None else share_of(apart)))]
            for tensor in tensors for apart in tensor["distances"] if apart["step"] in steps]
    if not rows:
        return None
    text = ("A row for each tensor in the model's order, a place for each step at which it was compared. No mark: equal to the "
            "bit. The larger a mark, the more of its tolerance the distance takes; a square is no rounding.")
    if len(steps) < len(measured["steps"]):
        text += f" {len(steps)} of {len(measured['steps'])} steps are drawn."
    if len(tensors) < len(measured["tensors"]):
        text += f" {len(tensors)} of {len(measured['tensors'])} tensors are drawn, those that are farthest apart."
    classes = {"to rounding": "correct", "different": "broken"}
    there = [name for name in classes if any(row[2] == name for row in rows)]
    spec = specs.chart(18 * len(tensors), mark={"type": "point", "filled": True, "opacity": 1}, encoding={
        "x": specs.of("step", "ordinal", "step (-1: before the first)", scale={"domain": steps},
                      axis={"labelAngle": 0, "labelOverlap": True, "grid": True, "gridOpacity": 0.4}),
        "y": specs.of("layer", "nominal", None, sort=None, scale={"domain": [tensor["name"] for tensor in tensors]},
                      axis={"labelLimit": 130, "grid": True, "gridOpacity": 0.4}),
        "size": specs.of("drawn", "quantitative", None, legend=None,
                         scale={"type": "log", "domain": [LEAST, MOST], "range": [12, 150], "clamp": True}),
        "color": specs.of("how", "nominal", None, legend=None, scale={
            "domain": there, "range": specs.colours(classes[name] for name in there)}),
        "shape": specs.of("how", "nominal", None, legend=None, scale={
            "domain": there, "range": [{"to rounding": "circle", "different": "square"}[name] for name in there]}),
        "tooltip": specs.tips(*BY_LAYER[:-1])})
    name = measured["equation"]
    return drawn.add(f"by-layer-{name}", f"{name.replace('-', ' ').capitalize()} by layer and step", text, BY_LAYER, rows, spec,
                     legend=[(name, classes[name]) for name in there])


def page(said):
    drawn = charts.Charts()
    pictures = [by_step(drawn, said), *(by_layer(drawn, measured, line)
                                        for measured, line in zip(said["measured"], said["ledger"]) if measured["tensors"])]
    return template.page("compare.html.j2", drawn, said=said, first=first_of(said),
                         pictures=[each for each in pictures if each], at=at)


def main(line):
    parser = argparse.ArgumentParser(prog="lockstep compare")
    parser.add_argument("file", type=pathlib.Path, help="the page to write")
    arguments = parser.parse_args(line)
    return template.written("compare", arguments.file, lambda: page(json.load(sys.stdin.buffer)))


if __name__ == "__main__":
    template.run(main)
