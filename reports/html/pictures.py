"""What the page draws of a run, and in which order: first what shows its fault, beside the correct variant's run."""

import dataclasses
import re

import distance
import losses
import owners
import timeline

TRACED = (owners, distance, timeline)  # drawn of what the ranks recorded


@dataclasses.dataclass
class Pair:
    title: str
    how: str      # to read it
    legend: list  # of both
    panels: list  # the correct run's chart and the broken one's, on the same scales


def identifier(*words):
    """An id of the page: different words give different ones, and nothing in them has a meaning in HTML or a URL."""
    return "-".join(re.sub(r"[^A-Za-z0-9_-]", lambda match: f".{ord(match.group()):x}.", word) for word in words)


def run_id(lesson, name):
    return identifier("run", lesson, name)


def parts_of(comparison):
    """(part, its variants), in the report's order."""
    parts = {}
    for variant in comparison["variants"]:
        parts.setdefault(variant["part"], []).append(variant)
    return parts


def correct_of(comparison, variant):
    """The correct variant of the same part; None where it is that itself, or there is none."""
    for other in comparison["variants"]:
        if other["part"] == variant["part"] and other["kind"] == "correct":
            return None if other is variant else other
    return None


def lesson_losses(charts, comparison):
    drawn = (losses.chart(charts, identifier("loss", comparison["lesson"], part), f"Losses: {part}", variants)
             for part, variants in parts_of(comparison).items())
    return [chart for chart in drawn if chart]


def alone(charts, lesson, kind, variant):
    rows = kind.rows(variant)
    return charts.add(f"{kind.KIND}-{run_id(lesson, variant['name'])}", kind.TITLE, f"{kind.HOW} {kind.words(variant)}",
                      kind.COLUMNS, rows, kind.spec([variant], rows), legend=kind.legend(rows))


def beside(charts, lesson, kind, variant, correct):
    """Beside the correct run's where that has one to draw."""
    if not kind.of(correct):
        return alone(charts, lesson, kind, variant)
    id, right, rows = f"{kind.KIND}-{run_id(lesson, variant['name'])}", kind.rows(correct), kind.rows(variant)
    spec = kind.spec([correct, variant], right + rows)
    return Pair(kind.TITLE, kind.HOW, kind.legend(right + rows), [
        charts.add(f"beside-{id}", correct["name"], kind.words(correct), kind.COLUMNS, right, spec),
        charts.add(id, variant["name"], kind.words(variant, correct), kind.COLUMNS, rows, spec)])


def that_differ(variant, correct):
    """The kinds of pictures in which a broken run looks different. Ranks that part ways explain the rest."""
    kinds = [kind for kind in TRACED if kind.differs(variant, correct)]
    parted = timeline in kinds and (variant["outcome"] != "completed" or timeline.of(variant)["first_difference"])
    return sorted(kinds, key=lambda kind: kind is not timeline) if parted else kinds


def of_run(charts, comparison, variant):
    """What the page has of a run: the pictures that show its fault, the others, the loss, and what its report lacks."""
    correct = correct_of(comparison, variant)
    lead = that_differ(variant, correct) if variant["kind"] == "broken" else []
    loss = losses.chart(charts, f"loss-{run_id(comparison['lesson'], variant['name'])}", "Losses",
                        [variant] + ([correct] if correct else [])) if losses.mean_losses(variant) else None
    lesson = comparison["lesson"]
    return {"lead": [beside(charts, lesson, kind, variant, correct) for kind in lead],
            "others": [alone(charts, lesson, kind, variant) for kind in TRACED
                       if kind not in lead and kind.of(variant)],
            "loss": loss,
            "missing": [*([] if loss else ["losses"]), *(kind.MISSING for kind in TRACED if not kind.of(variant))]}
