"""The charts' shapes, as Vega-Lite specifications without their rows. Colours are the page's own (page.css), so that dark
mode and print need no second drawing; what a colour says is also said by a dash, a shape or a word."""

FLOOR = 1e-10  # a logarithm has no place for 0: replicas that are equal are drawn here
FORMS = ["correct", "broken", "near-miss", "one process"]
FORM_COLOURS = ["var(--correct)", "var(--broken)", "var(--near-miss)", "var(--ink)"]
OPERATION_COLOURS = [f"var(--series-{i})" for i in range(1, 8)]
INK, GRID = "var(--ink-soft)", "var(--grid)"

CONFIG = {
    "background": "transparent",
    "font": "system-ui, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif",  # page.css's: Vega measures by it
    "aria": False,  # the chart's frame has one text, and the table holds the rest
    "view": {"stroke": "transparent"},
    "axis": {"labelColor": INK, "titleColor": INK, "gridColor": GRID, "domainColor": GRID, "tickColor": GRID,
             "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 260},
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "orient": "top",
               "titleFontWeight": "normal", "symbolStrokeWidth": 0, "labelLimit": 260, "columns": 3},
    "text": {"color": INK},
    "rule": {"color": INK},
}


def of(field, kind, title=None, **more):
    return {"field": field, "type": kind, "title": title, **more}


def tips(*pairs):
    return [{"field": field, "title": title} for field, title in pairs]


def chart(height, **more):
    return {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"},
            "data": {"name": "rows"}, **more}


def by_form(forms):
    """Colour, dash and shape of the forms that are drawn; the legend shows them as symbols."""
    def scale(values):
        return {"domain": forms, "range": [values[FORMS.index(form)] for form in forms]}
    return {"color": of("form", "nominal", None, scale=scale(FORM_COLOURS)),
            "strokeDash": of("form", "nominal", None, scale=scale([[1, 0], [7, 3], [2, 2], [1, 3]])),
            "shape": of("form", "nominal", None, scale=scale(["circle", "square", "triangle-up", "cross"]))}


def lines_with_points(forms):
    look = by_form(forms)
    return [{"mark": {"type": "line", "strokeWidth": 2.2, "opacity": 0.85},
             "encoding": {"color": look["color"], "strokeDash": look["strokeDash"]}},
            {"mark": {"type": "point", "size": 45, "filled": True, "opacity": 1},
             "encoding": {"color": look["color"], "shape": look["shape"]}}]


def losses(forms, logarithmic):
    scale = {"type": "log"} if logarithmic else {"zero": False}
    tooltip = tips(("run", "form"), ("epoch", "epoch"), ("loss", "mean loss of the ranks"), ("low", "lowest rank"),
                   ("high", "highest rank"))
    return chart(220, layer=lines_with_points(forms), encoding={
        "x": of("epoch", "ordinal", "epoch", axis={"labelAngle": 0, "labelOverlap": True}),
        "y": of("loss", "quantitative", "loss", scale=scale), "detail": {"field": "run"}, "tooltip": tooltip})


def losses_at_once(forms, rows):
    """Of one epoch there is no line to draw: a row for each form."""
    look = by_form(forms)
    return chart(24 * rows, mark={"type": "point", "size": 60, "filled": True, "opacity": 1}, encoding={
        "x": of("loss", "quantitative", "loss", scale={"zero": False}, axis={"tickCount": 4, "format": ".6~g"}),
        "y": of("run", "nominal", None, sort=None, axis={"labelLimit": 190}), "color": look["color"], "shape": look["shape"],
        "tooltip": tips(("run", "form"), ("loss", "mean loss of the ranks"), ("low", "lowest rank"), ("high", "highest rank"))})


