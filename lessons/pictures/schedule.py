"""Lesson 08: the learning rate on 1 and on 4 ranks, and that of a schedule which was made for 1 rank and runs on 4."""

from figures import measured
from svg import Picture

FILE = "08_lr_scaling/picture.svg"
LEFT, RIGHT, TOP, BOTTOM = 70, 600, 50, 240


def draw():
    figures = measured("schedules")
    one, four, too_long = figures["one_rank"], figures["four_ranks"], figures["too_long"]
    assert one["length"] == one["updates"] and four["length"] == four["updates"]
    assert too_long["length"] == one["length"] and too_long["updates"] == four["updates"]
    highest = max(one["rates"])
    picture = Picture(640, 330, "The learning rate of a schedule on 1 and on 4 ranks",
                      f"From three runs over the same 10 epochs. On 1 rank they are {one['updates']} updates, on 4 ranks "
                      f"{four['updates']}. The rate rises in the first sixth and then falls to 0, on 1 rank and on 4. A schedule "
                      f"that was made for {too_long['length']} updates and runs on 4 ranks ends when its rate is still "
                      f"{100 * too_long['rates'][-1] / highest:.0f} % of the highest.")

    def place(update, rate):
        return LEFT + (RIGHT - LEFT) * update / one["updates"], BOTTOM - (BOTTOM - TOP) * rate / highest

    def curve(run, colour, width):
        points = [place(figures["every"] * at, rate) for at, rate in enumerate(run["rates"])]
        picture.curve(points, colour, width)
        return points

    picture.text(20, 30, "learning rate", "soft", "start", "small")
    picture.line(LEFT, BOTTOM, RIGHT, BOTTOM)
    for rate in (0, highest):
        picture.text(LEFT - 8, place(0, rate)[1] + 4, f"{rate:.2f}", "soft", "end", "small")
    for update in (0, four["updates"], one["updates"]):
        x, _ = place(update, 0)
        picture.line(x, BOTTOM, x, BOTTOM + 6)
        picture.text(x, BOTTOM + 20, update, "soft", more="small")
    picture.text((LEFT + RIGHT) / 2, BOTTOM + 38, "updates", "soft", more="small")
    # Where both schedules warm up at the same rate they lie on each other: the longer one is drawn first, and wider.
    curve(one, "one", 2)
    curve(four, "three", 2)
    ends = curve(too_long, "bad", 4)[-1]
    picture.dot(*ends, "bad")
    picture.text(place(one["updates"] * 0.72, 0)[0], 110, "1 rank", "one", "start", "bold")
    picture.text(place(four["updates"], 0)[0] + 8, 205, "4 ranks", "three", "start", "bold")
    picture.text(ends[0] + 10, ends[1] - 10, "4 ranks, made for 1 rank", "bad", "start", "bold")
    picture.text(320, 312, f"The same 10 epochs are {one['updates']} updates on 1 rank and {four['updates']} on each of 4.")
    return picture.written()
