"""Optimizers of the program's own, changed ones, and ways to update without one."""

import copy
import io
import pickle
import types
import warnings
import weakref

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau
from usual import batch, gone, loss_of, mlp, sgd, show, started, train


@started(unrecorded=True)
def by_hand():
    """No optimizer: the program subtracts."""
    model = mlp()
    for step in range(6):
        loss = loss_of(model, step)
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.05 * each.grad
                each.grad = None
        show(loss)


def of_no_class_of_torch():
    """An object with step and zero_grad, beside a real one."""
    class Own:
        def __init__(self, parameters):
            self.parameters = list(parameters)

        def zero_grad(self):
            for each in self.parameters:
                each.grad = None

        @torch.no_grad()
        def step(self):
            torch._foreach_add_(self.parameters, [each.grad for each in self.parameters], alpha=-0.05)
    model = mlp()
    train(model, Own(model.parameters()))
    train(model)


def step_without_super():
    """A subclass whose step takes a closure and calls it three times."""
    class Thrice(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})  # there is no learning rate

        def step(self, closure):
            with torch.enable_grad():
                losses = [closure() for _ in range(3)]
            with torch.no_grad():
                for group in self.param_groups:
                    for each in group["params"]:
                        each.sub_(each.grad, alpha=0.01)
            return losses
    model = mlp()
    optimizer = Thrice(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss
    for _ in range(5):
        show(*optimizer.step(closure))


@started(unrecorded=True)
def made_without_init():
    """A subclass that never calls Optimizer.__init__."""
    class Bare(torch.optim.Optimizer):
        def __init__(self, parameters):
            self.param_groups, self.state, self.defaults = [{"params": list(parameters)}], {}, {}

        def zero_grad(self, set_to_none=True):
            for each in self.param_groups[0]["params"]:
                each.grad = None

        @torch.no_grad()
        def step(self):
            for each in self.param_groups[0]["params"]:
                each.sub_(each.grad, alpha=0.05)
    model = mlp()
    train(model, Bare(model.parameters()), steps=9)


def lbfgs():
    """LBFGS calls its closure up to twenty times a step."""
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, line_search_fn="strong_wolfe")
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss
    for _ in range(4):
        show(optimizer.step(closure))
    show(len(calls))


def groups_change():
    """param_groups is replaced, reordered, emptied, and has things of the program's in it."""
    model = mlp()
    optimizer = sgd(model)

    def change(step):
        group = optimizer.param_groups[0]
        if step == 0:
            group["note"] = object()
        if step == 1:
            group["params"] = list(reversed(group["params"]))
        if step == 2:
            optimizer.param_groups.append({**group, "params": [group["params"].pop()], "lr": 0.01})
        if step == 3:
            group.pop("lr")
            group["lr"] = 0.02
        if step == 4:
            optimizer.param_groups[1]["params"].clear()
    train(model, optimizer, each=change, steps=9)


def patched_class():
    """The program replaces step of a class, and of Optimizer's functions, by its own."""
    calls = []
    before = torch.optim.SGD.step

    def step(self, closure=None):
        calls.append("step")
        return before(self, closure)
    torch.optim.SGD.step = step
    init = torch.optim.Optimizer.__init__

    def own_init(self, *arguments, **options):
        calls.append("made")
        init(self, *arguments, **options)
    torch.optim.Optimizer.__init__ = own_init
    train(mlp())
    torch.optim.Optimizer.__init__, torch.optim.SGD.step = init, before
    train(mlp())
    show(calls)


def patched_instance():
    """step of an instance is a function, a method, and an object that can be called."""
    model = mlp()
    for wrap in (lambda optimizer, given: lambda *_: given(),
                 lambda optimizer, given: types.MethodType(lambda _self, *_: given(), optimizer),
                 lambda optimizer, given: type("Calls", (), {"__call__": lambda _self, *_: given()})()):
        optimizer = sgd(model)
        optimizer.step = wrap(optimizer, optimizer.step)
        train(model, optimizer)


def implementations():
    """foreach, fused and neither: each the same as without a recorder."""
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}):
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            model = mlp()
            train(model, kind(model.parameters(), lr=0.01, **options), steps=3)


def all_of_torch():
    """Every optimizer that torch has, for three steps."""
    for name in sorted(vars(torch.optim)):
        kind = getattr(torch.optim, name)
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in (
                "Optimizer", "LBFGS", "SparseAdam", "Muon"):
            model = mlp()
            train(model, kind(model.parameters(), lr=0.01), steps=3)


