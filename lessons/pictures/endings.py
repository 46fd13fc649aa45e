"""Lesson 11: three ways to end an epoch in which rank 0 has a batch more than rank 1, from three runs."""

from figures import measured
from svg import Picture

FILE = "11_uneven_inputs/picture.svg"
COLOURS = ["one", "two"]
WAYS = [("join", "join: rank 1 takes part with zeros"), ("fewest", "the fewest batches: rank 0 leaves one out"),
        ("empty", "an empty batch on rank 1")]
LEFT, PITCH, WIDTH = 110, 125, 100


def draw():
    figures = measured("endings")
    most = max(rank["reductions"] for way in figures.values() for rank in way)
    for way in figures.values():
        assert way[0]["reductions"] == way[1]["reductions"]
    # Where all batches are trained on, rank 0 has one more than rank 1.
    assert len(figures["join"][0]["batches"]) == most == len(figures["join"][1]["batches"]) + 1
    picture = Picture(640, 430, "Three ways to end an epoch in which rank 0 has a batch more than rank 1",
                      f"From three runs. Rank 0 has {most} batches of {figures['join'][0]['batches'][0]} samples, rank 1 has "
                      f"{most - 1}. With join, rank 1 takes part in the last all-reduce with zeros. With the fewest batches, "
                      f"both make {most - 1} all-reduces and rank 0's last batch is not used. With an empty batch, rank 1 runs "
                      "its last backward on 0 samples. Each time both ranks make equally many all-reduces.")
    for block, (way, title) in enumerate(WAYS):
        top = 28 + 132 * block
        picture.text(20, top, title, "ink", "start", "bold")
        for at in range(figures[way][0]["reductions"]):
            middle = LEFT + PITCH * at + WIDTH / 2
            picture.line(middle, top + 42, middle, top + 64, "ink", width=3)
        for rank, colour in enumerate(COLOURS):
            y, own = top + 14 + 50 * rank, figures[way][rank]
            picture.text(20, y + 19, f"rank {rank}", colour, "start")
            for at in range(most):
                x = LEFT + PITCH * at
                drawn = at < len(own["batches"])
                if drawn and own["batches"][at] > 0:
                    picture.box(x, y, WIDTH, 28, f"{own['batches'][at]} samples", edge=colour, more="small")
                elif drawn:
                    picture.box(x, y, WIDTH, 28, "0 samples", colour="paper", edge=colour, more="small")
                elif at < own["reductions"]:
                    picture.box(x, y, WIDTH, 28, "zeros", colour="paper", edge="line", ink="soft", more="small")
                elif rank == 0:
                    picture.box(x, y, WIDTH, 28, "not used", colour="paper", edge="line", ink="soft", more="small")
    picture.line(130, 414, 130, 428, "ink", width=3)
    picture.text(142, 425, "an all-reduce of the gradients, in which both ranks take part", "soft", "start", "small")
    return picture.written()
