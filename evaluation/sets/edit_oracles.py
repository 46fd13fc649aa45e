"""What an edited program did, beside its base: each oracle sees exits, final weights and reported numbers only.

An oracle takes the runs of the base and of the edited program and returns whether the edit is what it is said to
be, with the figures that it decided by. The base must be right by the same figures.
"""

import math

APART = 1e-3     # ranks that should be equal are not, as a part of a tensor's norm
OTHER = 1e-2     # weights are others than the base's, which does the same to the bit each time;
                 # AdamW makes rounding so large that a transformer's loss written otherwise moves them by 0.017
OTHER_OF = {"transformer": 6e-2, "words": 6e-2}
ROUNDING = 1e-3  # and these are the same but for rounding, which training makes larger
NOT_NUMBERS = {"losses", "seen", "tokens", "drawn"}
WORSE = 1.15     # the held-out loss, as many times the base's


def distance(one, other):
    """The greatest difference of two tensors of floats, as a part of their greater norm."""
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return math.inf
    greatest = 0.0
    for name in one:
        if one[name].is_floating_point():
            difference = (one[name] - other[name]).norm().item()
            norm = max(one[name].norm().item(), other[name].norm().item())
            if not math.isfinite(difference):
                return math.inf
            greatest = max(greatest, difference / norm if norm > 0 else 0.0)
    return greatest


def between_ranks(run):
    return distance(run.weights[0], run.weights[1])


def from_base(base, edited):
    return max(distance(*pair) for pair in zip(base.weights, edited.weights, strict=True))


def mean_held_out(run):
    return sum(one["held_out"] for one in run.reports) / len(run.reports)


def fails(base, edited):
    """The job ends with an error, or not at all."""
    return base.code == 0 and edited.code != 0, {"exit": edited.code, "error": edited.error}


def ranks_differ(base, edited):
    figures = {"base": between_ranks(base), "edited": between_ranks(edited)}
    return figures["base"] == 0 and figures["edited"] > APART, figures


def trains_other(base, edited):
    """From the same start, with the same batches, it comes to other weights than the right program."""
    figures = {"from base": from_base(base, edited), "base held out": mean_held_out(base),
               "held out": mean_held_out(edited)}
    return figures["from base"] > OTHER_OF.get(base.name, OTHER), figures


def worse(base, edited):
    figures = {"base": mean_held_out(base), "edited": mean_held_out(edited)}
    return not figures["edited"] <= WORSE * figures["base"], figures  # NaN is worse


def same_batches(base, edited):
    """Each step both ranks draw the same random numbers, or count the same words, or have the same loss: the first of
    these that they report."""
    key = next(key for key in ("drawn", "tokens", "losses") if key in base.reports[0])
    equal = [sum(one == other for one, other in zip(*(report[key] for report in run.reports), strict=True))
             for run in (base, edited)]
    figures = {"base": equal[0], "edited": equal[1], "steps": len(edited.reports[0][key])}
    return 2 * equal[0] < figures["steps"] and equal[1] == figures["steps"], figures


def dealt(run):
    """Samples of the first epoch, distinct ones among them, and whether the next one has the same order."""
    first = [number for report in run.reports for number in report["seen"][0]]
    return {"samples": len(first), "distinct": len(set(first)),
            "orders repeat": all(report["seen"][0] == report["seen"][1] for report in run.reports)}


def repeats_data(base, edited):
    """An epoch has a sample twice, or every epoch has one order."""
    was, now = dealt(base), dealt(edited)
    right = was["samples"] == was["distinct"] and not was["orders repeat"]
    return right and (now["distinct"] < now["samples"] or now["orders repeat"]), {"base": was, "edited": now}


def read(run):
    """Of each epoch, the examples that all ranks read."""
    return [[number for part in parts for number in part]
            for parts in zip(*(report["seen"] for report in run.reports), strict=True)]


def shares_wrong(base, edited):
    """In some epoch an example is read twice, or fewer examples are read than by the right program."""
    was, now = read(base), read(edited)
    figures = {name: [{"samples": len(one), "distinct": len(set(one))} for one in epochs]
               for name, epochs in (("base", was), ("edited", now))}
    right = all(len(one) == len(set(one)) for one in was)
    return right and any(len(set(after)) < max(len(after), len(before))
                         for before, after in zip(was, now, strict=True)), figures


def numbers(report):
    """What a rank reports beside its losses and its samples, by name and place."""
    return {(key, place): value for key, values in report.items() if key not in NOT_NUMBERS
            for place, value in enumerate(values if isinstance(values, list) else [values])}


def apart(one, other):
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def reports_differ(base, edited):
    """The ranks report different numbers where they should report the same ones."""
    def greatest(run):
        own, others = map(numbers, run.reports)
        return max(apart(own[key], others[key]) for key in own.keys() & others.keys())
    figures = {"base": greatest(base), "edited": greatest(edited)}
    return figures["base"] < 1e-6 and figures["edited"] > APART, figures


def reported_wrong(base, edited):
    """A number is reported wrong of the same training; after another one, only the first of its kind counts."""
    was, now = base.reports[0], edited.reports[0]
    same = was["losses"] == now["losses"]
    before, after = numbers(was), numbers(now)
    wrong = {key: apart(before[key], after[key]) for key in before.keys() & after.keys()
             if same or (key[1] == 0 and isinstance(was[key[0]], list) and len(was[key[0]]) > 1)}
    key = max(wrong, key=wrong.get)
    figures = {"number": f"{key[0]}[{key[1]}]", "base": before[key], "edited": after[key], "same training": same}
    return was["losses"][0] == now["losses"][0] and wrong[key] > APART, figures


def best_lost(base, edited):
    """The weights that it ends with are not those that validated best."""
    figures = {}
    for name, run in ("base", base), ("edited", edited):
        reported = numbers(run.reports[0])
        figures[name] = reported["held_out", 0] - reported["best", 0]
    return abs(figures["base"]) < 1e-6 and figures["edited"] > 1e-4, figures


def same_weights(base, edited):
    figures = {"from base": from_base(base, edited), "between ranks": between_ranks(edited)}
    return edited.code == 0 and figures["from base"] < ROUNDING and figures["between ranks"] == 0, figures


def same_quality(base, edited):
    figures = {"base": mean_held_out(base), "edited": mean_held_out(edited), "between ranks": between_ranks(edited)}
    return (edited.code == 0 and figures["between ranks"] == 0 and
            figures["edited"] <= WORSE * figures["base"]), figures


ORACLES = {one.__name__: one for one in (
    fails, ranks_differ, trains_other, worse, same_batches, repeats_data, shares_wrong, reports_differ, reported_wrong,
    best_lost, same_weights, same_quality)}
