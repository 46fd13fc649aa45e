"""What the charts' Vega-Lite specifications share, and those of the matrix and the measurements. Colours are the page's
own (page.css), so that dark mode and print need no second drawing; what a colour says is also said by a dash, a shape
or a word."""

JOB = "var(--correct)"  # what is drawn of a job of one's own
KINDS = {  # of a variant: colour, dash, shape of its points; page.css's legend says the same
    "correct": ("var(--correct)", [1, 0], "circle"), "broken": ("var(--broken)", [7, 3], "square"),
    "near miss": ("var(--near-miss)", [2, 2], "triangle-up"), "one process": ("var(--ink)", [1, 3], "cross"),
    "job": (JOB, [1, 0], "circle")}
SERIES = [f"series-{i}" for i in range(1, 8)]
INK, GRID = "var(--ink-soft)", "var(--grid)"

CONFIG = {
    "background": "transparent",
    "font": "system-ui, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif",  # page.css's: Vega measures by it
    "aria": False,  # the chart's frame has one text, and the table holds the rest
    "view": {"stroke": "transparent"},
    "axis": {"labelColor": INK, "titleColor": INK, "gridColor": GRID, "domainColor": GRID, "tickColor": GRID,
             "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 260},
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "orient": "top",
               "titleFontWeight": "normal", "symbolStrokeWidth": 0, "labelLimit": 260},
    "text": {"color": INK},
    "rule": {"color": INK},
}


def kind(variant):
    return variant["kind"].replace("-", " ")


def series(number):
    return SERIES[number % len(SERIES)]


def colours(names):
    """page.css's variables; the classes of its legends have the same names."""
    return [f"var(--{name})" for name in names]


def of(field, kind, title=None, **more):
    return {"field": field, "type": kind, "title": title, **more}


def tips(*pairs):
    return [{"field": field, "title": title} for field, title in pairs]


def chart(height, **more):
    return {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"},
            "data": {"name": "rows"}, **more}


def look(channel):
    """Colour, dash or shape of the kinds of variants. The page draws their legend."""
    range_of = [KINDS[kind][("color", "strokeDash", "shape").index(channel)] for kind in KINDS]
    return of("kind", "nominal", None, legend=None, scale={"domain": list(KINDS), "range": range_of})


def lines_with_points():
    return [{"mark": {"type": "line", "strokeWidth": 2.2, "opacity": 0.85},
             "encoding": {"color": look("color"), "strokeDash": look("strokeDash")}},
            {"mark": {"type": "point", "size": 45, "filled": True, "opacity": 1},
             "encoding": {"color": look("color"), "shape": look("shape")}}]


NAMED = {"its own name": "var(--correct)", "its own name, as advice": "var(--near-miss)", "other advice": "var(--series-2)",
         "another name": "var(--broken)", "nothing": "var(--broken)", "skipped": "var(--nobody)"}


def named():
    axis = {"labelFontSize": 9, "labelOverlap": False, "grid": True, "gridOpacity": 0.6, "ticks": False, "labelLimit": 230}
    colours = {"domain": list(NAMED), "range": list(NAMED.values())}
    shapes = {"domain": list(NAMED), "range": ["square", "diamond", "triangle-up", "cross", "triangle-down", "circle"]}
    return {**chart({"step": 11}), "width": {"step": 9}, "autosize": {"type": "pad"},
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1, "cursor": "pointer"}, "encoding": {
                "y": of("run", "nominal", "planted", sort=None, axis=axis),
                "x": of("found", "nominal", "named", sort=None,
                        axis={**axis, "labelAngle": -90, "orient": "top", "labelFontSize": 8}),
                "color": of("cell", "nominal", None, scale=colours),
                "shape": of("cell", "nominal", None, scale=shapes),
                "href": {"field": "link"},
                "tooltip": tips(("run", "planted"), ("found", "named"), ("cell", "how"))}}


def counts(settings):
    x = of("cell", "nominal", None, sort=None, axis={"labelAngle": -35, "orient": "top"})
    y = of("setting", "nominal", None, sort=None)
    base = {"x": x, "y": y, "href": {"field": "link"}, "tooltip": tips(("setting", "shown"), ("cell", "cell"), ("runs", "runs"))}
    return chart(28 * settings, padding={"left": 5, "top": 5, "right": 30, "bottom": 5}, layer=[
        {"mark": {"type": "rect", "cursor": "pointer", "stroke": "var(--paper)", "strokeWidth": 2},
         "encoding": {**base, "color": of("kind", "nominal", None, legend=None, scale={
             "domain": ["right", "wrong", "not asked"], "range": ["var(--heat-right)", "var(--heat-wrong)", "var(--heat-none)"]})}},
        {"mark": {"type": "text", "fontSize": 12, "cursor": "pointer", "color": "var(--ink)"},
         "encoding": {**base, "text": {"field": "runs"}}}])


def ratios(axis, rows):
    y = of("what", "nominal", None, sort=None, axis={"labelLimit": 190})
    x = {"type": "quantitative", "title": axis, "scale": {"type": "log", "nice": False},
         "axis": {"format": "~g", "values": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]}}
    one = {"data": {"values": [{"one": 1}]}, "mark": {"type": "rule", "strokeDash": [4, 3]},
           "encoding": {"x": {"field": "one", "type": "quantitative"}}}
    tooltip = tips(("what", "what"), ("ratio", "ratio"), ("low", "low"), ("high", "high"))
    colour = "var(--correct)"
    return chart(26 * rows, layer=[
        one,
        {"mark": {"type": "rule", "color": colour, "strokeWidth": 3},
         "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}}},
        {"mark": {"type": "point", "filled": True, "size": 75, "color": colour},
         "encoding": {"y": y, "x": {**x, "field": "ratio"}, "tooltip": tooltip}}])


def growth(x_title, y_title, logarithmic):
    x, y = ({"type": "log"}, {"type": "log"}) if logarithmic else ({"zero": False}, {"zero": True})
    ticks = {"values": [10 ** power for power in range(-2, 6)]} if logarithmic else {"tickCount": 5}
    number = {"format": "~s", "grid": False, **ticks}
    return chart(240, mark={"type": "line", "point": {"size": 50}, "strokeWidth": 2}, encoding={
        "x": of("x", "quantitative", x_title, axis=number, scale=x),
        "y": of("y", "quantitative", y_title, scale=y, axis={"format": "~g", **ticks}),
        "color": of("series", "nominal", None, scale={"range": colours(SERIES)}),
        "strokeDash": of("series", "nominal", None),
        "tooltip": tips(("series", "series"), ("x", x_title), ("y", y_title))})


def bars(axis, rows):
    y = of("what", "nominal", None, sort=None)
    return chart(26 * rows, layer=[
        {"mark": {"type": "bar", "color": "var(--correct)", "height": {"band": 0.6}},
         "encoding": {"y": y, "x": of("value", "quantitative", axis, axis={"tickCount": 5}),
                      "tooltip": tips(("what", "what"), ("value", axis))}},
        {"mark": {"type": "text", "align": "left", "dx": 4},
         "encoding": {"y": y, "x": {"field": "value", "type": "quantitative"}, "text": {"field": "value"}}}])
