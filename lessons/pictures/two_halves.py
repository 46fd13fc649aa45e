"""Lesson 06: one feature's values on two ranks, and the statistics of each half and of the whole batch."""

import statistics

from svg import Picture

FILE = "06_sync_batch_norm/picture.svg"
HALVES = [[1, 3, 3, 5], [3, 7, 7, 11]]
COLOURS = ["one", "two"]
EXAMPLE = 3  # a value that both halves have


def number(value):
    """At most two decimals, with a real minus sign."""
    return f"{value:.2f}".rstrip("0").rstrip(".").replace("-", "\N{MINUS SIGN}")


def place(value):
    return 90 + 27 * value


def draw():
    rows = [(f"rank {rank}", COLOURS[rank], [(value, COLOURS[rank]) for value in half])
            for rank, half in enumerate(HALVES)]
    rows.append(("both", "ink", [dot for _, _, dots in rows for dot in dots]))
    everything = [value for half in HALVES for value in half]
    variances = [number(statistics.pvariance(values)) for values in [*HALVES, everything]]
    mean_of_variances = number(statistics.mean(map(statistics.pvariance, HALVES)))
    picture = Picture(650, 370, "Mean and variance of each half of a batch, and of the whole",
                      "Rank 0 has the values 1, 3, 3, 5, rank 1 has 3, 7, 7, 11. Their means are 3 and 7, their "
                      f"variances {variances[0]} and {variances[1]}. The whole batch has mean 5 and variance "
                      f"{variances[2]}, which is not the mean of the variances, {mean_of_variances}.")
    for x, words in [(252, "values of one feature"), (465, "mean"), (525, "variance"),
                     (602, f"{EXAMPLE} normalized")]:
        picture.text(x, 28, words, "soft", more="small")
    for row, (name, colour, dots) in enumerate(rows):
        y = 86 + 88 * row
        mean = statistics.mean(value for value, _ in dots)
        deviation = statistics.pstdev(value for value, _ in dots)
        picture.text(20, y + 5, name, colour, "start", "bold")
        picture.line(place(0), y, place(12), y)
        for at, (value, of) in enumerate(dots):
            below = sum(value == other for other, _ in dots[:at])
            picture.dot(place(value), y - 9 - 14 * below, of, 6)
        picture.box(place(mean - deviation), y + 7, 54 * deviation, 10, edge=colour)
        picture.line(place(mean), y + 3, place(mean), y + 21, "ink", width=3)
        for x, value in [(465, mean), (525, deviation**2), (602, (EXAMPLE - mean) / deviation)]:
            picture.text(x, y + 5, number(value))
    for value in range(1, 12, 2):
        picture.text(place(value), 303, value, "soft", more="small")
    picture.text(252, 323, "bar: the mean and one standard deviation on each side", "soft", more="small")
    picture.text(325, 355,
                 f"Mean of the variances: ({variances[0]} + {variances[1]}) / 2 = {mean_of_variances}. "
                 f"Variance of the whole batch: {variances[2]}.")
    return picture.written()
