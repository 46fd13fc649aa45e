"""Clipping, GradScaler and Autocast in C++ against Python's on the same LibTorch, bit for bit.

usage: mixed_precision.py PROGRAM      (PROGRAM is the built mixed_precision)
Exit codes: 0 equal, 1 different, 3 the program failed, 77 skipped.
"""

import random
import sys

from one_program import output_of, torch


def cases():
    draw = random.Random(0)
    dtypes = ("float32", "float32", "float64", "bfloat16", "float16")
    for seed in range(200):
        yield ("norm", seed, draw.randint(1, 9), draw.choice(dtypes), 10 ** draw.uniform(-2, 2),
               draw.choice(("2", "2", "1", "3", "0.5", "inf")), draw.choice(("no",) * 8 + ("inf", "nan")))
    for seed in range(40):
        yield "value", seed, draw.randint(1, 9), draw.choice(dtypes), draw.uniform(0.1, 2)
    yield "scaler", 1, 100, 65536.0, 2.0, 0.5, 2000
    for seed in range(20):
        yield ("scaler", seed, 60, 2.0 ** draw.randint(0, 20), draw.choice((1.5, 2.0, 3.0)),
               draw.choice((0.5, 0.3)), draw.choice((1, 2, 3)))
    for seed in range(4):
        yield "cast", seed, ("bfloat16", "float16")[seed % 2]


def with_gradients(seed, tensors, dtype):
    torch.manual_seed(seed)
    parameters = []
    for i in range(tensors):
        parameters.append(torch.zeros(3 + 17 * i, dtype=getattr(torch, dtype), requires_grad=True))
        if i % 5 != 4:
            parameters[-1].grad = torch.randn(3 + 17 * i, dtype=torch.float64).to(getattr(torch, dtype))
    return parameters


def gradients(parameters):
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def norm(seed, tensors, dtype, max_norm, norm_type, spoil):
    parameters = with_gradients(seed, tensors, dtype)
    if spoil != "no":
        parameters[0].grad[1] = float(spoil)
    yield torch.nn.utils.clip_grad_norm_(parameters, max_norm, float(norm_type))
    yield from gradients(parameters)


def value(seed, tensors, dtype, clip_value):
    parameters = with_gradients(seed, tensors, dtype)
    torch.nn.utils.clip_grad_value_(parameters, clip_value)
    yield from gradients(parameters)


def scaler(seed, steps, init_scale, growth, backoff, interval):
    torch.manual_seed(seed)
    parameter = torch.randn(7, 5, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.1, foreach=False)
    ours = torch.amp.GradScaler("cpu", init_scale, growth, backoff, interval)
    for step in range(steps):
        optimizer.zero_grad()
        ours.scale((parameter * torch.randn(7, 5)).sum()).backward()
        if (step * 7 + seed) % 5 == 0:
            parameter.grad[2][3] = float("inf") if step % 2 == 0 else float("nan")
        if step % 2 == 0:
            ours.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        ours.step(optimizer)
        if step % 11 == 10:
            ours.update(512.0)
        else:
            ours.update()
        if step == steps // 2:
            state = ours.state_dict()
            ours = torch.amp.GradScaler("cpu")
            ours.load_state_dict(state)
        state = ours.state_dict()
        yield torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
        yield parameter.detach().clone()


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(20, 16)
        self.fc2 = torch.nn.Linear(16, 10)

    def forward(self, inputs):
        return self.fc2(torch.relu(self.fc1(inputs)))


def cast(seed, dtype):
    torch.manual_seed(seed)
    net = Mlp()
    inputs = torch.randn(8, 20)
    with torch.autocast("cpu", getattr(torch, dtype)):
        outputs = net(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, torch.arange(8))
        with torch.autocast("cpu", getattr(torch, dtype), enabled=False):
            yield net(inputs)
    loss.backward()
    yield outputs
    yield loss
    yield from gradients(net.parameters())
    yield net(inputs)


def main(program):
    torch.set_num_threads(1)
    everything = list(cases())
    lines = "".join(" ".join(part if isinstance(part, str) else repr(part) for part in case) + "\n"
                    for case in everything)
    theirs = torch.frombuffer(bytearray(output_of(program, lines=lines)), dtype=torch.float64)
    position = 0
    for kind, *arguments in everything:
        for expected in globals()[kind](*arguments):
            expected = expected.detach().double().reshape(-1)
            found = theirs[position:position + expected.numel()]
            position += expected.numel()
            # As integers: -0.0 by its bits; a NaN's payload says nothing.
            nan = expected.isnan()
            if not torch.equal(nan, found.isnan()) or not torch.equal(
                    expected[~nan].view(torch.int64), found[~nan].view(torch.int64)):
                print(f"different: {kind} {arguments}\nPython: {expected[:5].tolist()}\nC++:    {found[:5].tolist()}")
                return 1
    if position != len(theirs):
        print(f"different: {len(theirs) - position} numbers more from C++ than from Python")
        return 1
    print(f"{len(everything)} cases: {position} numbers equal, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
