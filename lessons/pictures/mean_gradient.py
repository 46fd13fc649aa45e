"""Lesson 03: one step of two ranks under DDP, at one weight."""

from figures import measured
from svg import Picture, signed

FILE = "03_ddp/picture.svg"
COLOURS = ["one", "two"]
DIGITS = 5
BOX = 70
# Where the box of each figure begins, and what stands above it.
COLUMNS = {"built": (58, "as built"), "weight": (160, "1. broadcast"), "own": (246, "own gradient"),
           "sum": (370, "all-reduce: sum"), "mean": (458, "2. mean"), "weight_after": (546, "3. SGD step")}


def draw():
    figures = measured("mean_gradient")
    first, second = figures["ranks"]
    whole = figures["one_process"]
    said = {name: [signed(held[name], DIGITS) for held in (first, second)] for name in COLUMNS}
    for name in ("weight", "sum", "mean", "weight_after"):
        assert said[name][0] == said[name][1], name
    same = signed(whole["gradient"], DIGITS), signed(whole["weight_after"], DIGITS)
    assert same == (said["mean"][0], said["weight_after"][0])
    picture = Picture(640, 260, "One step of two ranks under DDP, at one weight",
                      f"From a run, one bias of a linear layer. The ranks build it as {said['built'][0]} and "
                      f"{said['built'][1]}; the broadcast gives both {said['weight'][0]}. Their own gradients are "
                      f"{said['own'][0]} and {said['own'][1]}. The all-reduce gives both the sum, {said['sum'][0]}; "
                      f"divided by 2 it is {said['mean'][0]}. A step of SGD with the rate {figures['rate']} gives both "
                      f"{said['weight_after'][0]}. One process with all samples has the same gradient and weight.")
    for x, words in COLUMNS.values():
        picture.text(x + BOX / 2, 30, words, "soft", more="small")

    def arrow(start, end, y1, y2, colour="line"):
        picture.arrow(COLUMNS[start][0] + BOX + 3, y1 + 20, COLUMNS[end][0] - 3, y2 + 20, colour)

    for rank, colour in enumerate(COLOURS):
        y, other = 60 + 90 * rank, 60 + 90 * (1 - rank)
        picture.text(10, y + 25, f"rank {rank}", colour, "start", "small bold")
        for name, (x, _) in COLUMNS.items():
            edge = colour if name in ("built", "own") else "three"
            picture.box(x, y, BOX, 40, said[name][rank], edge=edge, more="small")
        arrow("built", "weight", 60, y, COLOURS[0])
        arrow("own", "sum", y, y, colour)
        arrow("own", "sum", y, other, colour)
        arrow("sum", "mean", y, y)
        arrow("mean", "weight_after", y, y)
    picture.text(320, 226, f"One process with all {2 * figures['batch']} samples has the gradient {same[0]}, and goes to {same[1]} too.",
                 more="small")
    picture.text(320, 246, f"One bias of a linear layer, {figures['batch']} images a rank, rate {figures['rate']}.", "soft", more="small")
    return picture.written()
