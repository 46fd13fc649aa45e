"""Lesson 07: rank 0 writes a checkpoint and all ranks read it, without a barrier and with one."""

from svg import Picture

FILE = "07_checkpoint/picture.svg"
COLOURS = ["one", "two", "three"]
WHOLE = 390  # where the file is whole, and all ranks have entered the barrier


def draw():
    picture = Picture(640, 370, "A checkpoint that is read too early, and one that is read after a barrier",
                      "Schematic; time goes from left to right. Without a barrier, rank 1 reads while rank 0 still "
                      "writes, and gets half a file; rank 2 happens to come late enough. With a barrier, ranks 1 and "
                      "2 wait until rank 0 has written the file, and then all ranks read it.")
    for top, title in [(30, "without a barrier"), (200, "with a barrier")]:
        picture.text(20, top, title, "ink", "start", "bold")
        for rank, colour in enumerate(COLOURS):
            y = top + 18 + 40 * rank
            picture.text(20, y + 19, f"rank {rank}", colour, "start")
            picture.line(90, y + 14, 615, y + 14)
        picture.box(100, top + 18, WHOLE - 105, 28, "writes the file", edge="one")
        picture.line(WHOLE, top - 2, WHOLE, top + 132, "ink", dashed=True)
    picture.text(WHOLE + 8, 30, "the file is whole", "soft", "start", "small")
    picture.box(195, 88, 135, 28, "reads half a file", edge="bad", ink="bad")
    picture.box(460, 128, 90, 28, "reads", edge="three")
    picture.text(WHOLE + 8, 200, "all ranks have entered the barrier", "soft", "start", "small")
    for rank, (colour, comes) in enumerate(zip(COLOURS, [WHOLE, 195, 270], strict=True)):
        y = 218 + 40 * rank
        if comes < WHOLE:
            picture.box(comes, y, WHOLE - 5 - comes, 28, "waits", colour="paper", ink="soft")
        picture.box(WHOLE + 5, y, 90, 28, "reads", edge=colour)
    picture.arrow(90, 352, 615, 352)
    picture.text(20, 356, "time", "soft", "start", "small")
    return picture.written()
