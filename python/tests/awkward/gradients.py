"""Gradients that come otherwise than by one backward(), modes that see or change what torch does, and torch.func."""

import contextlib
import functools
import gc
import threading
import warnings
import weakref

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from usual import batch, gone, loss_of, mlp, sgd, show, started, train


class CountsFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_function__(self, function, types, arguments=(), options=None):
        name = getattr(function, "__name__", "?")
        self.seen[name] = self.seen.get(name, 0) + 1
        return function(*arguments, **(options or {}))


class CountsOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.seen[str(function)] = self.seen.get(str(function), 0) + 1
        return function(*arguments, **(options or {}))


def functional():
    """functional_call, grad, vmap and jvp, beside a training by backward()."""
    from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, jvp, vmap
    model = mlp()
    optimizer = sgd(model)

    def loss(parameters, inputs):
        return functional_call(model, parameters, (inputs,)).pow(2).mean()
    for step in range(4):
        parameters = {name: one.detach() for name, one in model.named_parameters()}
        gradients, value = grad_and_value(loss)(parameters, batch(step))
        each = vmap(grad(loss), in_dims=(None, 0))(parameters, batch(step))
        show(value, each["0.weight"].sum(), jacrev(loss)(parameters, batch(step))["2.bias"])
        show(jvp(functools.partial(loss, parameters), (batch(step),), (torch.ones(4, 6),))[1])
        for name, one in model.named_parameters():
            one.grad = gradients[name]
        optimizer.step()
    show(hessian(lambda given: given.pow(3).sum())(torch.ones(2)), vmap(model)(batch()).sum())
    train(model)


