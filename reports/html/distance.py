"""How far the replicas lie apart, step by step."""

import math

import specs

KIND, TITLE, MISSING = "divergence", "Distance between the replicas", "distances between replicas"
HOW = ("The largest relative distance of a rank's parameters from rank 0's, after each step, on a logarithmic scale. "
       "The band is the tolerance.")
COLUMNS = [("kind", None), ("step", "step"), ("distance", "distance")]
FLOOR = 1e-10  # a logarithm has no place for 0: replicas that are equal are drawn here


def points(variant):
    return ((variant or {}).get("pictures") or {}).get("divergence") or []


def of(variant):
    return [point for point in points(variant) if point["distance"] is not None]


def rows(variant):
    return [[specs.kind(variant), point["step"], point["distance"]] for point in of(variant)]


def leaves_at(variant):
    """The first point at which the replicas are apart; None where they never are."""
    tolerance = variant["pictures"]["tolerance"] if points(variant) else 0
    return next((point for point in points(variant)
                 if point["distance"] is None or point["distance"] > tolerance), None)


def differs(broken, correct):
    return bool(of(broken)) and leaves_at(broken) is not None and not (points(correct) and leaves_at(correct))


def words(variant, correct=None):
    first, most = leaves_at(variant), max(point["distance"] for point in of(variant))
    if first is None:
        return "The replicas stay " + ("equal at every step." if most == 0 else "within the tolerance.")
    if first["distance"] is None:
        return f"Not all values are finite from step {first['step']} on."
    if first["step"] < 0:
        return f"The replicas are apart before the first step. Their largest distance is {most:.4g}."
    return f"The replicas part at step {first['step']}. Their largest distance is {most:.4g}."


def legend(drawn):
    return []  # one line in each picture, which its title names


def spec(variants, drawn):
    steps = [step for _, step, _ in drawn]
    tolerance = max(variant["pictures"]["tolerance"] for variant in variants)
    top = max(1e-8, 100 * tolerance, *(distance for _, _, distance in drawn))  # room above the band
    domain = [FLOOR, 10 ** math.ceil(math.log10(top))]
    label = f"datum.value <= {FLOOR} ? 'equal' : format(datum.value, '.0e')"
    ticks = [tick for tick in (FLOOR, 1e-8, 1e-6, 1e-4, 1e-2, 1, 100) if tick <= domain[1]]
    y = specs.of("drawn", "quantitative", None, scale={"type": "log", "domain": domain, "nice": False},
                 axis={"labelExpr": label, "values": ticks})
    x = specs.of("step", "quantitative", "step (-1: before the first)",
                 axis={"format": "d", "grid": False, "tickMinStep": 1},
                 scale={"nice": False, "domain": [min(steps), max(max(steps), min(steps) + 1)]})
    band = {"data": {"values": [{"low": FLOOR, "high": tolerance}]},
            "mark": {"type": "rect", "color": "var(--band)", "opacity": 0.5},
            "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}}
    edge = {"data": {"values": [{"high": tolerance, "text": "tolerance"}]},
            "encoding": {"y": {"field": "high", "type": "quantitative"}},
            "layer": [{"mark": {"type": "rule", "strokeDash": [4, 3]}},
                      {"mark": {"type": "text", "align": "left", "x": 4, "dy": -6},
                       "encoding": {"text": {"field": "text"}}}]}
    line = {"transform": [{"calculate": f"max(datum.distance, {FLOOR})", "as": "drawn"}],
            "encoding": {"x": x, "y": y, "tooltip": specs.tips(("step", "step"), ("distance", "distance"))},
            "layer": specs.lines_with_points()}
    return specs.chart(180, layer=[band, edge, line])
