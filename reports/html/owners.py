"""Who drew which sample: the first two passes over the data, as a run's report holds them."""

import specs

KIND, TITLE, MISSING = "owners", "Who drew which sample", "samples drawn"
HOW = "A row for each epoch, a place for each sample. The colour says which rank drew it."
COLUMNS = [("epoch", "epoch"), ("sample", "from sample"), ("next", "to before"), ("owner", "drawn by"),
           ("draws", "times")]
SEVERAL, NONE = "several ranks", "no rank"
VISIBLE = 0.005  # a smaller share of the samples is not seen in the picture


def of(variant):
    passes = ((variant or {}).get("pictures") or {}).get("owners") or []
    return passes if any(ids for drawn in passes for ids in drawn["ranks"]) else []


def draws_of(drawn_pass):
    """sample -> the ranks that drew it, once for each time."""
    draws = {}
    for rank, ids in enumerate(drawn_pass["ranks"]):
        for sample in ids:
            draws.setdefault(sample, []).append(rank)
    return draws


def known(passes):
    """The samples that a report could hold: all; or, where it holds every k-th that was drawn, those of any pass."""
    samples = set().union(*(draws_of(drawn) for drawn in passes))
    return samples.union(*(range(drawn["samples"]) for drawn in passes if drawn["every"] == 1))


def rows_of(drawn_pass, there):
    """Rows [sample, next, owner, draws] of one pass; neighbours with one owner are one row. Where only every k-th
    sample is there, each stands for those up to the next."""
    draws, there = draws_of(drawn_pass), sorted(there)
    rows = []
    for sample, following in zip(there, there[1:] + [there[-1] + drawn_pass["every"]] if there else []):
        ranks = draws.get(sample, [])
        owner = NONE if not ranks else f"rank {ranks[0]}" if len(set(ranks)) == 1 else SEVERAL
        if drawn_pass["every"] == 1:
            following = sample + 1
        if rows and rows[-1][1] == sample and rows[-1][2:] == [owner, len(ranks)]:
            rows[-1][1] = following
        else:
            rows.append([sample, following, owner, len(ranks)])
    return rows


def lanes(passes):
    """A name for each pass: its epoch. A run that resumes may go through one epoch twice."""
    names = []
    for drawn in passes:
        name = f"epoch {drawn['epoch']}"
        names.append(f"{name} again" if name in names else name)
    return names


def rows(variant):
    passes = of(variant)
    there = known(passes)
    return [[lane, *row] for lane, drawn in zip(lanes(passes), passes) for row in rows_of(drawn, there)]


def repeats(passes):
    """Whether the second pass deals each rank the same samples in the same order, as far as it went."""
    if len(passes) < 2 or not any(passes[1]["ranks"]):
        return False
    return all(second == first[:len(second)] for first, second in zip(passes[0]["ranks"], passes[1]["ranks"]))


def shares(variant):
    """Of the pass that is worst: the share of the samples drawn more than once, the share drawn by no rank, and how
    often one was drawn. A run that ended early left samples over; that is no fault of who draws what."""
    passes = of(variant)
    there = known(passes)
    twice = missing = most = 0
    for drawn in passes:
        draws = draws_of(drawn)
        twice = max(twice, sum(len(ranks) > 1 for ranks in draws.values()) / len(there))
        if variant["outcome"] == "completed":
            missing = max(missing, 1 - len(draws) / len(there))
        most = max(most, *map(len, draws.values()), 0)
    return twice, missing, most


def differs(broken, correct):
    if not of(broken):
        return False
    twice, missing, most = shares(broken)
    right = shares(correct) if of(correct) else (0, 0, 1)
    return (twice > right[0] + VISIBLE or missing > right[1] + VISIBLE or most > right[2]
            or repeats(of(broken)) and not repeats(of(correct)))


def share(part):
    return "All" if part == 1 else f"{100 * part:.2g} % of the"


def words(variant, correct=None):
    passes = of(variant)
    twice, missing, most = shares(variant)
    said = []
    if twice:
        said.append(f"{share(twice)} samples are drawn more than once{f', up to {most} times' if most > 2 else ''}.")
    if missing:
        said.append(f"{share(missing)} samples are drawn by no rank.")
    if not said:
        whole = variant["outcome"] == "completed"
        said.append("Each sample is drawn once." if whole else "No sample is drawn more than once.")
    if len(passes) > 1:
        said.append("The second epoch repeats the first: each rank draws the same samples in the same order."
                    if repeats(passes) else "The second epoch has another order.")
    if (every := passes[0]["every"]) > 1:
        said.append(f"One sample in {every} is shown.")
    return " ".join(said)


def owners_in(drawn):
    """owner -> page.css's class, of all rows that are drawn."""
    there = {row[3] for row in drawn}
    ranks = sorted(int(name.split()[1]) for name in there - {SEVERAL, NONE})
    classes = {f"rank {rank}": specs.series(rank) for rank in ranks} | {SEVERAL: "broken", NONE: "nobody"}
    return {name: of for name, of in classes.items() if name in there}


def legend(drawn):
    """Short, so that eight ranks fit a telephone's line."""
    short = {SEVERAL: "several", NONE: "none"}
    return [(short.get(name, name), of) for name, of in owners_in(drawn).items()]


def spec(variants, drawn):
    look = owners_in(drawn)
    first, last = min(row[1] for row in drawn), max(row[2] for row in drawn)
    passes = max(len(of(variant)) for variant in variants)
    return specs.chart(32 * passes, mark={"type": "rect", "stroke": None}, encoding={
        "x": specs.of("sample", "quantitative", "sample", axis={"grid": False, "tickCount": 5},
                      scale={"nice": False, "domain": [first, last]}),
        "x2": {"field": "next"},
        "y": specs.of("epoch", "nominal", None, sort=None, scale={"paddingInner": 0.02, "paddingOuter": 0}),
        "color": specs.of("owner", "nominal", None, legend=None,
                          scale={"domain": list(look), "range": specs.colours(look.values())}),
        "tooltip": specs.tips(("epoch", "epoch"), ("sample", "sample"), ("owner", "owner"), ("draws", "times drawn"))})