def divergence(forms, tolerance):
    label = f"datum.value <= {FLOOR} ? 'equal' : format(datum.value, '.0e')"
    y = {"field": "drawn", "type": "quantitative", "title": "distance (relative)",
         "scale": {"type": "log", "domainMin": FLOOR, "nice": False},
         "axis": {"labelExpr": label, "values": [FLOOR, 1e-8, 1e-6, 1e-4, 1e-2, 1, 100]}}
    x = of("step", "quantitative", "step (-1: before the first)", axis={"format": "d", "grid": False},
           scale={"nice": False, "zero": False})
    band = {"data": {"values": [{"low": FLOOR, "high": tolerance}]},
            "mark": {"type": "rect", "color": "var(--band)", "opacity": 0.5},
            "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}}
    edge = {"data": {"values": [{"high": tolerance, "text": "tolerance"}]},
            "encoding": {"y": {"field": "high", "type": "quantitative"}},
            "layer": [{"mark": {"type": "rule", "strokeDash": [4, 3]}},
                      {"mark": {"type": "text", "align": "left", "x": 4, "dy": -6}, "encoding": {"text": {"field": "text"}}}]}
    room = {"data": {"values": [{"high": 100 * tolerance}]}, "mark": {"type": "rule", "opacity": 0},  # above the band
            "encoding": {"y": {"field": "high", "type": "quantitative"}}}
    lines = {"transform": [{"calculate": f"max(datum.distance, {FLOOR})", "as": "drawn"}],
             "encoding": {"x": x, "y": y, "detail": {"field": "run"},
                          "tooltip": tips(("run", "form"), ("step", "step"), ("distance", "distance"))},
             "layer": lines_with_points(forms)}
    return chart(220, layer=[band, edge, room, lines])


def timeline(operations, lanes):
    x = of("sequence", "ordinal", "collective, by its number", axis={"labelAngle": 0, "labelOverlap": True})
    y = of("lane", "nominal", None, sort=None)
    colours = {"domain": operations, "range": OPERATION_COLOURS}
    tooltip = tips(("lane", "who"), ("sequence", "number"), ("operation", "operation"), ("state", "state"),
                   ("entered_s", "entered (s)"), ("left_s", "left (s)"))
    calls = {"mark": {"type": "rect", "cornerRadius": 2, "stroke": "var(--paper)", "strokeWidth": 1.5},
             "encoding": {"x": x, "y": y, "tooltip": tooltip,
                          "color": of("operation", "nominal", None, scale=colours),
                          "opacity": {"condition": {"test": "datum.left_s === null", "value": 0.35}, "value": 1}}}
    stuck = {"transform": [{"filter": "datum.left_s === null"}],
             "mark": {"type": "text", "text": "…", "fontSize": 14, "fontWeight": "bold", "dy": -2},
             "encoding": {"x": x, "y": y}}
    failed = {"transform": [{"filter": "datum.state === 'failed'"}],
              "mark": {"type": "text", "text": "✗", "fontSize": 13, "fontWeight": "bold", "color": "var(--paper)"},
              "encoding": {"x": x, "y": y}}
    first = {"transform": [{"filter": "datum.first"}, {"aggregate": [], "groupby": ["sequence"]}],
             "encoding": {"x": {**x, "bandPosition": 0}},
             "layer": [{"mark": {"type": "rule", "color": "var(--broken)", "strokeWidth": 2.5}},
                       {"mark": {"type": "text", "text": "first difference", "color": "var(--broken)", "y": -8,
                                 "align": "right", "fontWeight": "bold"}}]}
    return chart(26 * lanes, layer=[calls, stuck, failed, first])


def owners(names, passes):
    colours = OPERATION_COLOURS[:len(names) - 2] + ["var(--broken)", "var(--nobody)"]
    return chart(30 * passes, mark={"type": "rect", "stroke": None}, encoding={
        "x": of("sample", "quantitative", "sample", axis={"grid": False}, scale={"nice": False, "zero": False}),
        "x2": {"field": "next"},
        "y": of("pass", "nominal", None, sort=None, scale={"paddingInner": 0.2}),
        "color": of("owner", "nominal", None, scale={"domain": names, "range": colours}),
        "tooltip": tips(("pass", "pass"), ("sample", "sample"), ("owner", "owner"), ("draws", "times drawn"))})


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
    x = {"type": "quantitative", "title": axis, "scale": {"type": "log", "nice": False}, "axis": {"format": "~g", "values": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]}}
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
        "color": of("series", "nominal", None, scale={"range": OPERATION_COLOURS}),
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
