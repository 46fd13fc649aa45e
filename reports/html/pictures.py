"""A lesson's charts: losses, and of each form's run the pictures that its report holds."""

import re

import specs

LOGARITHMIC_FROM = 50  # losses whose largest is this many times the smallest


def shown(value):
    """A figure of a picture, as exact as a page needs it: seventeen digits of each would be half of the page."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def identifier(*words):
    """An id of the page: different words give different ones, and nothing in them has a meaning in HTML or a URL."""
    return "-".join(re.sub(r"[^A-Za-z0-9_-]", lambda match: f".{ord(match.group()):x}.", word) for word in words)


def run_id(lesson, name):
    return identifier("run", lesson, name)


def forms_of(rows):
    """Of rows [run, form, ...]: the forms that are there."""
    return [form for form in specs.FORMS if any(row[1] == form for row in rows)]


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
    """Rows of what one process loses on the same global batches: of the first form whose report holds it."""
    losses = next((variant["reference_losses"] for variant in variants if variant.get("reference_losses")), [])
    return [["one process", "one process", epoch, loss, loss, loss] for epoch, loss in enumerate(losses) if loss is not None]


def loss_chart(charts, id, title, variants):
    """None where no form has a loss. The correct form's reference comes first: a broken one's may be of other batches."""
    rows = [[variant["name"], variant["form"], *row] for variant in variants for row in mean_losses(variant)]
    if not rows:
        return None
    rows += one_process(sorted(variants, key=lambda variant: variant["form"] != "correct"))
    losses, runs = [row[3] for row in rows], {row[0] for row in rows}
    logarithmic = min(losses) > 0 and max(losses) / min(losses) > LOGARITHMIC_FROM
    reference = any(row[1] == "one process" for row in rows)
    number = len(runs) - reference
    forms = ("1 form" if number == 1 else f"{number} forms") + (" and one process" if reference else "")
    if len(rows) == len(runs):
        spec, text = specs.losses_at_once(forms_of(rows), len(rows)), f"The mean loss over the ranks, one epoch of {forms}."
    else:
        spec = specs.losses(forms_of(rows), logarithmic)
        text = f"The mean loss over the ranks by epoch, {forms}{', on a logarithmic scale' if logarithmic else ''}."
    return charts.add(id, title, text, [("run", "form"), ("form", "kind"), ("epoch", "epoch"), ("loss", "mean loss"),
                                        ("low", "lowest rank"), ("high", "highest rank")], rows, spec)


def parts_of(comparison):
    """(part, its forms), in the report's order."""
    parts = {}
    for variant in comparison["variants"]:
        parts.setdefault(variant["part"], []).append(variant)
    return parts


def correct_of(comparison, variant):
    """The correct form of the same part; None where it is that itself, or there is none."""
    for other in comparison["variants"]:
        if other["part"] == variant["part"] and other["form"] == "correct":
            return None if other is variant else other
    return None


def lesson_losses(charts, comparison):
    drawn = []
    for part, variants in parts_of(comparison).items():
        chart = loss_chart(charts, identifier("loss", comparison["lesson"], part), f"Losses: {part}", variants)
        if chart:
            drawn.append(chart)
    return drawn


def divergence_chart(charts, comparison, variant):
    rows = []
    for run in (variant, correct_of(comparison, variant)):
        points = ((run or {}).get("pictures") or {}).get("divergence") or []
        rows += [[run["name"], run["form"], point["step"], shown(point["distance"])]
                 for point in points if point["distance"] is not None]
    if not any(row[0] == variant["name"] for row in rows):
        return None
    mine = [row[3] for row in rows if row[0] == variant["name"]]
    tolerance = variant["pictures"]["tolerance"]
    within = "stays within" if max(mine) <= tolerance else "leaves"
    return charts.add(
        f"divergence-{run_id(comparison['lesson'], variant['name'])}", "Distance between the replicas",
        f"The largest relative distance of a rank's parameters from rank 0's, by step, on a logarithmic scale. It {within} "
        f"the tolerance of {tolerance:g} (the band).",
        [("run", "form"), ("form", "kind"), ("step", "step"), ("distance", "distance")], rows,
        specs.divergence(forms_of(rows), tolerance))


