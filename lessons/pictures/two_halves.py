"""Lesson 06: one feature of a batch of images on two ranks, and the statistics of each half and of the whole batch."""

import math
import statistics

from figures import measured
from svg import Picture, signed

FILE = "06_sync_batch_norm/picture.svg"
COLOURS = ["one", "two"]
LEFT, RIGHT = 90, 400


def draw():
    figures = measured("two_halves")
    halves, parts = figures["halves"], figures["statistics"]
    everything = [value for half in halves for value in half]
    lowest, highest = math.floor(10 * min(everything)) / 10, math.ceil(10 * max(everything)) / 10

    def place(value):
        return round(LEFT + (RIGHT - LEFT) * (value - lowest) / (highest - lowest), 1)

    def normalized(value, part):
        return (value - part["mean"]) / math.sqrt(part["variance"])

    images = [half[0] for half in halves]  # of each rank the first image
    own = [signed(normalized(image, part), 1) for image, part in zip(images, parts[:2], strict=True)]
    together = [signed(normalized(image, parts[2]), 1) for image in images]
    means = [signed(part["mean"], 2) for part in parts]
    variances = [signed(part["variance"], 3) for part in parts]
    mean_of_variances = signed(statistics.fmean(part["variance"] for part in parts[:2]), 3)
    assert mean_of_variances != variances[2]
    picture = Picture(650, 370, "Mean and variance of each half of a batch, and of the whole",
                      f"One feature of {len(everything)} images of Fashion-MNIST, {len(halves[0])} on each rank. The ranks' "
                      f"means are {means[0]} and {means[1]}, their variances {variances[0]} and {variances[1]}. The whole "
                      f"batch has mean {means[2]} and variance {variances[2]}, which is not the mean of the variances, "
                      f"{mean_of_variances}. The ranks' first images are normalized to {own[0]} and {own[1]}; in the whole "
                      f"batch to {together[0]} and {together[1]}.")
    for x, words in [(245, "one feature of each image"), (450, "mean"), (515, "variance"), (597, "first image,")]:
        picture.text(x, 20, words, "soft", more="small")
    picture.text(597, 36, "normalized", "soft", more="small")
    rows = [*zip(["rank 0", "rank 1"], COLOURS, [[(value, colour) for value in half] for half, colour in
                                                 zip(halves, COLOURS, strict=True)], strict=True)]
    rows.append(("both", "ink", [dot for _, _, dots in rows for dot in dots]))
    for row, (name, colour, dots) in enumerate(rows):
        y, part = 86 + 88 * row, parts[row]
        deviation = math.sqrt(part["variance"])
        picture.text(20, y + 5, name, colour, "start", "bold")
        picture.line(LEFT, y, RIGHT, y)
        for value, of in dots:
            picture.dot(place(value), y - (20 if row == 2 and of == "two" else 8), of, 4.5)
        left, right = place(part["mean"] - deviation), place(part["mean"] + deviation)
        picture.box(left, y + 7, right - left, 10, edge=colour)
        picture.line(place(part["mean"]), y + 3, place(part["mean"]), y + 21, "ink", width=3)
        picture.text(450, y + 5, means[row])
        picture.text(515, y + 5, variances[row])
        picture.text(597, y + 5, own[row] if row < 2 else " and ".join(together))
    for tenth in range(round(10 * lowest), round(10 * highest) + 1, 2):
        picture.text(place(tenth / 10), 303, signed(tenth / 10, 1), "soft", more="small")
    picture.text(245, 323, "bar: the mean and one standard deviation on each side", "soft", more="small")
    picture.text(325, 355, f"The mean of the variances is {mean_of_variances}, the variance of the whole batch {variances[2]}.")
    return picture.written()
