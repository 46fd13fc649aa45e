"""docs/costs.md: the parts of a step on 1, 2 and 4 ranks, for three models."""

from step_costs import PARTS, cases, key, median, stacked
from svg import Picture

FILE = "../docs/costs_parts.svg"
PAGE = "costs.md"
LEFT, WIDTH, ROW = 84, 380, 26


def ranks_of(case):
    return f"{case['ranks']} rank{'s' if case['ranks'] > 1 else ''}"


def said(case):
    [ddp] = case["ddp"]
    waiting = median(ddp["waiting"]) / median(ddp["step"])
    return f"{median(ddp['step']):.1f} ms on {ranks_of(case)}, {100 * waiting:.0f} % of it waiting"


def draw():
    measured = cases("ranks")
    models = list(dict.fromkeys(case["model"] for case in measured))
    picture = Picture(640, 40 + len(models) * 132, "The parts of a step on 1, 2 and 4 ranks",
                      "Measured on 2 processors, with 32 samples on each rank. A step of the "
                      + "; of the ".join(f"{model} takes " + ", ".join(said(case) for case in measured if case["model"] == model)
                                         for model in models) + ".")
    for number, model in enumerate(models):
        top = 34 + 132 * number
        own = [case for case in measured if case["model"] == model]
        scale = WIDTH / max(median(case["ddp"][0]["step"]) for case in own)
        picture.text(20, top, f"{model}, {own[0]['gradient_megabytes']:.2g} MB of gradients", "ink", "start", "bold")
        for row, case in enumerate(own):
            y, [ddp] = top + 12 + (ROW + 5) * row, case["ddp"]
            picture.text(20, y + 18, ranks_of(case), "soft", "start", "small")
            end = stacked(picture, LEFT, y, ROW, [(scale * median(ddp[part]), colour) for part, colour in PARTS])
            speedup = f", speed-up {median(ddp['speedup']):.2f}" if case["ranks"] > 1 else ""
            picture.text(end + 8, y + 18, f"{median(ddp['step']):.1f} ms{speedup}", "ink", "start", "small")
    key(picture, LEFT, 24 + len(models) * 132, [(part, colour, 100) for part, colour in PARTS])
    return picture.written()
