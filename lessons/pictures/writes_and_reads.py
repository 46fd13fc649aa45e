"""Lesson 07: rank 0 writes a checkpoint and all ranks read it, without waiting and with it, from two runs."""

from figures import measured
from svg import Picture, signed

FILE = "07_checkpoint/picture.svg"
COLOURS = ["one", "two", "three"]
LEFT, RIGHT = 100, 600


def scale(figure):
    """Where a time of a run is drawn, and the times that its axis names."""
    times = [time for rank in figure["ranks"] for time in [rank["read_ms"], *(end for wait in rank["waits_ms"] for end in wait)]]
    first, last = min([*times, 0]), max([*times, figure["written_ms"]])
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if (last - first) / step < 7)

    def place(ms):
        return round(LEFT + 8 + (RIGHT - LEFT - 79) * (ms - first) / (last - first), 1)

    return place, range(-int(-first / step) * step, int(last) + 1, step)


def draw():
    figures = measured("writes_and_reads")
    without, waited = figures["without"], figures["with"]
    assert [rank["read_save"] for rank in without["ranks"]] == [1, 0, 0]
    assert [rank["read_save"] for rank in waited["ranks"]] == [1, 1, 1]
    picture = Picture(640, 420, "Who writes a checkpoint and who reads it, without waiting and with waiting",
                      "From two runs with 3 ranks; time goes from left to right. Without waiting, ranks 1 and 2 have read "
                      "before rank 0 writes, and get the checkpoint of the epoch before. With waiting, ranks 1 and 2 read "
                      "after rank 0 has written, and all ranks get the new checkpoint.")
    for top, title, figure in [(28, "nobody waits", without), (216, "the others wait for rank 0", waited)]:
        place, ticks = scale(figure)
        picture.text(20, top, title, "ink", "start", "bold")
        end = place(figure["written_ms"])
        for rank, (colour, own) in enumerate(zip(COLOURS, figure["ranks"], strict=True)):
            y = top + 18 + 40 * rank
            picture.text(20, y + 19, f"rank {rank}", colour, "start")
            picture.line(LEFT, y + 14, RIGHT, y + 14)
            for entered, left in own["waits_ms"]:
                picture.box(place(entered), y, place(left) - place(entered), 28, "waits", colour="paper", ink="soft", more="small")
            if rank == 0:
                picture.box(place(0), y, end - place(0), 28, "writes", edge="one", more="small")
            new = own["read_save"] == 1
            at = place(own["read_ms"])
            picture.dot(at, y + 14, colour if new else "bad")
            picture.box(at + 9, y + 2, 62, 24, "new" if new else "old", colour="paper", edge="", ink="ink" if new else "bad", more="small")
        picture.line(end, top - 2, end, top + 132, "ink", dashed=True)
        picture.text(end + 8, top, "written", "soft", "start", "small")
        picture.arrow(LEFT, top + 140, 625, top + 140)
        for ms in ticks:
            picture.text(place(ms), top + 156, f"{signed(ms, 0)} ms", "soft", more="small")
    picture.text(20, 408, "dot: has read the checkpoint; new: the one that rank 0 writes here; old: that of the epoch before", "soft", "start", "small")
    return picture.written()
