"""Lesson 10: the numbers of each process and its device, on two nodes, as a run recorded them."""

from figures import measured
from svg import Picture

FILE = "10_launch/picture.svg"
COLOURS = ["one", "two"]
HEIGHT = 44


def draw():
    figures = measured("places")
    nodes = sorted({process["node"] for process in figures})
    size = figures[0]["local_world_size"]
    for rank, process in enumerate(figures):
        assert process["device"] == process["local_rank"] == rank % size
        assert process["local_world_size"] == process["visible"] == size
    picture = Picture(640, 80 + (HEIGHT + 8) * size + 70, "Ranks, local ranks and devices on two nodes",
                      f"From a run with {len(figures)} ranks on {len(nodes)} nodes. " + " ".join(
                          f"On node {node} RANK is {listed(figures, node, None)}, LOCAL_RANK "
                          f"{listed(figures, node, 'local_rank')}, and the device cuda:0 to cuda:{size - 1}." for node in nodes) +
                      " RANK counts in the job; LOCAL_RANK and the device's index begin at 0 on each node.")
    for node, colour in zip(nodes, COLOURS, strict=True):
        left = 20 + 310 * node
        picture.box(left, 20, 290, 56 + (HEIGHT + 8) * size, colour="paper", edge=colour)
        picture.text(left + 15, 44, f"node {node}", colour, "start", "bold")
        own = [(rank, process) for rank, process in enumerate(figures) if process["node"] == node]
        for x, words in [(45, "RANK"), (125, "LOCAL_RANK"), (235, "device")]:
            picture.text(left + x, 64, words, "soft", more="small")
        for row, (rank, process) in enumerate(own):
            y = 72 + (HEIGHT + 8) * row
            picture.box(left + 15, y, 160, HEIGHT - 6, edge=colour)
            picture.text(left + 45, y + 24, rank, more="bold")
            picture.text(left + 125, y + 24, process["local_rank"])
            picture.arrow(left + 178, y + 19, left + 196, y + 19)
            picture.box(left + 200, y, 75, HEIGHT - 6, f"cuda:{process['device']}")
    y = 80 + (HEIGHT + 8) * size + 24
    picture.text(320, y, f"WORLD_SIZE is {len(figures)} everywhere; LOCAL_WORLD_SIZE and device_count() are {size}.")
    picture.text(320, y + 22, "From a run with simulated nodes and devices.", "soft", more="small")
    return picture.written()


def listed(figures, node, key):
    return ", ".join(str(process[key] if key else rank) for rank, process in enumerate(figures) if process["node"] == node)
