"""Parameters, buffers, gradients and inputs that are no plain tensors."""

import gc
import warnings
import weakref

import torch
from torch import nn
from usual import batch, gone, loss_of, mlp, quick, sgd, show, started, train


class Two(torch.Tensor):
    """Stands for two tensors at once, as quantized weights do."""

    @staticmethod
    def __new__(cls, one, other):
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype, requires_grad=one.requires_grad)

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __tensor_flatten__(self):
        return ["one", "other"], None

    @staticmethod
    def __tensor_unflatten__(inner, _context, _size, _stride):
        return Two(inner["one"], inner["other"])

    @classmethod
    def __torch_dispatch__(cls, function, _types, arguments=(), options=None):
        def each(which):
            return torch.utils._pytree.tree_map_only(Two, lambda two: getattr(two, which), (arguments, options or {}))
        (ones, named), (others, others_named) = each("one"), each("other")
        one, other = function(*ones, **named), function(*others, **others_named)
        made = Two(one, other) if isinstance(one, torch.Tensor) else one
        return torch.utils._python_dispatch.return_and_correct_aliasing(function, arguments, options or {}, made)


class Counted(torch.Tensor):
    """Counts the functions of torch that it is given to."""
    seen = 0

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        cls.seen += 1
        return super().__torch_function__(function, types, arguments, options or {})


def tied():
    """Two layers hold one parameter."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    with torch.random.fork_rng():
        train(model)
    show(model[2].weight is model[0].weight, len(list(model.parameters())))


def views_of_one_storage():
    """All parameters are views of one flat tensor, and so are their gradients."""
    model = mlp()
    flat = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    gradients, place = torch.zeros_like(flat), 0
    for each in model.parameters():
        end = place + each.numel()
        each.data, each.grad = flat[place:end].view_as(each), gradients[place:end].view_as(each)
        place = end
    train(model, loss_of=lambda *given: loss_of(*given), optimizer=Keeps(model.parameters(), lr=0.05))
    show(flat, gradients)


class Keeps(torch.optim.SGD):
    def zero_grad(self, set_to_none=False):
        super().zero_grad(set_to_none=False)


def sparse_gradients():
    """An Embedding with sparse gradients, and the optimizer for them."""
    torch.manual_seed(0)
    table = nn.Embedding(20, 3, sparse=True)
    rows = torch.tensor([1, 4, 4, 7])
    train(table, torch.optim.SparseAdam(table.parameters(), lr=0.1), loss_of=lambda model, _: model(rows).pow(2).sum())
    show(table.weight.grad.is_sparse, table.weight)


def sparse_parameter():
    """A parameter that is a sparse tensor."""
    weight = nn.Parameter(torch.eye(4).to_sparse())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.sparse.mm(weight, torch.ones(4, 2)).sum()
        loss.backward()
        optimizer.step()
        show(loss)
    show(weight)


def compressed_sparse_buffer():
    """A buffer in CSR, by which the model multiplies."""
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.register_buffer("adjacent", torch.eye(4).to_sparse_csr())
    train(model, loss_of=lambda module, step: (module.adjacent @ module(batch(step))).pow(2).mean())


def complex_numbers():
    """Complex weights."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2, dtype=torch.complex64)
    inputs = torch.randn(4, 3, dtype=torch.complex64)
    train(model, torch.optim.Adam(model.parameters(), lr=0.1), loss_of=lambda module, _: module(inputs).abs().sum())
    show(*model.parameters())


def conjugate_inputs():
    """Inputs that are lazily conjugated, and others negated."""
    model, numbers = mlp(), torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    train(model, loss_of=lambda module, _: module(numbers.conj().imag).pow(2).mean())
    show(numbers.conj().imag.is_neg())


