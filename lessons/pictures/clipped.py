"""Lesson 13: the norms of two ranks' gradients, reduced and then clipped, and clipped and then reduced, from two runs."""

from figures import measured
from svg import Picture

FILE = "13_clipping_and_mixed_precision/picture.svg"
COLOURS = ["one", "two"]
PLACES, WIDTH = [190, 345, 500], 80


def draw():
    figures = measured("clipped")
    right, wrong = figures["reduced_first"], figures["clipped_first"]
    limit = right["limit"]
    own = [f"{norm:.2f}" for norm in right["own"]]
    assert own == [f"{norm:.2f}" for norm in wrong["own"]]
    mean = f"{right['before_clip'][0]:.2f}"
    ends = [f"{run['used'][0]:.3f}" for run in (right, wrong)]
    assert ends[0] == f"{limit:.3f}" > ends[1] and all(norm > limit for norm in wrong["before_clip"])
    picture = Picture(640, 330, "Norms of two ranks' gradients: reduced and then clipped, and clipped and then reduced",
                      f"From two runs with max_norm {limit}. The ranks' own gradients have the norms {own[0]} and {own[1]}. Reduced "
                      f"first, their mean has the norm {mean}, and is clipped to {ends[0]}. Clipped first, each has the norm {limit}, "
                      f"and their mean has {ends[1]}.")
    mean_column, clip_column = "all-reduce: mean", "clip"
    for top, title, columns in [(28, "reduce, then clip", [mean_column, clip_column]),
                                (178, "clip, then reduce", [clip_column, mean_column])]:
        right_order = columns[0] == mean_column
        picture.text(20, top, title, "ink", "start", "bold")
        for x, words in zip(PLACES, ["own gradient", *columns], strict=True):
            picture.text(x + WIDTH / 2, top, words, "soft", more="small")
        for rank, colour in enumerate(COLOURS):
            y, other = top + 16 + 54 * rank, top + 16 + 54 * (1 - rank)
            picture.text(20, y + 25, f"rank {rank}", colour, "start", "bold")
            between, edge = (mean, "three") if right_order else (f"{limit:.3f}", colour)
            end, end_edge, ink = (ends[0], "three", "ink") if right_order else (ends[1], "bad", "bad")
            for x, words, of, inked in [(PLACES[0], own[rank], colour, "ink"), (PLACES[1], between, edge, "ink"), (PLACES[2], end, end_edge, ink)]:
                picture.box(x, y, WIDTH, 38, words, edge=of, ink=inked)
            for at, column in enumerate(columns):
                x1, x2 = PLACES[at] + WIDTH + 4, PLACES[at + 1] - 4
                picture.arrow(x1, y + 19, x2, y + 19, colour if column == mean_column else "line")
                if column == mean_column:
                    picture.arrow(x1, y + 19, x2, other + 19, colour)
    picture.text(320, 318, f"Norms of gradients; max_norm is {limit}. Clipped first, the mean of the two is shorter.")
    return picture.written()
