"""Lesson 09: the last collectives of three ranks before they hang, from a run of rank-conditional-collective."""

from figures import measured
from svg import Picture

FILE = "09_hanging_collective/picture.svg"
COLOURS = ["one", "two", "three"]
NAMES = {"allreduce": "all-reduce"}
# Where the first call, the last rank's entry into the call that hangs, a gap in time and the timeout are drawn.
FIRST, HUNG, GAP, END = 90, 450, 570, 605


def named(call):
    return f"{call['sequence']} {NAMES.get(call['op'], call['op'])}"


def draw():
    figures = measured("hanging")
    calls, sequence, [odd] = figures["calls"], figures["sequence"], figures["ranks"]
    hung = [call for call in calls if call["sequence"] == sequence]
    waited = min(call["left_s"] - call["entered_s"] for call in hung)
    begin = min(call["entered_s"] for call in calls)
    scale = (HUNG - FIRST) / (max(call["entered_s"] for call in hung) - begin)
    [at_odd] = {call["op"] for call in hung if call["rank"] == odd}
    [other] = {call["op"] for call in hung if call["rank"] != odd}
    picture = Picture(640, 280, "The last collectives of three ranks before they hang",
                      f"From a run. Up to call {sequence - 1} all three ranks make the same calls. Call {sequence} "
                      f"is a {at_odd} on rank {odd} and a {other} on the others. It ends on no rank, and fails after "
                      f"{waited:.1f} seconds.")

    def place(seconds):
        return round(FIRST + scale * (seconds - begin), 1)

    same = ", ".join(named(call) for call in calls if call["rank"] == 0 and call["sequence"] < sequence)
    picture.text(FIRST, 30, f"calls: {same}", "soft", "start", "small")
    picture.text(END, 30, f"timeout after {waited:.1f} s", "soft", "end", "small")
    free = {}  # from where on a rank's row has room for the next number
    for call in calls:
        start, y, colour = place(call["entered_s"]), 66 + 52 * call["rank"], COLOURS[call["rank"]]
        if call["sequence"] < sequence:
            label = max(start, free.get(call["rank"], start))
            free[call["rank"]] = label + 20
            picture.text(label, y - 5, call["sequence"], "soft", "start", "small")
            picture.box(start, y, place(call["left_s"]) - start, 26, edge=colour)
        else:
            edge, ink = ("bad", "bad") if call["rank"] == odd else (colour, "ink")
            picture.text(start, y - 5, named(call), ink, "start", "small")
            picture.box(start, y, END - 4 - start, 26, edge=edge)
            picture.text((start + GAP) / 2, y + 18, "waits", ink, more="small")
            picture.line(GAP, y - 4, GAP + 8, y + 30, "paper", width=7)
            picture.text(20, y + 18, f"rank {call['rank']}", colour, "start", "bold")
    picture.line(END, 38, END, 216, "ink", dashed=True)
    picture.arrow(FIRST, 216, 625, 216)
    picture.line(GAP + 1, 209, GAP + 7, 223, "paper", width=7)
    whole = 1e3 * (HUNG - FIRST) / scale
    for ms in range(0, int(whole) + 1, next(step for step in (2, 5, 10, 20, 50, 100, 1000) if whole / step < 7)):
        picture.text(place(begin + ms / 1e3), 234, f"{ms} ms", "soft", more="small")
    picture.text(330, 266, f"Rank {odd} waits in a {at_odd}, the others in a {other}, until the timeout.")
    return picture.written()
