"""Lesson 16: each rank's accuracy on its own part of the test set, and that of all, after each epoch of a run."""

from figures import measured
from svg import Picture

FILE = "16_metrics/picture.svg"
COLOURS = ["one", "two"]
LEFT, FULL = 130, 250  # a whole bar


def percent(score):
    return 100 * score["hits"] / score["samples"]


def draw():
    epochs = measured("own_metric")
    for epoch in epochs:
        for key in ("hits", "samples"):
            assert sum(own[key] for own in epoch["own"]) == epoch["all"][key]
    widest = max(percent(own) for epoch in epochs for own in epoch["own"])
    picture = Picture(640, 60 + 140 * len(epochs), "Accuracy of each rank's part of the test set, and of all",
                      "From a run with two ranks. " + " ".join(
                          f"After epoch {number}, rank 0 has {epoch['own'][0]['hits']:.0f} of {epoch['own'][0]['samples']:.0f} right, rank 1 has "
                          f"{epoch['own'][1]['hits']:.0f} of {epoch['own'][1]['samples']:.0f}, and together they have "
                          f"{percent(epoch['all']):.1f} %." for number, epoch in enumerate(epochs)))
    for number, epoch in enumerate(epochs):
        top = 28 + 140 * number
        picture.text(20, top, f"after epoch {number}", "ink", "start", "bold")
        for row, (name, colour, score) in enumerate([("rank 0", "one", epoch["own"][0]), ("rank 1", "two", epoch["own"][1]),
                                                     ("all", "three", epoch["all"])]):
            y = top + 14 + 34 * row
            picture.text(20, y + 18, name, colour, "start", "bold" if name == "all" else "")
            width = max(FULL * percent(score) / widest, 2)
            picture.box(LEFT - 40, y, width, 26, colour=colour, edge="")
            picture.text(LEFT - 30 + width, y + 18, f"{score['hits']:.0f} of {score['samples']:.0f} right: {percent(score):.1f} %", "ink", "start", "small")
    picture.text(320, 46 + 140 * len(epochs), "Rank 0's own accuracy is not that of the test set: its part has other classes.", more="small")
    return picture.written()
