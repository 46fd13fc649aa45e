"""Adam and AdamW in C++ against torch.optim's on the same LibTorch, bit for bit.

usage: optimizer_parity.py PROGRAM      (PROGRAM is the built optimizer_parity)
Exit codes: 0 equal, 1 different, 3 the program failed, 77 skipped.
"""

import random
import sys

from one_program import output_of, torch

STEPS = 300


def cases():
    """(kind, steps, seed, double, amsgrad, maximize, [(lr, beta1, beta2, eps, weight_decay)])"""
    default = (1e-3, 0.9, 0.999, 1e-8, 0.0)
    yield "adam", 2000, 0, False, False, False, [default]
    yield "adamw", 2000, 0, False, False, False, [(*default[:4], 1e-2)]
    draw = random.Random(0)
    for seed in range(24):
        groups = [(draw.choice((1e-4, 3e-3, 0.1)), draw.choice((0.0, 0.5, 0.9, 0.95)),
                   draw.choice((0.9, 0.98, 0.999)), draw.choice((1e-8, 1e-6, 1e-3)),
                   draw.choice((0.0, 1e-2, 0.3))) for _ in range(draw.randint(1, 4))]
        yield (draw.choice(("adam", "adamw")), STEPS, seed, seed % 4 == 3, draw.random() < 0.4,
               draw.random() < 0.3, groups)


def of_python(case):
    """Every tensor that the program writes, in its order."""
    kind, steps, seed, wide, amsgrad, maximize, groups = case
    torch.manual_seed(seed)
    dtype = torch.float64 if wide else torch.float32
    parameters = [torch.randn(shape, dtype=dtype).requires_grad_() for _ in groups for shape in ((7, 5), (33,))]
    make = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    optimizer = make([{"params": parameters[2 * i:2 * i + 2], "lr": lr, "betas": (beta1, beta2), "eps": eps,
                       "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize}
                      for i, (lr, beta1, beta2, eps, weight_decay) in enumerate(groups)])
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        for i, parameter in enumerate(parameters):
            noise = torch.randn(parameter.shape, dtype=dtype)
            if i == 1 and step % 3 == 2:
                continue
            parameter.grad = noise + parameter.detach() * 0.1
        optimizer.step()
        if step < 4 or step % 50 == 0:
            for i, parameter in enumerate(parameters):
                yield f"parameter {i} after step {step}", parameter.detach().clone()
    for i, parameter in enumerate(parameters):
        for name in ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            if name in optimizer.state[parameter]:
                yield f"{name} of parameter {i} at the end", optimizer.state[parameter][name]


def main(program):
    everything = list(cases())
    lines = "".join(" ".join([case[0], *(str(int(value)) for value in case[1:6]), str(len(case[6])),
                              *(repr(value) for group in case[6] for value in group)]) + "\n" for case in everything)
    theirs = torch.frombuffer(bytearray(output_of(program, lines=lines)), dtype=torch.float64)
    position = 0
    for case in everything:
        for what, expected in of_python(case):
            expected = expected.double().reshape(-1)
            found = theirs[position:position + expected.numel()]
            position += expected.numel()
            # As integers: -0.0 and NaN compare by their bits.
            if not torch.equal(expected.view(torch.int64), found.view(torch.int64)):
                print(f"different: {what} of {case}\nPython: {expected[:5].tolist()}\nC++:    {found[:5].tolist()}")
                return 1
    if position != len(theirs):
        print(f"different: {len(theirs) - position} numbers more from C++ than from Python")
        return 1
    print(f"{len(everything)} optimizers: {position} numbers equal, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
