"""Lesson 02: one step of DataParallel, one process with two devices."""

from svg import Picture

FILE = "02_data_parallel/picture.svg"
ROWS = [(80, "one"), (200, "two")]  # a device's top edge and colour


def draw():
    picture = Picture(650, 320, "One step of DataParallel with two devices",
                      "One process scatters a batch of four samples over two devices and copies the model from "
                      "device 0 to device 1. Each device computes the gradient of its two samples. Device 0 takes "
                      "the mean of both gradients and makes the update, while device 1 waits.")
    for x, words in [(38, "batch"), (145, "1. scatter"), (260, "2. replicate"), (389, "3. forward, backward"),
                     (518, "4. reduce"), (606, "5. update")]:
        picture.text(x, 30, words, "soft", more="small")
    for device, (y, colour) in enumerate(ROWS):
        picture.text(112, y - 14, f"device {device}", colour, "start", "bold")
        for at in range(2):
            sample = 2 * device + at + 1
            picture.box(22, 100 + 31 * (sample - 1), 32, 27, sample, edge=colour)
            picture.box(112 + 36 * at, y, 32, 44, sample, edge=colour)
        picture.arrow(60, 129 + 62 * device, 106, y + 22, colour)
        picture.arrow(184, y + 22, 210, y + 22)
        picture.box(216, y, 88, 44, ["model", "copy"][device], edge=colour)
        picture.arrow(310, y + 22, 338, y + 22)
        picture.box(344, y, 90, 44, "gradient", edge=colour)
        picture.arrow(440, y + 22 - 14 * device, 482, 102 + 8 * device, colour)
    (first, one), (second, _) = ROWS
    picture.arrow(260, first + 48, 260, second - 4, one)
    picture.box(488, first, 60, 44, "mean", edge=one)
    picture.arrow(552, first + 22, 570, first + 22, one)
    picture.box(574, first, 64, 44, "update", edge=one)
    picture.line(488, second + 22, 636, second + 22, dashed=True)
    picture.text(562, second + 14, "waits", "soft", more="small")
    picture.text(325, 290, "All in one process. The next step copies the new weights from device 0 again.")
    return picture.written()
