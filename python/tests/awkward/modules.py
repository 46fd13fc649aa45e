"""Modules that do more than compute, and what is made of modules."""

import contextlib
import copy
import functools
import hashlib
import io
import pickle
import re
import warnings
import weakref

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from usual import batch, gone, loss_of, mlp, quick, sgd, show, started, train


def parameters_of(module, seen=()):
    """Without a method of the module's."""
    if id(module) in seen:
        return []
    of = vars(module)
    inner = [one for part in of["_modules"].values() for one in parameters_of(part, (*seen, id(module)))]
    return [*(one for one in of["_parameters"].values() if one is not None), *inner]


def trained(model, **options):
    return train(model, torch.optim.SGD(parameters_of(model), lr=0.05), **options)


class Wraps(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()
        self.seen = []

    def forward(self, inputs):
        return self.inner(inputs)


def compared_without_a_hash():
    """A module that defines __eq__, and so has no hash."""
    class Compared(Wraps):
        def __eq__(self, other):
            return isinstance(other, Compared)
    trained(Compared(), steps=9)


def compared_by_content():
    """Two modules that are equal, with equal hashes, each trained."""
    class Alike(Wraps):
        def __eq__(self, other):
            return isinstance(other, Alike)

        def __hash__(self):
            return 7
    first, second = Alike(), Alike()
    trained(first)
    trained(second, steps=9)
    show(first == second)


def without_truth():
    """A module whose truth value and length raise."""
    class Untrue(Wraps):
        def __bool__(self):
            raise AssertionError("asked whether it is true")

        def __len__(self):
            raise AssertionError("asked for its length")
    trained(Untrue())


def falsy():
    """A module that is false."""
    class Falsy(Wraps):
        def __len__(self):
            return 0
    trained(Falsy(), steps=9)


def attributes_are_counted():
    """__getattr__ and __getattribute__ of the program's: whoever asks is counted."""
    class Asked(Wraps):
        names = []  # noqa: RUF012 of all, on purpose

        def __getattr__(self, name):
            Asked.names.append(name)
            return super().__getattr__(name)
    model = Asked()
    trained(model, steps=30)
    show(sorted(set(Asked.names)), len(Asked.names))


def attributes_go_elsewhere():
    """__getattr__ hands on to the inner module, as wrappers do, and raises other errors than AttributeError."""
    class Hands(Wraps):
        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("__"):
                    raise
                return getattr(self._modules["inner"], name)

    class Raises(Wraps):
        def __getattr__(self, name):
            if name in ("inner", "_parameters"):
                return super().__getattr__(name)
            raise KeyError(name)
    trained(Hands())
    trained(Raises(), steps=9)


def class_lies():
    """__class__ says that it is a Linear, and counts who asks."""
    class Lies(Wraps):
        asked = 0

        @property
        def __class__(self):
            Lies.asked += 1
            return nn.Linear
    trained(Lies(), steps=9)
    show(Lies.asked)


def slots():
    """Attributes in __slots__, beside the module's own."""
    class Slotted(Wraps):
        __slots__ = ("note",)
    model = trained(Slotted())
    model.note = 3
    show(model.note)


def calls_itself_otherwise():
    """__call__ overridden: hooks never run, and the call is counted."""
    class Called(Wraps):
        calls = 0

        def __call__(self, *arguments):
            Called.calls += 1
            return self.forward(*arguments)
    trained(Called(), steps=9)
    show(Called.calls)


def enumerations_are_counted():
    """parameters(), named_parameters(), buffers(), modules(), children(), state_dict(): each call is counted."""
    counts = {}

    def counted(name):
        def call(self, *arguments, **options):
            counts[name] = counts.get(name, 0) + 1
            return getattr(super(Counts, self), name)(*arguments, **options)
        return call

    class Counts(Wraps):
        pass
    for name in ("parameters", "named_parameters", "named_buffers", "buffers", "named_modules", "modules", "children",
                 "named_children", "state_dict", "extra_repr", "_get_name"):
        setattr(Counts, name, counted(name))
    trained(Counts(), steps=30)
    show(sorted(counts.items()))


def enumerations_raise():
    """named_parameters() and extra_repr() are not to be called."""
    class Secret(Wraps):
        def named_parameters(self, *_arguments, **_options):
            raise RuntimeError("not while it trains")

        def extra_repr(self):
            raise RuntimeError("not while it trains")

        def __repr__(self):
            raise RuntimeError("not while it trains")
    trained(Secret(), steps=30)


def own_hooks():
    """The program's hooks of each kind, in their order, and as many as it put there."""
    model, order = mlp(), []

    def hook(name):
        return lambda *_arguments: order.append(name)
    model.register_forward_pre_hook(hook("before"))
    model.register_forward_pre_hook(hook("first"), prepend=True)
    model.register_forward_hook(lambda _module, _inputs, named, _result: order.append(len(named)), with_kwargs=True)
    model.register_forward_hook(hook("always"), always_call=True)
    model.register_full_backward_pre_hook(hook("backward begins"))
    model.register_full_backward_hook(hook("backward"))
    trained(model)
    show(order[:12], len(order))


def own_hooks_change_what_is_given():
    """Hooks that return other inputs, with names and without, and another result."""
    model = mlp()
    model.register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 2,))
    model.register_forward_pre_hook(lambda _module, inputs, named: ((inputs[0] + 1,), named), with_kwargs=True)
    model.register_forward_hook(lambda _module, _inputs, result: result * 3)
    trained(model, steps=9)