def empty_parameters():
    """A layer without outputs, and one without inputs."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.ModuleList([nn.Linear(6, 0), nn.Linear(0, 3), nn.Linear(6, 2)])
    train(model, loss_of=lambda parts, step: parts[1](parts[0](batch(step))).sum() + parts[2](batch(step)).sum())


def no_dimensions():
    """A loss scale that is a number, and trained."""
    scale = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.Adam([scale], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (scale * scale).backward()
        optimizer.step()
        show(scale)


def expanded_buffer():
    """A buffer of 40 GB that is one number in memory, and an expanded gradient."""
    model = mlp()
    model.register_buffer("mask", torch.ones(1).expand(10_000_000_000))
    train(model, loss_of=lambda module, step: module(batch(step)).sum())
    show(model.mask.stride())


def overlapping_parameter():
    """Elements of a parameter share their memory."""
    rows = nn.Parameter(torch.arange(5.0).as_strided((3, 3), (1, 1)))
    loss = (rows * torch.ones(3, 3)).sum()
    optimizer = torch.optim.SGD([rows], lr=0.1)
    loss.backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        show(str(error)[:40])
    show(rows)


def meta_buffer():
    """A buffer without memory."""
    model = mlp()
    model.register_buffer("skeleton", torch.empty(3, device="meta"), persistent=False)
    train(model, steps=9)


def meta_modules_beside():
    """Skeletons of models, to be loaded later, one of which is in an optimizer."""
    spare = nn.Linear(3, 3, device="meta")
    waiting = sgd(spare)
    train(mlp())
    show(spare.weight.is_meta, len(waiting.state))


def low_precision_buffers():
    """Types that few operators take: float8, float4, bits, unsigned, quantized."""
    model = mlp()
    for name in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "bfloat16", "half", "bool"):
        model.register_buffer(f"of {name}", torch.ones(3).to(getattr(torch, name)))
    for name in ("float4_e2m1fn_x2", "bits8", "bits16"):
        if hasattr(torch, name):
            model.register_buffer(f"of {name}", torch.empty(4, dtype=getattr(torch, name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
    train(model)


@started(variables={"PYTHONWARNINGS": "ignore"})
def nested_inputs():
    """Sequences of different lengths in one tensor, in both layouts."""
    torch.manual_seed(0)
    parts = [batch()[:rows] for rows in (1, 3)]
    for layout in (torch.jagged, torch.strided):
        inputs = torch.nested.nested_tensor(parts, layout=layout)
        train(nn.Linear(6, 2), loss_of=lambda module, _, given=inputs: sum(
            each.pow(2).mean() for each in module(given).unbind()))


def mkldnn_beside():
    """A frozen model in the layout of oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return
    from torch.utils import mkldnn
    teacher = mkldnn.to_mkldnn(mlp().eval())
    with torch.no_grad():
        goal = teacher(batch().to_mkldnn()).to_dense()
    train(mlp(), loss_of=lambda model, step: (model(batch(step)) - goal).pow(2).mean())


def counted_by_torch_function():
    """Inputs whose class sees each function of torch that they are given to."""
    model, inputs = mlp(), batch().as_subclass(Counted)
    train(model, loss_of=lambda module, _: module(inputs).pow(2).mean(), steps=30)
    show(Counted.seen)


def parameter_counted_by_torch_function():
    """A parameter of such a class."""
    model = mlp()
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Counted))
    show(type(model[0].weight).__name__)
    train(model, steps=30)
    show(Counted.seen)