def ensembles():
    """stack_module_state and vmap over models on the meta device, each of which trains."""
    from torch.func import functional_call, stack_module_state, vmap
    models = [mlp() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    skeleton = mlp().to("meta")
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        results = vmap(lambda own, kept, inputs: functional_call(skeleton, (own, kept), (inputs,)),
                       in_dims=(0, 0, None))(parameters, buffers, batch(step))
        results.pow(2).mean().backward()
        optimizer.step()
        show(results.sum())


def twice():
    """Double backward: a penalty on the gradient's norm, by autograd.grad and by backward(create_graph=True)."""
    model = mlp()

    def penalized(module, step):
        inputs = batch(step).requires_grad_()
        outputs = module(inputs).sum()
        [gradient] = torch.autograd.grad(outputs, inputs, create_graph=True)
        return outputs.pow(2) + gradient.pow(2).sum()
    train(model, loss_of=penalized)
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss_of(model, step).backward(create_graph=True)
        sum(each.grad.pow(2).sum() for each in model.parameters()).backward()
        optimizer.step()
        show(*model.parameters())
        for each in model.parameters():
            each.grad = None


def without_backward():
    """autograd.grad alone, and an optimizer that is given the gradients."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(9):
        gradients = torch.autograd.grad(loss_of(model, step), list(model.parameters()), allow_unused=True)
        for each, gradient in zip(model.parameters(), gradients, strict=True):
            each.grad = gradient
        optimizer.step()
        show(gradients[0].sum())


class Scales(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(context, inputs, by):
        context.by = by
        context.save_for_backward(inputs)
        return inputs * by

    @staticmethod
    def backward(context, gradient):
        Scales.calls += 1
        [inputs] = context.saved_tensors
        return gradient * context.by + 0 * inputs, None


def own_function():
    """A Function of the program's, in the middle of the model, and one whose backward raises and is caught."""
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(_context, inputs):
            return inputs.clone()

        @staticmethod
        def backward(_context, _gradient):
            raise KeyError("no gradient today")
    model = mlp()
    train(model, loss_of=lambda module, step: Scales.apply(module(batch(step)), 2.0).pow(2).mean())
    show(Scales.calls)
    try:
        Raises.apply(model(batch())).sum().backward()
    except KeyError as error:
        show(str(error))
    train(model)


def recomputed():
    """Checkpointing, reentrant and not, and in sequence."""
    model = mlp()
    for reentrant in (True, False):
        train(model, loss_of=lambda module, step, how=reentrant: checkpoint(
            module, batch(step).requires_grad_(), use_reentrant=how).pow(2).mean())
    train(model, loss_of=lambda module, step: checkpoint_sequential(
        module, 2, batch(step), use_reentrant=False).pow(2).mean())


def anomalies():
    """Anomaly mode finds where a gradient that is no number comes from; its text is the same."""
    model = mlp()
    optimizer = sgd(model)
    with torch.autograd.detect_anomaly():
        train(model, optimizer, steps=3)
        optimizer.zero_grad()
        try:
            (model(batch()).sum() * 0).sqrt().backward()
        except RuntimeError as error:
            show(str(error)[:90])
    train(model, optimizer)


def saved_tensors():
    """Hooks pack what is saved for backward: as many as without a recorder, of the same sizes."""
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor.numpy(force=True)

    def unpack(kept):
        unpacked.append(kept.shape)
        return torch.from_numpy(kept)
    model = mlp()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        train(model)
    with torch.autograd.graph.save_on_cpu():
        train(model)
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        train(model)
    show(packed, unpacked)


def modes_of_gradients():
    """Training inside of functions with no_grad and inference_mode, by enable_grad within."""
    model = mlp()

    @torch.no_grad()
    def inside(step):
        with torch.enable_grad():
            loss = loss_of(model, step)
        loss.backward()
        for each in model.parameters():
            each.sub_(each.grad, alpha=0.05)
            each.grad.zero_()
        return loss
    for step in range(6):
        show(inside(step))
    torch.set_grad_enabled(False)
    try:
        optimizer = sgd(model)
        for step in range(6):
            optimizer.zero_grad()
            with torch.set_grad_enabled(True):
                loss_of(model, step).backward()
            optimizer.step()
            show(model(batch(step)).sum())
    finally:
        torch.set_grad_enabled(True)


def twice_through_one_graph():
    """retain_graph, backward with inputs=, of several losses at once, with a gradient given, and of a generator."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(5):
        optimizer.zero_grad()
        outputs = model(batch(step))
        loss = outputs.pow(2).mean()
        loss.backward(retain_graph=True)
        loss.backward(inputs=[model[0].weight], retain_graph=True)
        torch.autograd.backward([outputs.sum(), outputs.mean()], retain_graph=True)
        outputs.backward(torch.ones_like(outputs) * 0.1)
        optimizer.step()
        show(*model.parameters())


def fails_in_the_middle_of_backward():
    """A hook raises in the middle of a backward; the program goes on with the next batch."""
    model = mlp()
    handle = model[0].weight.register_hook(lambda gradient: 1 / 0)
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        with contextlib.suppress(ZeroDivisionError):
            loss_of(model, step).backward()
        optimizer.step()
        show([each.grad is None for each in model.parameters()])
    handle.remove()
    train(model, optimizer)


def functions_are_counted():
    """A TorchFunctionMode around the training counts each function of torch that the program calls."""
    with CountsFunctions() as mode:
        train(mlp(), steps=30)
    show(sorted(mode.seen.items()))


def operators_are_counted():
    """A TorchDispatchMode around the training counts each operator."""
    with CountsOperators() as mode:
        train(mlp(), steps=30)
    show(sorted(mode.seen.items()))


def operations_are_counted():
    """FlopCounterMode around the training."""
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as mode:
        train(mlp(), steps=9)
    show(mode.get_total_flops())


def a_mode_that_fails():
    """A TorchDispatchMode that refuses what the program does not do."""
    class Refuses(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            if str(function).startswith(("aten.cat", "aten.aminmax", "aten.unbind", "aten.item", "aten._local_scalar",
                                         "aten.norm", "aten.isfinite", "aten.equal")):
                raise RuntimeError(f"{function} is not allowed here")
            return function(*arguments, **(options or {}))
    model = mlp()
    optimizer = sgd(model)
    with Refuses():
        for step in range(9):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    show(*model.parameters())


def default_device():
    """New tensors are on the meta device by default."""
    model = mlp()
    optimizer = sgd(model)
    given = [batch(step) for step in range(9)]
    torch.set_default_device("meta")
    for inputs in given:
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        show(loss)
    show(torch.ones(2).is_meta)
    torch.set_default_device(None)


def default_type():
    """New tensors are of double precision by default."""
    torch.set_default_dtype(torch.float64)
    train(mlp(), steps=9)


@started(variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
def deterministic():
    """Deterministic algorithms, and memory that is filled before it is written."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    train(mlp(), steps=9)
    torch.use_deterministic_algorithms(False)


def numbers_that_nobody_draws():
    """The state of each generator, after each step."""
    import random
    model, own = mlp(), torch.Generator().manual_seed(3)
    dropout = nn.Dropout(0.5)

    def look(_step):
        show(torch.rand(1), torch.rand(1, generator=own), random.random(), torch.initial_seed())
    train(model, each=look, steps=9, loss_of=lambda module, step: dropout(module(batch(step))).pow(2).mean())


def graph_is_let_go_with_the_thread():
    """A thread trains while the main one waits, and ends; what it held is freed."""
    seen = []

    def work():
        model = train(mlp())
        seen.extend(weakref.ref(each) for each in (model, model[0].weight))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gone(*seen)


def objects_are_collected():
    """Only garbage collection can free a model that is in a cycle, and gc sees it."""
    class Cycle(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.around = mlp(), [self]

        def forward(self, inputs):
            return self.inner(inputs)
    gc.collect()
    gc.disable()
    for _ in range(3):
        model = Cycle()
        train(model, steps=3)
        seen = weakref.ref(model)
        del model
        show(seen() is None)
        gc.collect()
        show(seen() is None)
    gc.enable()


def forward_mode():
    """Forward-mode derivatives beside the training."""
    from torch.autograd import forward_ad
    model = mlp()

    def look(step):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(batch(step), torch.ones(4, 6))
            show(forward_ad.unpack_dual(model(dual)).tangent.sum())
    train(model, each=look)


def distillation_with_hooks_on_outputs():
    """Hooks on activations, retained gradients, and gradients of the inputs."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(5):
        optimizer.zero_grad()
        inputs = batch(step).requires_grad_()
        hidden = model[1](model[0](inputs))
        hidden.retain_grad()
        hidden.register_hook(lambda gradient: gradient * 2)
        model[2](hidden).pow(2).mean().backward()
        optimizer.step()
        show(hidden.grad.sum(), inputs.grad.sum())


@started(says="several threads of this process train")
def many_threads_of_autograd():
    """backward() from several threads over one graph, as the engine allows, and one optimizer."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        losses = [loss_of(model, 10 * step + part) for part in range(3)]
        for loss in losses:
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        optimizer.step()
        show(*model.parameters())