def hooks_of_all_modules():
    """Global hooks of modules, of each kind."""
    from torch.nn.modules import module
    seen = []
    handles = [register(lambda *given: seen.append(type(given[0]).__name__)) for register in (
        module.register_module_forward_pre_hook, module.register_module_forward_hook,
        module.register_module_full_backward_hook, module.register_module_module_registration_hook)]
    trained(mlp())
    for handle in handles:
        handle.remove()
    show(seen[:20], len(seen))


def hooks_are_the_program_s():
    """A program that looks at what hooks its modules have, while it trains, and after."""
    model, teacher = mlp(), mlp().requires_grad_(False)

    def look(_step):
        show([len(getattr(part, name)) for part in (model, teacher) for name in (
            "_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_forward_pre_hooks_with_kwargs")])

    def loss(module, step):
        with torch.no_grad():
            goal = teacher(batch(step))
        return (module(batch(step)) - goal).pow(2).mean()
    trained(model, loss_of=loss, each=look, steps=6)


def a_forward_that_fails():
    """A hook with always_call sees the failure, and the program goes on."""
    model, seen = mlp(), []
    model.register_forward_hook(lambda *_given: seen.append("always"), always_call=True)
    for step in range(4):
        with contextlib.suppress(RuntimeError):
            model(torch.ones(3, 5))
        train(model, steps=1, loss_of=lambda module, _, at=step: loss_of(module, at))
    show(seen)


def train_and_eval_overridden():
    """train() and eval() count, and `training` is a property."""
    class Modes(Wraps):
        def train(self, mode=True):
            self.seen.append(mode)
            return super().train(mode)
    model = Modes()

    def evaluate(step):
        model.eval()
        with torch.no_grad():
            show(model(batch(100 + step)).sum())
        model.train()
    trained(model, each=evaluate)
    show(model.seen)


def modules_as_keys():
    """A dict and a set of modules, and weak ones."""
    model, weak = mlp(), weakref.WeakKeyDictionary()
    known = {part: name for name, part in model.named_modules()}
    for part in model:
        weak[part] = len(weak)
    trained(model)
    show([known[part] for part in model], [weak[part] for part in model], len(weakref.getweakrefs(model)) >= 0)


def weak_references_are_counted():
    """How many weak references there are to a model, its parameters and its optimizer."""
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer)
    show([weakref.getweakrefcount(each) for each in (model, model[0].weight, optimizer)])


def strong_references_are_counted():
    """sys.getrefcount of a model, its parameters, its optimizer, and a loss, in each step."""
    import sys
    model = mlp()
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        show([sys.getrefcount(each) for each in (model, model[0].weight, model[0].weight.grad, optimizer, loss)])


def part_of_itself():
    """A module that holds a list in which it is, and one that is a part twice."""
    model = Wraps()
    model.around = [model]
    model.again = model.inner
    object.__setattr__(model, "back", model)
    trained(model, steps=9)


def own_module_inside():
    """A module that is registered as a part of itself: only its parameters can be walked."""
    model = Wraps()
    model._modules["itself"] = model
    trained(model, steps=9)


def changes_while_it_trains():
    """Layers come and go in a ModuleDict, and parameters are added to the optimizer."""
    torch.manual_seed(0)
    parts = nn.ModuleDict({"first": nn.Linear(6, 6)})
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.05)
    for step in range(9):
        if step in (2, 4):
            parts[str(step)] = nn.Linear(6, 6)
            optimizer.add_param_group({"params": parts[str(step)].parameters(), "lr": 0.01})
        if step == 6:
            parts.pop("2")
        optimizer.zero_grad()
        outputs = batch(step)
        for part in parts.values():
            outputs = part(outputs)
        outputs.pow(2).mean().backward()
        optimizer.step()
        show(outputs.sum())


def layer_by_layer():
    """Layers are frozen and thawed, and the gradient of a frozen one stays."""
    model = mlp()

    def freeze(step):
        model[0].requires_grad_(step % 2 == 1)
    trained(model, each=freeze, steps=9)


@started(variables={"PYTHONWARNINGS": "ignore"})
def parametrized():
    """weight_norm of both kinds, spectral_norm, orthogonal, and one of the program's own."""
    class Positive(nn.Module):
        def forward(self, weight):
            return weight.exp()
    torch.manual_seed(0)
    for change in (parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal,
                   torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm):
        train(nn.Sequential(change(nn.Linear(6, 4)), change(nn.Linear(4, 2))), steps=4)
    model = nn.Sequential(nn.Linear(6, 4))
    parametrize.register_parametrization(model[0], "weight", Positive())
    with parametrize.cached():
        show(model(batch()).sum())
    train(model)
    parametrize.remove_parametrizations(model[0], "weight")
    train(model)


