"""Lesson 18: what two ranks train in a job's two attempts, from a run in which rank 1 is killed."""

from figures import measured
from svg import Picture

FILE = "18_elastic_restart/picture.svg"
COLOURS = ["one", "two"]
WIDTH, PITCH = 62, 100


def draw():
    before, after = measured("attempts")
    last = before[0]["ended"][-1]
    for rank in (0, 1):
        assert before[rank]["began"] == [*before[rank]["ended"], last + 1]
        assert after[rank]["began"] == after[rank]["ended"] and after[rank]["began"][0] == last + 1 and after[rank]["loaded"] == 1
    picture = Picture(640, 320, "What two ranks train before and after a restart",
                      f"From a run. In attempt 0 both ranks train the epochs {listed(before[0]['ended'])}, and rank 0 saves after each. "
                      f"Rank 1 is killed in epoch {last + 1}, and the launcher ends rank 0. In attempt 1 both ranks load the checkpoint "
                      f"of epoch {last} and train the epochs {listed(after[0]['ended'])}.")
    for top, title, attempt in [(28, "attempt 0", before), (158, "attempt 1", after)]:
        picture.text(20, top, title, "ink", "start", "bold")
        for rank, (own, colour) in enumerate(zip(attempt, COLOURS, strict=True)):
            y = top + 16 + 44 * rank
            picture.text(20, y + 22, f"rank {rank}", colour, "start")
            x = 90
            if own["loaded"]:
                picture.text(x, y + 22, f"loads epoch {last}", "ink", "start", "small")
                x += PITCH
            for at, epoch in enumerate(own["began"]):
                whole = epoch in own["ended"]
                picture.box(x, y, WIDTH, 34, f"epoch {epoch}" if whole else "", edge=colour if whole else "bad", more="small")
                if not whole:
                    picture.text(x + WIDTH / 2, y + 22, f"epoch {epoch}", "bad", more="small")
                    picture.text(x + WIDTH + 8, y + 22, "is killed" if rank == 1 else "is ended by the launcher", "bad", "start", "small")
                elif at < own["saved"]:
                    picture.dot(x + WIDTH + 18, y + 17, "three", 7)
                x += PITCH
    picture.dot(32, 288, "three", 7)
    picture.text(48, 292, "rank 0 has saved a checkpoint", "soft", "start", "small")
    picture.text(300, 292, "No epoch ends in both attempts.", "ink", "start")
    return picture.written()


def listed(epochs):
    return " and ".join(map(str, epochs))
