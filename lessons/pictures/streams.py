"""Lesson 17: a kernel writes a bucket on one CUDA stream, and an all-reduce on another reads it."""

from svg import Picture

FILE = "17_nccl_and_streams/picture.svg"
WRITTEN = 370  # where the kernel ends


def draw():
    picture = Picture(640, 340, "A kernel and an all-reduce on two CUDA streams, without an event and with one",
                      "Schematic, not measured; time goes from left to right. Without an event, the all-reduce on "
                      "the communication stream reads a bucket that a kernel on the compute stream still writes. "
                      "With an event recorded after the kernel, the communication stream waits and then reads.")
    for top, title in [(30, "without an event"), (170, "with an event")]:
        picture.text(20, top, title, "ink", "start", "bold")
        for row, stream in enumerate(["compute stream", "communication stream"]):
            y = top + 18 + 50 * row
            picture.text(20, y + 20, stream, "soft", "start", "small")
            picture.line(165, y + 15, 615, y + 15)
        picture.box(175, top + 18, WRITTEN - 175, 30, "kernel writes the bucket", edge="one")
    picture.box(215, 98, 200, 30, "all-reduce reads too early", edge="bad", ink="bad")
    picture.box(215, 238, WRITTEN + 9 - 215, 30, "waits", colour="paper", ink="soft")
    picture.box(WRITTEN + 15, 238, 214, 30, "all-reduce reads the bucket", edge="one")
    picture.dot(WRITTEN + 12, 203)
    picture.arrow(WRITTEN + 12, 203, WRITTEN + 12, 236, "ink")
    picture.text(WRITTEN + 22, 194, "event", "ink", "start", "small")
    picture.arrow(165, 298, 615, 298)
    picture.text(20, 302, "time", "soft", "start", "small")
    picture.text(320, 328, "Schematic, not measured: to record it takes a GPU.")
    return picture.written()