def pruned():
    """A weight is pruned while it trains, and the pruning is made permanent."""
    model = mlp()

    def change(step):
        if step == 1:
            prune.l1_unstructured(model[0], "weight", amount=0.3)
        if step == 3:
            prune.remove(model[0], "weight")
    optimizer = sgd(model)
    train(model, optimizer, each=change, steps=8)


def copied():
    """deepcopy and copy of a model and its optimizer, after some steps; each trains on by itself."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    again, others = copy.deepcopy((model, optimizer))
    show([each._backward_hooks for each in again.parameters()])
    train(again, others)
    train(model, optimizer)
    show([sorted(vars(each)) == sorted(vars(mlp())) for each in (again, copy.copy(model))])


@quick()
def pickled():
    """pickle and torch.save of a model and its optimizer, whole: the same bytes, also by other protocols."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    with torch.no_grad():
        model(batch())
    for protocol in (2, 5):
        for each in (model, optimizer):
            written = re.sub(rb"\d+", b"0", pickle.dumps(each, protocol))  # addresses, by which storages are known
            show(len(written), hashlib.sha256(written).hexdigest()[:16])
    file = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer}, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    show(len(file.getvalue()))
    train(again["model"], again["optimizer"])
    torch.save(model, "whole.pt")
    torch.save(model.state_dict(), "state.pt")
    train(torch.load("whole.pt", weights_only=False))
    model.load_state_dict(torch.load("state.pt"))
    train(model)


def pickled_teacher():
    """The bytes of a frozen model that trains nothing, and is called beside."""
    model, teacher = mlp(), mlp().requires_grad_(False)
    written = set()

    def look(_step):
        written.add(hashlib.sha256(pickle.dumps(teacher)).hexdigest())

    def loss(module, step):
        with torch.no_grad():
            goal = teacher(batch(step))
        return (module(batch(step)) - goal).pow(2).mean()
    train(model, loss_of=loss, each=look, steps=9)
    show(len(written))


def attention():
    """A TransformerEncoderLayer, whose fast path takes no hooks, trains and is evaluated."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2)

    def evaluate(_step):
        model.eval()
        with torch.inference_mode():
            show(model(batch()[None]).sum())
        model.train()
    train(model, loss_of=lambda module, step: module(batch(step)[None]).pow(2).mean(), each=evaluate)


def fused():
    """Convolution and normalization are fused into one, which keeps no hook."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    images = torch.randn(2, 1, 6, 6)
    train(model, loss_of=lambda module, _: module(images).pow(2).mean())
    from torch.nn.utils.fusion import fuse_conv_bn_eval
    model.eval()
    with torch.no_grad():
        show(model(images).sum())
    one = fuse_conv_bn_eval(model[0], model[1])
    show(one(images).sum(), len(one._forward_pre_hooks), len(one._forward_hooks))


def forward_replaced():
    """forward of an instance is another function, wrapped each few steps."""
    model = mlp()

    def wrap(step):
        if step % 3 == 0:
            model.forward = functools.partial(lambda given, inputs: given(inputs) * 1.5, model.forward)
    trained(model, each=wrap, steps=9)


def named_arguments_only():
    """forward takes named arguments alone, and returns an object of a class."""
    class Result:
        def __init__(self, outputs):
            self.loss = outputs.pow(2).mean()

        def __repr__(self):
            raise RuntimeError("not to be printed")

    class Named(Wraps):
        def forward(self, *, inputs, **more):
            show(sorted(more))
            return Result(self.inner(inputs))
    trained(Named(), loss_of=lambda model, step: model(inputs=batch(step), other=[object()]).loss)


def averaged():
    """AveragedModel beside the model, with BatchNorm brought up to date."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    average = torch.optim.swa_utils.AveragedModel(model)
    train(model, each=lambda _step: average.update_parameters(model), steps=9)
    torch.optim.swa_utils.update_bn([batch(step) for step in range(3)], average)
    show(average(batch()).sum(), average.n_averaged)


def let_go_in_the_middle():
    """A model is dropped between backward and step; another one takes its place."""
    for _ in range(3):
        model = mlp()
        optimizer = sgd(model)
        loss_of(model).backward()
        seen = weakref.ref(model)
        del model
        gone(seen)
        optimizer.step()
        show(*(each for group in optimizer.param_groups for each in group["params"]))
        del optimizer


def made_anew_each_step():
    """Forty models, each trained for two steps, as in a search."""
    for number in range(40):
        torch.manual_seed(number)
        train(nn.Linear(6, 1 + number % 3), steps=2)


@started(python=("-W", "error"))
def warnings_are_errors():
    """-W error: a warning that the program does not cause would end it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        train(model, optimizer, each=lambda _step: schedule.step(), steps=9)
        pickle.dumps(model)
        copy.deepcopy((model, optimizer))
