"""start.md: an all-reduce of two ranks' gradients, with numbers."""

from svg import Picture

FILE = "start/all_reduce.svg"
SAMPLES = [[1, 3], [5, 7]]  # the gradients of each rank's samples
COLOURS = ["one", "two"]


def draw():
    means = [sum(own) // len(own) for own in SAMPLES]
    total = sum(means)
    mean = total // len(means)
    everything = [gradient for own in SAMPLES for gradient in own]
    assert mean * len(everything) == sum(everything)
    picture = Picture(640, 250, "An all-reduce with two ranks",
                      f"Rank 0 has the samples with gradients 1 and 3, mean {means[0]}. Rank 1 has 5 and 7, mean "
                      f"{means[1]}. The all-reduce gives both ranks the sum, {total}. Divided by 2 it is {mean}, the "
                      "mean of all four.")
    for place, words in [(115, "gradients"), (245, "mean"), (395, "all-reduce: sum"), (550, "divided by 2")]:
        picture.text(place, 30, words, "soft", more="small")
    for rank, own in enumerate(SAMPLES):
        y = 60 + 100 * rank
        picture.text(20, y + 26, f"rank {rank}", COLOURS[rank], "start", "bold")
        for at, gradient in enumerate(own):
            picture.box(85 + 34 * at, y, 28, 40, gradient, edge=COLOURS[rank])
        picture.arrow(155, y + 20, 219, y + 20)
        picture.box(225, y, 40, 40, means[rank], edge=COLOURS[rank])
        picture.arrow(271, y + 20, 369, y + 20, COLOURS[rank])
        picture.arrow(271, y + 20, 369, 60 + 100 * (1 - rank) + 20, COLOURS[rank])
        picture.box(375, y, 40, 40, total, edge="three")
        picture.arrow(421, y + 20, 524, y + 20)
        picture.box(530, y, 40, 40, mean, edge="three", more="bold")
    picture.text(320, 235, f"One device with all four samples: (1 + 3 + 5 + 7) / 4 = {mean}")
    return picture.written()
