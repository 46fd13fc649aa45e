"""Lesson 05: what rank 0 draws in three epochs, with set_epoch and without."""

from figures import measured
from svg import Picture

FILE = "05_set_epoch/picture.svg"


def draw():
    figures = measured("orders")
    with_it, without = figures["with_set_epoch"], figures["without"]
    assert without == [with_it[0]] * len(without)
    never = figures["samples"] - len(with_it[0])
    rows = "; ".join(", ".join(map(str, ids)) for ids in with_it)
    picture = Picture(470, 370, "What rank 0 draws in three epochs, with set_epoch and without",
                      f"Rank 0 of {figures['ranks']} with {figures['samples']} samples. With set_epoch it draws "
                      f"other samples in another order in each of three epochs: {rows}. Without it, all epochs are "
                      "as the first.")
    for top, title, epochs in [(30, "with set_epoch(epoch)", with_it), (190, "without", without)]:
        picture.text(20, top, title, "ink", "start", "bold")
        for epoch, ids in enumerate(epochs):
            y = top + 14 + 40 * epoch
            repeated = epoch > 0 and ids == epochs[0]
            picture.text(20, y + 22, f"epoch {epoch}", "soft", "start")
            for at, sample in enumerate(ids):
                picture.box(95 + 45 * at, y, 38, 34, sample, edge="bad" if repeated else "one",
                            ink="bad" if repeated else "ink")
    picture.text(448, 30, f"rank 0 of {figures['ranks']}, {figures['samples']} samples", "soft", "end", "small")
    picture.text(235, 352, f"Without set_epoch, rank 0 never draws the other {never} samples.", "soft", more="small")
    return picture.written()
