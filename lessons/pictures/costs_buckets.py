"""docs/costs.md: what of the all-reduce is hidden under backward, by the size of DDP's buckets."""

from step_costs import cases, key, median, stacked
from svg import Picture

FILE = "../docs/costs_buckets.svg"
PAGE = "costs.md"
LEFT, WIDTH, ROW = 150, 380, 28


def draw():
    [case] = cases("buckets", over_link=True)
    computing, all_reduce = median(case["no_sync"]["step"]), median(case["all_reduce"])
    scale = WIDTH / max(computing + all_reduce, *(median(ddp["step"]) for ddp in case["ddp"]))
    picture = Picture(640, 150 + (ROW + 8) * len(case["ddp"]), "Hidden and exposed communication, by the size of buckets",
                      f"Measured on 2 ranks over a link of {case['link_megabytes_a_second']:.0f} MB/s. Computing takes "
                      f"{computing:.0f} ms and the all-reduce {all_reduce:.0f} ms. A step takes "
                      + ", ".join(f"{median(ddp['step']):.0f} ms with {ddp['buckets']} "
                                  f"bucket{'s' if ddp['buckets'] > 1 else ''}" for ddp in case["ddp"])
                      + ". One bucket fills when backward is over, so nothing is hidden.")
    y = 20
    picture.text(20, y + 19, "one after the other", "soft", "start", "small")
    end = stacked(picture, LEFT, y, ROW, [(scale * computing, "one"), (scale * all_reduce, "two")])
    picture.text(end + 8, y + 19, f"{computing + all_reduce:.0f} ms", "ink", "start", "small")
    for row, ddp in enumerate(case["ddp"]):
        y, step = 72 + (ROW + 8) * row, median(ddp["step"])
        exposed = max(0, step - computing)
        hidden = min(max(0, all_reduce - exposed), computing)
        picture.text(20, y + 19, f"{ddp['buckets']} bucket{'s' if ddp['buckets'] > 1 else ''}", "soft", "start", "small")
        end = stacked(picture, LEFT, y, ROW, [(scale * min(computing, step), "one"), (scale * exposed, "bad")])
        start = LEFT + scale * (min(computing, step) - hidden)
        picture.box(round(start, 1), y + ROW - 9, round(scale * hidden, 1), 9, colour="two", edge=None)
        picture.text(end + 8, y + 19, f"{step:.0f} ms", "ink", "start", "small")
    bottom = 72 + (ROW + 8) * len(case["ddp"]) + 22
    key(picture, 20, bottom, [("computing", "one", 100), ("all-reduce by itself", "two", 150)])
    key(picture, 270, bottom, [("exposed", "bad", 90)])
    picture.box(360, bottom - 8, 14, 9, colour="two", edge=None)
    picture.text(380, bottom, "hidden under backward", "soft", "start", "small")
    picture.text(20, bottom + 26, f"{case['model']}, batch {case['batch']} a rank, 2 ranks, a link of "
                 f"{case['link_megabytes_a_second']:.0f} MB/s", "soft", "start", "small")
    return picture.written()
