"""Lesson 14: when layers are ready in backward and DDP's buckets are reduced, as rank 1 of 2 measured it."""

from figures import measured
from svg import Picture

FILE = "14_unused_parameters/picture.svg"
COLOUR = "two"  # rank 1's
FIGURES = measured("buckets")
LONGEST = max(FIGURES[case]["backward_ended_ms"] for case in ("whole", "left_out"))


def place(ms):
    return round(100 + 490 / LONGEST * ms, 1)


def span(picture, y, start, end, words, edge):
    picture.box(place(start), y, place(end) - place(start), 24, words, edge=edge, more="small")


def backward(picture, y, times):
    """The row of the layers: each was computed from when the one before was ready until it was ready itself."""
    picture.text(20, y + 17, "layer", "soft", "start", "small")
    begin = 0
    for layer in times["ready"]:
        span(picture, y, begin, layer["at_ms"], layer["layer"], "line")
        begin = layer["at_ms"]
    end = place(times["backward_ended_ms"])
    picture.line(end, y - 6, end, y + 122, "ink", dashed=True)
    picture.text(end, y - 12, "backward returns", "soft", "end" if end > 400 else "start", "small")


def bucket(picture, y, number, layers, times, waits_for):
    """Dots where its gradients came, and its all-reduce if there was one."""
    picture.text(20, y + 17, f"bucket {number}", "soft", "start", "small")
    ready = [layer["at_ms"] for layer in times["ready"] if layer["layer"] in layers]
    reduced = [own for own in times["buckets"] if own["layers"] == layers]
    if reduced:
        picture.line(place(ready[0]), y + 12, place(reduced[0]["started_ms"]), y + 12, COLOUR)
        span(picture, y, reduced[0]["started_ms"], reduced[0]["ended_ms"], "", COLOUR)
    else:
        picture.line(place(ready[0]), y + 12, 615, y + 12, "bad", dashed=True)
        picture.text(615, y + 6, f"waits for {waits_for}", "bad", "end", "small")
    for at in ready:
        picture.dot(place(at), y + 12, COLOUR)


def draw():
    left_out = FIGURES["left_out_layer"]
    all_layers = [own["layers"] for own in FIGURES["whole"]["buckets"]]
    stuck = next(number for number, layers in enumerate(all_layers, 1) if left_out in layers)
    picture = Picture(640, 410, "DDP's buckets during backward, with every gradient and with one missing",
                      "Measured on rank 1 of 2. Backward computes the layers from the last to the first. A bucket is "
                      "all-reduced when both of its gradients are ready, while earlier layers are still computed. "
                      f"Where layer {left_out} is left out, bucket {stuck} waits for its gradient for ever, and the "
                      "buckets after it wait too.")
    for top, title, case in [(24, "every gradient comes", "whole"),
                             (188, f"layer {left_out} is left out", "left_out")]:
        picture.text(20, top, title, "ink", "start", "bold")
        backward(picture, top + 12, FIGURES[case])
        for number, layers in enumerate(all_layers, 1):
            waits_for = f"layer {left_out}" if number == stuck else f"bucket {stuck}"
            bucket(picture, top + 12 + 32 * number, number, layers, FIGURES[case], waits_for)
    picture.arrow(100, 346, 615, 346)
    for ms in range(0, int(LONGEST) + 1, next(step for step in (5, 10, 20, 50, 100, 200, 1000) if LONGEST / step < 7)):
        picture.text(place(ms), 364, f"{ms} ms", "soft", more="small")
    picture.text(20, 391, "rank 1 of 2", COLOUR, "start", "bold")
    picture.dot(188, 386, COLOUR)
    picture.text(202, 390, "gradient is ready", "soft", "start", "small")
    picture.box(348, 374, 30, 24, edge=COLOUR)
    picture.text(388, 390, "all-reduce", "soft", "start", "small")
    return picture.written()
