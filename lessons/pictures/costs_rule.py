"""docs/costs.md: the rule beside measured steps, from communication-bound to compute-bound."""

from step_costs import beyond_rule, cases, key, median, stacked
from svg import Picture

FILE = "../docs/costs_rule.svg"
PAGE = "costs.md"
LEFT, WIDTH, ROW = 205, 270, 28


def draw():
    measured = cases("batches")
    ranks = measured[0]["ranks"]

    def said(case):
        return (f"batch {case['batch']}: the all-reduce is {median(case['all_reduce']) / median(case['no_sync']['step']):.2g} "
                f"of computing, speed-up {median(case['ddp'][0]['speedup']):.2f}")

    picture = Picture(640, 78 + 58 * len(measured), "Steps and the rule, by batch size",
                      f"Measured on {ranks} ranks over a link of {measured[0]['link_megabytes_a_second']:.0f} MB/s. "
                      + "; ".join(map(said, measured)) + ". Each bar is a step, in parts of its computing; the mark is "
                      "where the rule says that it ends.")
    longest = max(max(median(case["ddp"][0]["step"]), median(case["no_sync"]["step"]) + beyond_rule(case))
                  / median(case["no_sync"]["step"]) for case in measured)
    for row, case in enumerate(measured):
        y, [ddp], computing = 24 + 58 * row, case["ddp"], median(case["no_sync"]["step"])
        scale = WIDTH / longest / computing
        step = median(ddp["step"])
        picture.text(20, y + 12, f"batch {case['batch']} a rank", "ink", "start", "small")
        picture.text(20, y + 28, f"all-reduce / computing {median(case['all_reduce']) / computing:.2f}", "soft", "start", "small")
        end = stacked(picture, LEFT, y, ROW,
                      [(scale * min(step, computing), "one"), (scale * max(0, step - computing), "bad")])
        at = round(LEFT + scale * (computing + beyond_rule(case)), 1)
        picture.line(at, y - 6, at, y + ROW + 6, "ink", width=2.5)
        picture.text(max(end, at) + 8, y + 19, f"{step:.0f} ms, speed-up {median(ddp['speedup']):.2f}", "ink", "start", "small")
    bottom = 30 + 58 * len(measured)
    key(picture, 20, bottom, [("computing", "one", 110), ("exposed communication", "bad", 170)])
    picture.line(305, bottom - 14, 305, bottom + 6, "ink", width=2.5)
    picture.text(314, bottom, "where the rule says that the step ends", "soft", "start", "small")
    picture.text(20, bottom + 28, f"{measured[0]['model']}, {ranks} ranks, a link of "
                 f"{measured[0]['link_megabytes_a_second']:.0f} MB/s; each bar in parts of its own computing", "soft", "start", "small")
    return picture.written()