def wrapper_parameters():
    """Parameters that stand for two tensors, of a class with __torch_dispatch__."""
    model = mlp()
    for part in (model[0], model[2]):
        for name, one in list(part.named_parameters()):
            setattr(part, name, nn.Parameter(Two(one.detach(), one.detach() * 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(batch(step)).pow(2).mean()
        loss.backward()
        optimizer.step()
        show(loss.one, loss.other)


class Named(nn.Parameter):
    """A subclass with attributes, as Megatron's."""

    def __new__(cls, data, owner):
        made = super().__new__(cls, data)
        made.owner = owner
        return made

    def __repr__(self):
        raise RuntimeError("nobody is to print this one")


def parameter_of_a_subclass():
    """It has attributes of its own, and must not be printed."""
    model = mlp()
    model[0].weight = Named(model[0].weight.detach(), "tensor parallel")
    train(model)
    show(model[0].weight.owner, type(model[0].weight).__name__)


class Bool(nn.Parameter):
    def __eq__(self, other):
        raise AssertionError("compared")

    def __len__(self):
        raise AssertionError("asked for its length")

    __hash__ = nn.Parameter.__hash__


def parameter_that_must_not_be_compared():
    """Its __eq__ and __len__ raise."""
    model = mlp()
    model[0].bias = Bool(model[0].bias.detach())
    train(model, torch.optim.Adam(model.parameters(), foreach=False))


def channels_last():
    """A convolution in another order of memory; its order is as it was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    train(model, loss_of=lambda module, _: module(images).pow(2).mean() + module[0](images).mean())
    show(model[0].weight.stride(), model[0].weight.grad.stride())


@started(python=("-W", "ignore"))
def named_dimensions():
    """Inputs whose dimensions have names."""
    train(mlp(), loss_of=lambda model, step: model(batch(step).refine_names("batch", None).rename(None)).pow(2).mean())
    weight = nn.Parameter(torch.ones(3, names=("channel",)))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()
        show(weight.rename(None), weight.names)


def swapped(how):
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, steps=2)
    del optimizer
    with torch.random.fork_rng():
        how(model)
    train(model, steps=3, loss_of=lambda module, step: module(batch(step).to(module[0].weight)).pow(2).mean())


@quick()
def swapped_by_a_conversion():
    """Module.double() that swaps the parameters, after they were trained."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    swapped(lambda model: model.double())


def swapped_by_loading():
    """load_state_dict that swaps the parameters."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    swapped(lambda model: model.load_state_dict({name: one + 1 for name, one in model.state_dict().items()}))


def swapped_by_hand():
    """swap_tensors of a trained parameter."""
    swapped(lambda model: torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.ones(8, 6))))


def swapped_for_a_wrapper():
    """A trained parameter becomes one that stands for two, as where it is quantized."""
    model = train(mlp(), steps=3)
    for each in model.parameters():
        each.grad = None
        torch.utils.swap_tensors(each, nn.Parameter(Two(each.detach().clone(), each.detach().clone())))
    with torch.no_grad():
        show(model(batch()).one)


def storage_freed_between_steps():
    """The memory of parameters is given back after each step, and taken again before the next, as sharding does."""
    model = mlp()
    kept = {}

    def free(_step):
        for each in model.parameters():
            kept[each] = each.detach().clone()
            each.untyped_storage().resize_(0)

    def take():
        for each, numbers in kept.items():
            each.untyped_storage().resize_(numbers.untyped_storage().nbytes())
            with torch.no_grad():
                each.copy_(numbers)

    def loss(module, step):
        take()
        return loss_of(module, step)
    train(model, loss_of=loss, each=free)
    show(sum(each.untyped_storage().nbytes() for each in model.parameters()))


def data_replaced_between_steps():
    """p.data = another tensor, and set_()."""
    model = mlp()

    def replace(step):
        for each in model.parameters():
            if step % 2:
                each.data = each.data.clone() * 2
            else:
                each.detach().set_(each.detach().clone())
    train(model, each=replace)


def shared_memory():
    """Parameters that other processes could see."""
    model = mlp().share_memory()
    train(model)
    show([each.is_shared() for each in model.parameters()])


def memory_of_a_file():
    """A parameter that is a mapped file, which is as it would be."""
    weight = nn.Parameter(torch.from_file("weight", shared=True, size=6))
    with torch.no_grad():
        weight.copy_(torch.arange(6.0))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        weight.pow(2).sum().backward()
        optimizer.step()
        show(weight)


def read_only_inputs():
    """Inputs over memory that nobody may write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = torch.frombuffer(bytes(96), dtype=torch.float32).reshape(4, 6)
    train(mlp(), loss_of=lambda model, _: model(inputs).pow(2).mean())


def half_precision():
    """bfloat16 and float16 weights."""
    for dtype in (torch.bfloat16, torch.float16):
        train(mlp().to(dtype), loss_of=lambda model, step, kind=dtype: model(batch(step).to(kind)).pow(2).mean())


def inference_tensors():
    """A buffer, and a teacher, that were made in inference mode."""
    model = mlp()
    with torch.inference_mode():
        teacher = mlp().requires_grad_(False)
        model.register_buffer("goal", teacher(batch()))
    goal = model.goal.clone()
    train(model, loss_of=lambda module, step: (module(batch(step)) - goal).pow(2).mean())
    show(model.goal.is_inference(), teacher[0].weight.is_inference())


@started(finds="not-finite")
def not_finite():
    """Losses and gradients that are no numbers."""
    model = mlp()
    train(model, loss_of=lambda module, step: module(batch(step)).sum() * (float("inf") if step == 1 else 1.0))
    show(*model.parameters())


def own_gradient_hooks():
    """The program's hooks on parameters change the gradient, in its order, and are as many as it made."""
    model, order = mlp(), []
    for number, each in enumerate(model.parameters()):
        each.register_hook(lambda gradient, at=number: (order.append(at), gradient * 2)[1])
        each.register_hook(lambda gradient, at=number: (order.append(-at), gradient + 1)[1])
        each.register_post_accumulate_grad_hook(lambda parameter: order.append(tuple(parameter.shape)))
    train(model)
    show(order)


def hooks_of_parameters_are_the_program_s():
    """A program that asks for a parameter's hooks, or clears them, finds its own."""
    model = train(mlp())
    show([each._backward_hooks and len(each._backward_hooks) for each in model.parameters()])
    for each in model.parameters():
        each._backward_hooks = None
    train(model)


def gradients_replaced():
    """The program sets gradients, of its own and to None."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(5):
        gradients = torch.autograd.grad(loss_of(model, step), list(model.parameters()))
        for each, gradient in zip(model.parameters(), gradients, strict=True):
            each.grad = gradient if step != 2 else None
        optimizer.step()
        show(*model.parameters())


def graph_let_go():
    """What the program drops is freed at once, by its reference count: outputs, losses, inputs, gradients."""
    model, optimizer = mlp(), None
    optimizer = sgd(model)
    gc.disable()
    for step in range(4):
        inputs = batch(step)
        outputs = model(inputs)
        loss = outputs.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen = [weakref.ref(each) for each in (inputs, outputs, loss, model[0].weight.grad)]
        del inputs, outputs, loss
        optimizer.zero_grad()
        show([each() is None for each in seen])
    gc.enable()


@quick()
def models_let_go():
    """A model and its optimizer that the program drops are freed, also the last ones."""
    for _ in range(3):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, steps=3)
        seen = [weakref.ref(each) for each in (model, model[0].weight, optimizer)]
        del model, optimizer
        gone(*seen)


def resurrected():
    """A tensor that comes back in its __del__."""
    class Comes(torch.Tensor):
        def __del__(self):
            back.append(self)
    back = []
    model = mlp()
    train(model, loss_of=lambda module, step: module(
        batch(step).as_subclass(Comes)).as_subclass(torch.Tensor).pow(2).mean())
    gc.collect()
    show(len(back))


def lazy():
    """Layers that get their shapes with the first batch; one that never is called."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, unused = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2)), nn.LazyLinear(3)
    model(batch())
    train(model, steps=9)
    show(type(unused.weight).__name__, type(model[0]).__name__)


def lazy_in_an_optimizer():
    """An optimizer made before the first batch."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 2))
    optimizer = sgd(model)
    train(model, optimizer, steps=9)
