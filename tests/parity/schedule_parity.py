"""Learning-rate schedules in C++ against torch.optim.lr_scheduler, to the last bit: alone, several on one
optimizer, chained, in sequence, nested, and resumed in the middle from their state_dict.

usage: schedule_parity.py PROGRAM      (PROGRAM is the built schedule_parity)
Exit codes: 0 equal, 1 different, 3 the program failed, 77 skipped.
"""

import ast
import random
import struct
import sys
import warnings

from one_program import output_of, torch
from torch.optim import lr_scheduler

STEPS = 2000
LAMBDAS = (lambda epoch: 1.0 / (1.0 + 0.01 * epoch), lambda epoch: 0.95 ** (epoch // 30))


class Schedule:
    """A kind and its arguments; says them to the program, and makes Python's."""

    def __init__(self, kind, *arguments):
        self.kind, self.arguments = kind, arguments

    def words(self):
        yield self.kind
        for argument in self.arguments:
            yield from words(argument)

    def make(self, optimizer):
        a = self.arguments
        if self.kind == "sequential":
            return lr_scheduler.SequentialLR(optimizer, [part.make(optimizer) for part in a[0]], list(a[1]))
        if self.kind == "chained":
            return lr_scheduler.ChainedScheduler([part.make(optimizer) for part in a[0]], optimizer)
        if self.kind == "lambda":
            chosen = [LAMBDAS[i] for i in a[0]]
            return lr_scheduler.LambdaLR(optimizer, chosen[0] if len(chosen) == 1 else chosen)
        if self.kind == "onecycle":
            return lr_scheduler.OneCycleLR(optimizer, list(a[0]) if len(a[0]) > 1 else a[0][0], a[1], pct_start=a[2],
                                           anneal_strategy=a[3], cycle_momentum=a[4], three_phase=a[5])
        return {"linear": lr_scheduler.LinearLR, "cosine": lr_scheduler.CosineAnnealingLR,
                "step": lr_scheduler.StepLR, "multistep": lr_scheduler.MultiStepLR,
                "constant": lr_scheduler.ConstantLR}[self.kind](optimizer, *a)

    def __repr__(self):
        return " ".join(self.words())


def words(value):
    if isinstance(value, Schedule):
        yield from value.words()
    elif isinstance(value, (list, tuple)):
        yield str(len(value))
        for item in value:
            yield from words(item)
    elif isinstance(value, bool):
        yield str(int(value))
    else:
        yield value if isinstance(value, str) else repr(value)


def drawn(draw, groups, one_cycle=True):
    kind = draw.choice(("linear", "cosine", "step", "multistep", "constant", "lambda", "onecycle"))
    if kind == "linear":
        return Schedule(kind, draw.choice((0.1, 1 / 3, 1.0, 1e-3)), draw.choice((1.0, 0.5, 0.0)), draw.randint(1, 2500))
    if kind == "cosine":
        return Schedule(kind, draw.choice((1, 7, 100, 900, 2000)), draw.choice((0.0, 1e-5)))
    if kind == "step":
        return Schedule(kind, draw.randint(1, 300), draw.choice((0.1, 0.97)))
    if kind == "multistep":
        return Schedule(kind, [draw.choice((0, 10, 10, 500, 1999, 700)) for _ in range(4)], draw.choice((0.1, 0.7)))
    if kind == "constant":
        return Schedule(kind, draw.choice((1 / 3, 0.1, 1.0)), draw.choice((0, 1, 5, 1500)))
    if kind == "lambda" or not one_cycle:
        return Schedule("lambda", [draw.randint(0, 1) for _ in range(draw.choice((1, groups)))])
    return Schedule(kind, [draw.choice((0.1, 1.7)) for _ in range(draw.choice((1, groups)))], STEPS,
                    draw.choice((0.3, 0.05, 0.5)), draw.choice(("cos", "linear")), draw.random() < 0.7,
                    draw.random() < 0.4)


def sequential(draw, groups, first=None):
    parts = [first or drawn(draw, groups, False)] + [drawn(draw, groups, False) for _ in range(draw.randint(1, 3))]
    return Schedule("sequential", parts, sorted(draw.sample(range(1, STEPS), len(parts) - 1)))


def cases():
    """(optimizer, learning rates, resume at, schedules)"""
    article = Schedule("sequential", [Schedule("linear", 0.1, 1.0, 100), Schedule("cosine", 1000, 0.0)], [100])
    yield "adam", [1e-3], 0, [article]
    yield "sgd", [0.1, 0.3], 100, [article]
    draw = random.Random(0)
    for number in range(150):
        lrs = [draw.choice((0.1, 1e-3, 0.05)) for _ in range(draw.choice((1, 1, 2, 3)))]
        variant = number % 5
        if variant == 0:
            schedules = [sequential(draw, len(lrs))]
        elif variant == 1:
            schedules = [drawn(draw, len(lrs)) for _ in range(draw.randint(2, 3))]
        elif variant == 2:
            schedules = [Schedule("chained", [drawn(draw, len(lrs)) for _ in range(draw.randint(1, 3))])]
        else:
            schedules = [drawn(draw, len(lrs))]
        yield draw.choice(("sgd", "adam")), lrs, draw.choice((0, draw.randint(1, STEPS))), schedules
    # Nested: only the first part of a sequence can be one.
    for _ in range(6):
        yield "sgd", [0.1], 700, [sequential(draw, 1, sequential(draw, 1))]
        yield "adam", [0.1, 1.0], 0, [Schedule("chained", [sequential(draw, 2), drawn(draw, 2, False)])]


def of_python(case):
    """The numbers after each step, and the schedules at the end."""
    kind, lrs, _, schedules = case
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in lrs]
    optimizer = torch.optim.SGD(groups) if kind == "sgd" else torch.optim.Adam(groups)
    made = [schedule.make(optimizer) for schedule in schedules]
    numbers = []
    for step in range(STEPS + 1):
        if step:
            for schedule in made:
                schedule.step()
        for group in optimizer.param_groups:
            numbers += [group["lr"], group["momentum"] if kind == "sgd" else group["betas"][0]]
    return numbers, made


def same_state(python, ours):
    """A schedule that was a part of a sequence keeps a few keys more in Python; what ours has must be equal."""
    if isinstance(python, dict) and isinstance(ours, dict):
        extra = set(python) - set(ours)
        return (extra <= {"_step_count", "_is_initial"} if "_schedulers" in ours else not extra) and \
            all(key in python and same_state(python[key], ours[key]) for key in ours)
    if isinstance(python, list) and isinstance(ours, list):
        return len(python) == len(ours) and all(map(same_state, python, ours))
    return python == ours


def main(program):
    warnings.simplefilter("ignore")  # that no optimizer.step() came before
    everything = list(cases())
    lines = "".join(" ".join([kind, *words(lrs), str(STEPS), str(resume), *words(schedules)]) + "\n"
                    for kind, lrs, resume, schedules in everything)
    output = output_of(program, lines=lines)
    position = numbers = 0
    for case in everything:
        expected, made = of_python(case)
        packed = struct.pack(f"<{len(expected)}d", *expected)
        found = output[position:position + len(packed)]
        position += len(packed)
        if found != packed:
            per_step = 2 * len(case[1])
            at = next(i for i in range(len(expected)) if found[8 * i:8 * i + 8] != packed[8 * i:8 * i + 8])
            got = struct.unpack("<d", found[8 * at:8 * at + 8])[0]
            print(f"different: step {at // per_step}, group {at % per_step // 2}, "
                  f"{'momentum' if at % 2 else 'lr'}: Python {expected[at]!r}, C++ {got!r}\n{case}")
            return 1
        end = output.index(b"\n", position)
        ours = ast.literal_eval(output[position:end].decode())
        position = end + 1
        theirs = [schedule.state_dict() for schedule in made]
        if not same_state(theirs, ours):
            print(f"different state_dict of {case}\nPython: {theirs}\nC++:    {ours}")
            return 1
        numbers += len(expected)
    print(f"{len(everything)} schedules of {STEPS} steps: {numbers} numbers equal, bit for bit, and their states")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
