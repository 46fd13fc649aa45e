"""Lesson 04: which rank draws which sample, as torch's DistributedSampler deals them."""

from figures import measured
from svg import Picture

FILE = "04_sampler/picture.svg"
COLOURS = ["one", "two", "three"]
SIDE = 36


def listed(ids):
    return ", ".join(map(str, ids))


def draw():
    figures = measured("shares")
    samples, dealt = figures["samples"], figures["dealt"]
    order = [sample for turn in zip(*dealt, strict=True) for sample in turn]
    again = len(order) - samples
    assert order[samples:] == order[:again]
    picture = Picture(610, 290, f"{samples} samples dealt to {len(dealt)} ranks",
                      f"The shuffled order of one epoch is {listed(order[:samples])}. The first {again} are repeated "
                      f"at the end, so that {len(order)} can be dealt. Each rank takes every third one: "
                      + "; ".join(f"rank {rank} takes {listed(ids)}" for rank, ids in enumerate(dealt)) + ".")

    def square(place, y, rank):
        picture.box(90 + 42 * place, y, SIDE, SIDE, order[place], edge=COLOURS[rank])

    picture.text(20, 73, "order", "ink", "start", "bold")
    for place in range(len(order)):
        rank = place % len(dealt)
        square(place, 50, rank)
        square(place, 120 + 46 * rank, rank)
    for rank, colour in enumerate(COLOURS):
        picture.text(20, 143 + 46 * rank, f"rank {rank}", colour, "start", "bold")
    left = 90 + 42 * samples
    picture.line(left, 40, left + 42 * again - 6, 40, "soft")
    picture.text(left + 21 * again - 3, 30, f"the first {again} again", "soft", more="small")
    picture.text(305, 276, f"{samples} samples, {len(dealt)} ranks: each draws {len(dealt[0])}, and {again} samples "
                 "come twice.")
    return picture.written()
