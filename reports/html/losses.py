"""Losses by epoch: of a part's variants, and of one run beside the correct one and one process."""

import math

import specs

LOGARITHMIC_FROM = 50  # losses whose largest is this many times the smallest
NARROW = 0.02          # a smaller spread, as a share of the losses, is not drawn as wide as the chart
COLUMNS = [("run", "variant"), ("kind", "kind"), ("epoch", "epoch"), ("loss", "mean loss"), ("low", "lowest rank"),
           ("high", "highest rank")]
TOOLTIP = specs.tips(("run", "variant"), ("epoch", "epoch"), ("loss", "mean loss of the ranks"), ("low", "lowest rank"),
                     ("high", "highest rank"))


def mean_losses(variant):
    """By epoch: the mean over the ranks that have a number, the lowest and the highest."""
    epochs = max((len(rank) for rank in variant["losses"]), default=0)
    rows = []
    for epoch in range(epochs):
        values = [rank[epoch] for rank in variant["losses"] if epoch < len(rank) and rank[epoch] is not None]
        if values:
            rows.append([epoch, sum(values) / len(values), min(values), max(values)])
    return rows


def one_process(variants):
    """Rows of what one process loses on the same global batches: of the first variant whose report holds it."""
    losses = next((variant["reference_losses"] for variant in variants if variant.get("reference_losses")), [])
    name = "one process"
    return [[name, name, epoch, loss, loss, loss] for epoch, loss in enumerate(losses) if loss is not None]


def scale_of(losses):
    """Logarithmic, or from the least to the greatest. Losses that nearly coincide are drawn so: the ends of their scale
    are multiples of a twentieth of a power of ten."""
    low, high = min(losses), max(losses)
    if low > 0 and high / low > LOGARITHMIC_FROM:
        return {"type": "log"}
    if high <= 0 or high - low > NARROW * high:
        return {"zero": False}
    edge = 10 ** math.floor(math.log10(high)) / 20
    low, high = math.floor(low / edge), math.floor(high / edge) + 1
    return {"zero": False, "nice": False, "domain": [round(end * edge, 12) for end in (low, high)]}


def by_epoch(scale):
    return specs.chart(200, layer=specs.lines_with_points(), encoding={
        "x": specs.of("epoch", "ordinal", "epoch", axis={"labelAngle": 0, "labelOverlap": True}),
        "y": specs.of("loss", "quantitative", "loss", scale=scale), "detail": {"field": "run"}, "tooltip": TOOLTIP})


def at_once(rows, scale):
    """Of one epoch there is no line to draw: a row for each variant."""
    return specs.chart(24 * rows, mark={"type": "point", "size": 60, "filled": True, "opacity": 1}, encoding={
        "x": specs.of("loss", "quantitative", "loss", scale=scale,
                      axis={"tickCount": 4, "format": ".4~g", "labelSeparation": 8}),
        "y": specs.of("run", "nominal", None, sort=None, axis={"labelLimit": 190}),
        "color": specs.look("color"), "shape": specs.look("shape"), "tooltip": TOOLTIP})


def chart(charts, id, title, variants):
    """None where no variant has a loss. The correct one's reference comes first: a broken one's may be of other
    batches."""
    rows = [[variant["name"], specs.kind(variant), *row] for variant in variants for row in mean_losses(variant)]
    if not rows:
        return None
    rows += one_process(sorted(variants, key=lambda variant: variant["kind"] != "correct"))
    runs, kinds, scale = {row[0] for row in rows}, {row[1] for row in rows}, scale_of([row[3] for row in rows])
    reference = "one process" in kinds
    number = len(runs) - reference
    of_whom = ("1 variant" if number == 1 else f"{number} variants") + (" and one process" if reference else "")
    if len(rows) == len(runs):
        spec, text = at_once(len(rows), scale), f"The mean loss over the ranks, one epoch of {of_whom}."
    else:
        spec, text = by_epoch(scale), f"The mean loss over the ranks by epoch, {of_whom}."
    if "type" in scale:
        text += " The scale is logarithmic."
    legend = [(kind, kind.replace(" ", "-")) for kind in specs.KINDS if kind in kinds]
    return charts.add(id, title, text, COLUMNS, rows, spec, legend=legend)
