"""Lesson 12: one update of four microbatches, with no_sync and without, as rank 0 recorded it."""

from figures import measured
from svg import Picture

FILE = "12_gradient_accumulation/picture.svg"
WIDTHS = {"forward": 74, "reduced": 44, "update": 70}


def draw():
    figures = measured("accumulated")
    with_it, every = figures["no_sync"], figures["every"]
    sizes = {size for run in figures.values() for size in run if isinstance(size, int)}
    counts = [sum(isinstance(entry, int) for entry in run) for run in (with_it, every)]
    microbatches = with_it.count("forward")
    [elements] = sizes
    assert counts == [1, microbatches] and every.count("forward") == microbatches
    picture = Picture(640, 230, "One update of four microbatches, with no_sync and without",
                      f"From two runs, on rank 0. With no_sync the first {microbatches - 1} microbatches are not reduced, and the "
                      f"last one is followed by one all-reduce of all {elements:,} gradients. Without it each of the "
                      f"{microbatches} microbatches is followed by an all-reduce of {elements:,}.")
    for top, title, run in [(28, "with no_sync, except in the last", with_it), (118, "without no_sync", every)]:
        picture.text(20, top, title, "ink", "start", "bold")
        x, number = 20, 0
        for entry in run:
            kind = "reduced" if isinstance(entry, int) else entry
            if kind == "forward":
                number += 1
                picture.box(x, top + 14, WIDTHS[kind], 34, f"micro {number}", edge="one", more="small")
            elif kind == "reduced":
                picture.box(x, top + 14, WIDTHS[kind], 34, colour="two", edge="two")
            else:
                picture.box(x, top + 14, WIDTHS[kind], 34, kind, edge="three", more="small")
            x += WIDTHS[kind] + 8
    picture.box(20, 190, 44, 22, colour="two", edge="two")
    picture.text(74, 206, f"all-reduce of {elements:,} gradients", "soft", "start", "small")
    picture.text(330, 206, "micro: forward and backward of a microbatch", "soft", "start", "small")
    return picture.written()
