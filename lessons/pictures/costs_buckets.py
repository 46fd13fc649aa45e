"""docs/costs.md: how much of the all-reduce is hidden under backward, by the size of DDP's buckets."""

from step_costs import PARTS, cases, key, median, stacked
from svg import Picture

FILE = "../docs/costs_buckets.svg"
PAGE = "costs.md"
LEFT, WIDTH, ROW, LANE = 120, 420, 24, 10
COLOUR = "two"  # the all-reduce's


def buckets(ddp):
    return f"{ddp['buckets']} bucket{'s' if ddp['buckets'] > 1 else ''}"


def draw():
    [case] = cases("buckets", over_link=True)
    link = f"a link of {case['link_megabytes_a_second']:.0f} MB/s"
    scale = WIDTH / max(median(ddp["step"]) for ddp in case["ddp"])
    bottom = 34 + 54 * len(case["ddp"])
    picture = Picture(640, bottom + 44, "The all-reduce under backward, by the size of buckets",
                      f"Measured on 2 ranks over {link}. Hidden under backward is "
                      + ", ".join(f"{100 * median(ddp['hidden']):.0f} % of the all-reduce with {buckets(ddp)}"
                                  for ddp in case["ddp"])
                      + ". One bucket is full when backward is over, so its all-reduce is waited for from its begin to its end.")
    for row, ddp in enumerate(case["ddp"]):
        y = 20 + 54 * row
        picture.text(20, y + 17, buckets(ddp), "soft", "start", "small")
        end = stacked(picture, LEFT, y, ROW, [(scale * median(ddp[part]), colour) for part, colour in PARTS])
        picture.text(end + 8, y + 17, f"{median(ddp['step']):.0f} ms", "ink", "start", "small")
        hidden = median(ddp["reducing"]) - median(ddp["exposed"])
        begin = LEFT + scale * (median(ddp["forward"]) + median(ddp["backward"]) - hidden)
        stacked(picture, begin, y + ROW + 3, LANE, [(scale * median(ddp["reducing"]), COLOUR)])
    key(picture, 20, bottom, [*((part, colour, 90) for part, colour in PARTS), ("all-reduce", COLOUR, 90)])
    picture.text(20, bottom + 26, f"{case['model']}, batch {case['batch']} a rank, 2 ranks, {link}", "soft", "start", "small")
    return picture.written()