def inside_of_backward():
    """An optimizer for each parameter, which steps as soon as its gradient is there, and frees it."""
    model = mlp()
    optimizers = {each: torch.optim.Adam([each], lr=0.01) for each in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(update)
    for step in range(9):
        loss = loss_of(model, step)
        loss.backward()
        show(loss, sum(each.grad is not None for each in model.parameters()))


def zero_grad_overridden():
    """zero_grad of the program's own, and Module.zero_grad."""
    class Counts(torch.optim.SGD):
        calls = 0

        def zero_grad(self, set_to_none=True):
            Counts.calls += 1
            super().zero_grad(set_to_none=False)
    model = mlp()
    train(model, Counts(model.parameters(), lr=0.05), steps=8)
    model.zero_grad()
    show(Counts.calls, [each.grad for each in model.parameters()])


def copied_and_pickled():
    """copy, deepcopy and pickle of an optimizer, and its state to a file and back."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    train(model, optimizer)
    show(sorted(vars(copy.copy(optimizer))), len(pickle.dumps(optimizer)))
    train(model, copy.copy(optimizer), steps=2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = torch.optim.AdamW(model.parameters(), lr=0.5)
    again.load_state_dict(torch.load(file))
    train(model, again)


def two_of_one_model():
    """Two optimizers for halves of a model, and one for all, in turn."""
    model = mlp()
    halves = [torch.optim.SGD(part.parameters(), lr=0.05) for part in (model[0], model[2])]
    whole = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(8):
        for optimizer in halves if step % 2 else [whole]:
            optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        for optimizer in halves if step % 2 else [whole]:
            optimizer.step()
        show(loss)


def made_anew_each_step():
    """A new optimizer for each step; the old one is freed."""
    model, seen = mlp(), []
    for step in range(9):
        optimizer = sgd(model)
        seen.append(weakref.ref(optimizer))
        train(model, optimizer, steps=1, loss_of=lambda module, _, at=step: loss_of(module, at))
    del optimizer
    gone(*seen)


def own_step_hooks():
    """Hooks of the program's before and after steps, of one optimizer and of all; one changes what step is given."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    model, order = mlp(), []
    optimizer = sgd(model)
    handles = [register_optimizer_step_pre_hook(lambda *_given: order.append("all before")),
               register_optimizer_step_post_hook(lambda *_given: order.append("all after"))]
    optimizer.register_step_pre_hook(lambda _optimizer, given, named: (order.append("before"), (given, named))[1])
    optimizer.register_step_post_hook(lambda *_given: order.append("after"))
    train(model, optimizer, steps=2)
    for handle in handles:
        handle.remove()
    train(model, optimizer, steps=1)
    show(order)


def compared_by_value():
    """An optimizer that defines __eq__, without a hash, and whose __repr__ raises."""
    class Compared(torch.optim.SGD):
        def __eq__(self, other):
            return True

        def __repr__(self):
            raise RuntimeError("not to be printed")
    model = mlp()
    train(model, Compared(model.parameters(), lr=0.05), steps=9)


def rates_of_other_types():
    """A learning rate that is a tensor, numpy's, or an object of the program's."""
    import numpy

    class Rate(float):
        def __repr__(self):
            raise RuntimeError("not to be printed")

    for rate in (torch.tensor(0.05), numpy.float64(0.05), Rate(0.05)):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        optimizer.param_groups[0].update(lr=rate, kept=rate)
        train(model, optimizer, steps=3)


@started(python=("-W", "ignore"))
def schedules():
    """Schedules of several kinds, one of the program's own, and one that sees the loss."""
    class Own(torch.optim.lr_scheduler.LRScheduler):
        def get_lr(self):
            return [0.01 * (1 + self.last_epoch) for _ in self.base_lrs]
    for make in (lambda optimizer: LambdaLR(optimizer, lambda epoch: 0.9 ** epoch), Own,
                 lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=20), ReduceLROnPlateau):
        model = mlp()
        optimizer = sgd(model)
        schedule = make(optimizer)
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            schedule.step(*([loss.item()] if isinstance(schedule, ReduceLROnPlateau) else []))
            show(loss, float(optimizer.param_groups[0]["lr"]))
        show(sorted(schedule.state_dict()))


def schedule_steps_are_counted():
    """torch warns where a schedule steps before its optimizer, by a mark on the optimizer's step."""
    model = mlp()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule.step()
        train(model, optimizer, each=lambda _step: schedule.step())
        show([str(each.message)[:50] for each in caught])
    show(hasattr(optimizer.step, "_wrapped_by_lr_sched"))


def scaled_and_clipped():
    """GradScaler and autocast on the CPU, and clipping in each way."""
    model = mlp()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for step in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch(step)).float().pow(2).mean() * (float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        show(torch.nn.utils.clip_grad_norm_((each for each in model.parameters()), 0.5))
        torch.nn.utils.clip_grad_value_(iter(model.parameters()), 0.1)
        torch.nn.utils.clip_grad_norm_(model[0].weight, 0.2, norm_type=float("inf"), error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()
        show(loss, scaler.get_scale())


def a_step_that_fails():
    """step raises inside of the program's closure, is caught, and is tried again."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(6):
        def closure(at=step):
            optimizer.zero_grad()
            if at % 2:
                raise ValueError("not this one")
            loss = loss_of(model, at)
            loss.backward()
            return loss
        try:
            show(optimizer.step(closure))
        except ValueError as error:
            show(str(error), error.__traceback__.tb_next is not None)


def differentiable():
    """An optimizer through which gradients flow, as in meta-learning."""
    rate = torch.tensor(0.1, requires_grad=True)
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    inner = weight.clone()
    optimizer = torch.optim.SGD([inner], lr=rate, differentiable=True)
    for _ in range(2):
        inner.grad = torch.autograd.grad(inner.sum(), inner, create_graph=True)[0]
        optimizer.step()
    inner.sum().backward()
    show(weight.grad, rate.grad)


def steps_inside_of_a_profile():
    """torch's profiler counts the operators of some steps."""
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, steps=1)
    with torch.profiler.profile() as seen:
        train(model, optimizer, steps=3)
    show(sorted((each.key, each.count) for each in seen.key_averages() if each.key.startswith("aten::")))


def nobody_trains():
    """An optimizer is made, steps without gradients, and its model is only evaluated."""
    model = mlp()
    optimizer = nn.Module.requires_grad_(model, True) and sgd(model)
    for step in range(3):
        optimizer.step()
        with torch.no_grad():
            show(model(batch(step)).sum())
