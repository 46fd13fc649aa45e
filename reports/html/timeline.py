"""The collectives that each rank called, by their numbers."""

import specs

KIND, TITLE, MISSING = "timeline", "Collectives by rank", "collectives"
HOW = "A row for each rank, a place for each collective by its number."
SIGNS = {"failed": "✗: the call failed.", "never left": "…: the call never returned."}
COLUMNS = [("lane", "rank"), ("sequence", "number"), ("operation", "operation"), ("state", "state"),
           ("entered", "entered (ms)"), ("left", "left (ms)"), ("first", None)]
COMMON = ["allreduce", "broadcast", "barrier", "allgather"]  # one colour each, on all of the page


def of(variant):
    picture = ((variant or {}).get("pictures") or {}).get("timeline")
    return picture if picture and picture["calls"] else None


def state(call):
    return "never left" if call["left_s"] is None else "failed" if call.get("failed") else "completed"


def rows(variant):
    picture = of(variant)
    calls, first = picture["calls"], picture["first_difference"]
    several = len({call["group"] for call in calls}) > 1
    made = []
    for call in sorted(calls, key=lambda call: (call["group"], call["rank"], call["sequence"])):
        lane = f"rank {call['rank']}" + (f", group {call['group']}" if several else "")
        differs = bool(first) and (call["group"], call["sequence"]) == (first["group"], first["sequence"])
        left = None if call["left_s"] is None else 1000 * call["left_s"]
        made.append([lane, call["sequence"], call["op"], state(call), 1000 * call["entered_s"], left, differs])
    return made


def numbers(picture):
    """rank -> how many calls it made. None where the report holds only those around the first difference."""
    if picture["truncated"] and picture["first_difference"]:
        return None
    last = {}
    for call in picture["calls"]:
        place = call["rank"], call["group"]
        last[place] = max(last.get(place, 0), call["sequence"])
    return {rank: sum(number for place, number in last.items() if place[0] == rank) for rank, _ in sorted(last)}


def operations(picture):
    return {call["op"] for call in picture["calls"]}


def differs(broken, correct):
    mine, right = of(broken), of(correct)
    if not mine:
        return False
    if mine["first_difference"]:
        return not (right and right["first_difference"])
    if not right:
        return any(state(call) != "completed" for call in mine["calls"])
    whole = not (mine["truncated"] or right["truncated"])
    return numbers(mine) != numbers(right) or whole and operations(mine) != operations(right)


def ranks_named(ranks):
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def difference(picture, first):
    """Which rank calls what, where they first differ."""
    calls = {call["rank"]: call["op"] for call in picture["calls"]
             if (call["group"], call["sequence"]) == (first["group"], first["sequence"])}
    by_operation = {}
    for rank, operation in sorted(calls.items()):
        by_operation.setdefault(operation, []).append(rank)
    away = sorted(set(first["ranks"]) - set(calls))
    said = [f"{ranks_named(ranks)} {'calls' if len(ranks) == 1 else 'call'} {operation}"
            for operation, ranks in by_operation.items()]
    said += [f"{ranks_named(away)} never {'comes' if len(away) == 1 else 'come'}"] if away else []
    return f"First difference, at number {first['sequence']}: {'; '.join(said)}."


def words(variant, correct=None):
    picture, right = of(variant), of(correct)
    first, made = picture["first_difference"], numbers(picture)
    said = []
    if made:
        fewest, most = min(made.values()), max(made.values())
        calls = f"Each rank calls {most}" if fewest == most else f"The ranks call {fewest} to {most}"
        which = (f"the last {len(picture['calls']) // len(made)} are shown" if picture["truncated"]
                 else ", ".join(sorted(operations(picture))))
        said.append(f"{calls} collective{'s' if most != 1 else ''}: {which}.")
    said.append(difference(picture, first) if first else "All ranks call the same.")
    states = {state(call) for call in picture["calls"]}
    said += [meaning for sign_of, meaning in SIGNS.items() if sign_of in states]
    if right and variant["outcome"] == "completed" and not picture["truncated"]:
        lacking = sorted(operations(right) - operations(picture))
        said += [f"No rank calls {' or '.join(lacking)}, which the correct run does."] if lacking else []
    return " ".join(said)


def operations_in(drawn):
    """operation -> page.css's class, of all rows that are drawn."""
    there = {row[2] for row in drawn}
    all_of = COMMON + sorted(there - set(COMMON))
    return {operation: specs.series(number) for number, operation in enumerate(all_of) if operation in there}


def legend(drawn):
    return [(operation.removesuffix("_base"), of) for operation, of in operations_in(drawn).items()]


def sign(of_state, text, **more):
    return {"transform": [{"filter": f"datum.state === '{of_state}'"}],
            "encoding": {"x": {"field": "sequence", "type": "quantitative"}},
            "mark": {"type": "text", "text": text, "fontSize": 13, "fontWeight": "bold", **more}}


def first_line(side):
    """Where the ranks first differ. The empty word keeps room in the picture beside this one too."""
    word = {"type": "text", "color": "var(--broken)", "y": -8, "align": side, "fontWeight": "bold"}
    return {"transform": [{"filter": "datum.first"}, {"aggregate": [], "groupby": ["from"]}],
            "encoding": {"x": {"field": "from", "type": "quantitative"}, "y": None},
            "layer": [{"mark": {"type": "rule", "color": "var(--broken)", "strokeWidth": 2.5}},
                      {"mark": {**word, "text": "first difference"}},
                      {"data": {"values": [{}]}, "mark": {**word, "text": "first", "opacity": 0},
                       "encoding": {"x": None}}]}


def spec(variants, drawn):
    lanes, states = list(dict.fromkeys(row[0] for row in drawn)), {row[3] for row in drawn}
    low, high = min(row[1] for row in drawn), max(row[1] for row in drawn)
    look = operations_in(drawn)
    x = specs.of("from", "quantitative", "number of the collective",
                 axis={"grid": False, "tickMinStep": 1, "tickCount": 8, "format": "d"},
                 scale={"nice": False, "zero": False, "domain": [low - 0.5, high + 0.5]})
    layers = [{"mark": {"type": "rect", "cornerRadius": 2, "stroke": "var(--paper)", "strokeWidth": 1}, "encoding": {
        "x": x, "x2": {"field": "to"},
        "color": specs.of("operation", "nominal", None, legend=None,
                          scale={"domain": list(look), "range": specs.colours(look.values())}),
        "opacity": {"condition": {"test": "datum.left === null", "value": 0.35}, "value": 1},
        "tooltip": specs.tips(("lane", "who"), ("sequence", "number"), ("operation", "operation"), ("state", "state"),
                              ("entered", "entered (ms)"), ("left", "left (ms)"))}}]
    layers += [sign("never left", "…", dy=-2)] if "never left" in states else []
    layers += [sign("failed", "✗", color="var(--paper)")] if "failed" in states else []
    if here := [row[1] for row in drawn if row[6]]:
        layers.append(first_line("right" if here[0] > (low + high) / 2 else "left"))
    y = specs.of("lane", "nominal", None, sort=None, scale={"domain": lanes})
    return specs.chart(26 * len(lanes), layer=layers, encoding={"y": y},
                       transform=[{"calculate": "datum.sequence - 0.5", "as": "from"},
                                  {"calculate": "datum.sequence + 0.5", "as": "to"}])
