"""A checker of one pitfall, to start from: python3 example_checker.py FOLDER

Names `missing-set-epoch` where every rank draws its samples in the same order in the first two passes over the
training data. It reads the traces' bytes by itself: their encoding is in Lockstep's common/lockstep/trace/trace.md.
"""

import json
import pathlib
import struct
import sys

HEAD = 4096
RECORD = struct.Struct("<IHHqq")  # size, kind, 0, time, step
PASS_BEGIN, SAMPLES = 5, 7


def text(data, at):
    """A string, and where what follows begins."""
    (size,) = struct.unpack_from("<I", data, at)
    return data[at + 4:at + 4 + size].decode(errors="replace"), at + 4 + size


def passes(data):
    """The ids that a rank drew, pass by pass, with the step at which each pass began."""
    found = []
    at, (end,) = HEAD, struct.unpack_from("<Q", data, 64)
    while at < end:
        size, kind, _, _, step = RECORD.unpack_from(data, at)
        if kind in (PASS_BEGIN, SAMPLES):
            phase, field = text(data, at + RECORD.size)
            if phase == "train" and kind == PASS_BEGIN:
                found.append((step, []))
            elif phase == "train" and found:
                (count,) = struct.unpack_from("<I", data, field)
                found[-1][1].extend(struct.unpack_from(f"<{count}q", data, field + 4))
        at += size
    return found


def main(folder):
    ranks, steps = [], []
    for file in sorted(pathlib.Path(folder).glob("rank_*.trace")):
        data = file.read_bytes()
        (rank,) = struct.unpack_from("<i", data, 16)
        of_rank = passes(data)
        if len(of_rank) < 2 or not of_rank[0][1] or of_rank[0][1] != of_rank[1][1]:
            ranks = []
            break
        ranks.append(rank)
        steps.append(of_rank[1][0])
    findings = [{"pitfall": "missing-set-epoch", "ranks": ranks, "step": min(steps)}] if ranks else []
    print(json.dumps({"findings": findings}))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
