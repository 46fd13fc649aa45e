"""Lesson 01: what the four calls of a training step do to .grad and to the weights, with the figures of a run."""

from figures import measured
from svg import Picture

FILE = "01_single_device/picture.svg"
CALLS = [("zero_grad()", "empties .grad"), ("forward", "the batch's loss"), ("backward()", "adds to .grad"), ("step()", "moves the weights")]
LEFT, PITCH, WIDTH = 90, 138, 112


def draw():
    steps = measured("loop")
    rows = [(f"{step['loss']:.2f}", f"{step['gradient']:.2f}") for step in steps]
    picture = Picture(640, 284, "The four calls of a training step",
                      "From a run. In each step zero_grad() empties .grad, the forward computes the loss, backward() adds the gradient "
                      "to .grad, and step() moves the weights. " + " ".join(
                          f"In step {number} the loss is {loss} and the norm of .grad goes from 0 to {norm}."
                          for number, (loss, norm) in enumerate(rows)))
    for at, (call, what) in enumerate(CALLS):
        x = LEFT + PITCH * at
        picture.box(x, 44, WIDTH, 40, call, edge="one", more="bold")
        picture.text(x + WIDTH / 2, 104, what, "soft", more="small")
        if at:
            picture.arrow(x - PITCH + WIDTH + 3, 64, x - 3, 64)
    right = LEFT + PITCH * 3 + WIDTH / 2
    left = LEFT + WIDTH / 2
    picture.line(right, 44, right, 18)
    picture.line(right, 18, left, 18)
    picture.arrow(left, 18, left, 41)
    picture.box(265, 6, 130, 24, "the next batch", colour="paper", edge="", ink="soft", more="small")
    for number, row in enumerate(rows):
        y = 146 + 34 * number
        picture.text(20, y, f"step {number}", "soft", "start", "small")
        loss, norm = row
        for at, words in enumerate(["norm 0", f"loss {loss}", f"norm {norm}"]):
            picture.text(LEFT + PITCH * at + WIDTH / 2, y, words)
    picture.text(320, 262, "norm: the length of .grad. Each step uses the gradient of its own batch alone.", "soft", more="small")
    return picture.written()
