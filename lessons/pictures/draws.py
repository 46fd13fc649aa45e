"""Lesson 15: the first random number of each batch on two ranks, with seeds by rank and with one seed, from two runs."""

from figures import measured
from svg import Picture

FILE = "15_randomness/picture.svg"
COLOURS = ["one", "two"]


def draw():
    figures = measured("draws")
    by_rank, one = figures["seeds_by_rank"], figures["one_seed"]
    assert one[0] == one[1] and not set(by_rank[0]) & set(by_rank[1])

    def listed(numbers):
        return ", ".join(f"{number:.2f}" for number in numbers)

    picture = Picture(560, 300, "Random numbers that two ranks draw, with seeds by rank and with one seed",
                      f"From two runs. With a seed for each rank, rank 0 draws {listed(by_rank[0])} and rank 1 draws "
                      f"{listed(by_rank[1])}. With one seed both draw {listed(one[0])}.")
    for top, title, ranks in [(28, "each rank has a seed of its own, once the model is made", by_rank),
                              (158, "both ranks keep the model's seed", one)]:
        picture.text(20, top, title, "ink", "start", "bold")
        for rank, numbers in enumerate(ranks):
            y, same = top + 16 + 44 * rank, numbers == ranks[1 - rank]
            picture.text(20, y + 23, f"rank {rank}", COLOURS[rank], "start")
            for at, number in enumerate(numbers):
                picture.box(90 + 76 * at, y, 66, 34, f"{number:.2f}", edge="bad" if same else COLOURS[rank], ink="bad" if same else "ink")
    picture.text(280, 284, "The first random number that each rank draws for each of its first six batches.", "soft", more="small")
    return picture.written()
