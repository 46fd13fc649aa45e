"""Lesson 02: one step of DataParallel on two devices, as a run recorded it."""

from figures import measured
from svg import Picture, signed

FILE = "02_data_parallel/picture.svg"
COLOURS = ["one", "two"]
ROWS = [70, 180]  # a device's top edge
HEIGHT = 46
# Where the box of each begins, its width, and what stands above it.
COLUMNS = {"samples": (90, 110, "scatter", "samples"), "forward": (235, 90, "forward", "a replica each"),
           "gradients": (360, 80, "reduce", "gradients"), "update": (470, 60, "update", "weights"),
           "parameters": (560, 80, "replicate", "weights")}


def draw():
    figures = measured("scatter_and_reduce")
    at = {}
    for event in figures:
        at[event.get("what", event["event"])] = event["at_ms"]
    assert list(at) == list(COLUMNS), at
    batch = sorted((event["device"], event["first"], event["last"]) for event in figures if event["event"] == "samples")
    moved = {}
    for what, source, target in [("gradients", 1, 0), ("parameters", 0, 1)]:
        transfers = [event for event in figures if event.get("what") == what]
        assert all((event["from"], event["to"]) == (source, target) for event in transfers)
        moved[what] = sum(event["bytes"] for event in transfers)
    said = [f"{first} to {last}" for _, first, last in batch]
    picture = Picture(680, 310, "One step of DataParallel on two devices, from a run",
                      f"From a run of one process. Device 0 gets the samples {said[0]}, device 1 gets {said[1]}. Each runs "
                      f"forward and backward. Device 1 sends its gradient, {moved['gradients']} bytes, to device 0, which "
                      f"alone makes the update and sends the new weights, {moved['parameters']} bytes, to device 1.")
    for name, (x, width, words, of_what) in COLUMNS.items():
        picture.text(x + width / 2, 24, words, "ink", more="small bold")
        picture.text(x + width / 2, 42, of_what, "soft", more="small")
        picture.text(x + width / 2, 256, f"{signed(at[name], 2)} ms", "soft", more="small")
    for device, (y, colour) in enumerate(zip(ROWS, COLOURS, strict=True)):
        picture.text(10, y + 28, f"device {device}", colour, "start", "bold")
        for name, words in [("samples", said[device]), ("forward", ["model", "copy"][device])]:
            x, width, *_ = COLUMNS[name]
            picture.box(x, y, width, HEIGHT, words, edge=colour)
        picture.arrow(204, y + 23, 231, y + 23)
    first, second = ROWS
    picture.box(360, first, 80, HEIGHT, "mean", edge="one")
    picture.arrow(329, first + 23, 356, first + 23, "one")
    picture.box(360, second, 80, HEIGHT, "gradient", edge="two")
    picture.arrow(329, second + 23, 356, second + 23, "two")
    picture.arrow(400, second - 3, 400, first + HEIGHT + 4, "two")
    picture.text(408, 152, f"{moved['gradients']} bytes", "soft", "start", "small")
    picture.arrow(444, first + 23, 466, first + 23, "one")
    picture.box(470, first, 60, HEIGHT, "update", edge="one")
    picture.arrow(534, first + 23, 556, first + 23, "one")
    picture.box(560, first, 80, HEIGHT, "weights", edge="one")
    picture.arrow(600, first + HEIGHT + 3, 600, second - 4, "one")
    picture.text(608, 152, f"{moved['parameters']} bytes", "soft", "start", "small")
    picture.box(560, second, 80, HEIGHT, "copy", edge="two")
    picture.line(444, second + 23, 554, second + 23, dashed=True)
    picture.text(499, second + 16, "waits", "soft", more="small")
    picture.text(10, 256, "done at", "soft", "start", "small")
    picture.text(340, 292, "Both devices are driven by one process. The next step uses the copy.")
    return picture.written()