def timeline_chart(charts, comparison, variant):
    picture = (variant.get("pictures") or {}).get("timeline")
    if not picture or not picture["calls"]:
        return None
    calls, first = picture["calls"], picture["first_difference"]
    several = len({call["group"] for call in calls}) > 1
    rows = []
    for call in sorted(calls, key=lambda call: (call["group"], call["rank"], call["sequence"])):
        lane = f"rank {call['rank']}" + (f", group {call['group']}" if several else "")
        differs = bool(first) and (call["group"], call["sequence"]) == (first["group"], first["sequence"])
        state = "never left" if call["left_s"] is None else "failed" if call.get("failed") else "completed"
        rows.append([lane, call["sequence"], call["op"], state, shown(call["entered_s"]), shown(call["left_s"]), differs])
    text = f"{len(calls)} collectives, a row for each rank, a column for each number of a call."
    if first:
        who = f", rank {', '.join(map(str, first['ranks']))}" if first["ranks"] else ""
        text += f" First difference: number {first['sequence']}{who}."
    else:
        text += " The ranks made the same calls."
    if picture["truncated"]:
        text += " There were more calls."
    operations = sorted({call["op"] for call in calls})
    return charts.add(
        f"timeline-{run_id(comparison['lesson'], variant['name'])}", "Collectives by rank", text,
        [("lane", "rank"), ("sequence", "number"), ("operation", "operation"), ("state", "state"),
         ("entered_s", "entered (s)"), ("left_s", "left (s)"), ("first", None)], rows,
        specs.timeline(operations, len({row[0] for row in rows})))


def owners_of(drawn_pass):
    """Rows [sample, next, owner, draws] of one pass; neighbours with one owner are one row. Where only every k-th id is
    there, each stands for those up to the next, and what no rank drew is not known."""
    drawn = {}
    for rank, ids in enumerate(drawn_pass["ranks"]):
        for sample in ids:
            drawn.setdefault(sample, []).append(rank)
    whole = drawn_pass["every"] == 1
    there = sorted(set(drawn) | set(range(drawn_pass["samples"] if whole else 0)))
    rows = []
    for sample, following in zip(there, there[1:] + [there[-1] + drawn_pass["every"]] if there else []):
        ranks = drawn.get(sample, [])
        owner = "no rank" if not ranks else f"rank {ranks[0]}" if len(set(ranks)) == 1 else "several ranks"
        if whole:
            following = sample + 1
        if rows and rows[-1][1] == sample and rows[-1][2:] == [owner, len(ranks)]:
            rows[-1][1] = following
        else:
            rows.append([sample, following, owner, len(ranks)])
    return rows


def owners_chart(charts, comparison, variant):
    passes = (variant.get("pictures") or {}).get("owners")
    if not passes:
        return None
    rows = [[f"pass {number}, epoch {epoch['epoch']}", *row]
            for number, epoch in enumerate(passes) for row in owners_of(epoch)]
    ranks = max(len(epoch["ranks"]) for epoch in passes)
    doubled, missing = (sum(row[2] - row[1] for row in rows if row[3] == who) for who in ("several ranks", "no rank"))
    every = max(epoch["every"] for epoch in passes)
    text = (f"Which of {ranks} ranks drew which sample, a row for each pass"
            f"{f', one sample in {every} shown' if every > 1 else ''}. "
            f"{'Samples of several ranks are there.' if doubled else 'No sample had two ranks.'} "
            f"{'' if every > 1 else 'Some samples had no rank.' if missing else 'Every sample had a rank.'}")
    return charts.add(
        f"owners-{run_id(comparison['lesson'], variant['name'])}", "Who drew which sample", text,
        [("pass", "pass"), ("sample", "from sample"), ("next", "to before"), ("owner", "drawn by"), ("draws", "times")], rows,
        specs.owners([f"rank {rank}" for rank in range(ranks)] + ["several ranks", "no rank"], len(passes)))


def run_charts(charts, comparison, variant):
    """(charts, a note of what this run's report does not hold)."""
    correct = correct_of(comparison, variant)
    drawn = [loss_chart(charts, f"loss-{run_id(comparison['lesson'], variant['name'])}", "Losses",
                        [variant] + ([correct] if correct else [])) if mean_losses(variant) else None]
    missing = [] if drawn[0] else ["losses"]
    for chart, what in ((divergence_chart, "distances between replicas"), (timeline_chart, "collectives"),
                        (owners_chart, "samples drawn")):
        drawn.append(chart(charts, comparison, variant))
        if drawn[-1] is None:
            missing.append(what)
    return [chart for chart in drawn if chart], missing
