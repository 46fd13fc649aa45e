"""What each rank of a recorded job did, as often as it did it: read from its trace (common/lockstep/trace/trace.md)."""

import collections
import struct

HEAD, RECORD = 4096, struct.Struct("<IHHqq")  # the file's; a record's: size, kind, 0, time, step
LENGTH_AT = 64
SAMPLES, UPDATE, METRIC, COLLECTIVE = 7, 16, 17, 18
NAMES = ("updates", "draws of a sample", "reports of a metric")


def number(data, at):
    return struct.unpack_from("<I", data, at)[0], at + 4


def behind_string(data, at):
    size, at = number(data, at)
    return at + size


def numbers_sent(data, at):
    """By a collective: the sum of its tensors' sizes."""
    at += 24  # when it was left, whether it failed, its number
    for _ in ("group", "operation", "reduction"):
        at = behind_string(data, at)
    count, at = number(data, behind_string(data, at + 8))  # behind the root, and the dtype
    return sum(struct.unpack_from(f"<{count}q", data, at))


def of_trace(data):
    did = collections.Counter()
    at, end = HEAD, struct.unpack_from("<Q", data, LENGTH_AT)[0]
    while at < end:
        size, kind, *_ = RECORD.unpack_from(data, at)
        fields = at + RECORD.size
        did["updates"] += kind == UPDATE
        did["reports of a metric"] += kind == METRIC
        if kind == SAMPLES:
            did["draws of a sample"] += number(data, behind_string(data, fields))[0]
        if kind == COLLECTIVE:
            did["numbers sent"] += numbers_sent(data, fields)
        at += size
    return did


def of_job(traces, world_size):
    """Of each rank, in all attempts together."""
    files = [[*traces.glob(f"rank_{rank}.trace"), *traces.glob(f"attempt_*/rank_{rank}.trace")] for rank in range(world_size)]
    return [sum((of_trace(file.read_bytes()) for file in of_rank), collections.Counter()) for of_rank in files]


def left_out(mended, right):
    """What the ranks of the mended program did less often than those of the right one. A collective may be cut otherwise,
    and the little that a log or a check sends may be left out."""
    said = []
    for rank, (mine, theirs) in enumerate(zip(mended, right, strict=True)):
        said += [f"rank {rank} made {mine[name]} {name}, and {theirs[name]} are to be made: was work left out?"
                 for name in NAMES if mine[name] < theirs[name]]
        if 10 * mine["numbers sent"] < 9 * theirs["numbers sent"]:
            said.append(f"rank {rank} sends {mine['numbers sent']} numbers through collectives, and "
                        f"{theirs['numbers sent']} are to be sent: was a collective left out?")
    return said
