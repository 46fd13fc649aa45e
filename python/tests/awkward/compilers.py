"""What looks at the program's code or traces it."""

import io
import logging
import warnings

import torch
from torch import nn
from usual import batch, loss_of, mlp, sgd, show, started, train


def frozen():
    return mlp().requires_grad_(False).eval()


def with_teacher(teacher, exported=lambda given: given, steps=6):
    """Trains a model beside a frozen one, which is exported each other step."""
    model = mlp()

    def loss(module, step):
        with torch.no_grad():
            goal = teacher(batch(step))
        return (module(batch(step)) - goal).pow(2).mean()

    def export(step):
        if step % 2:
            with torch.no_grad():
                show(exported(teacher)(batch(step)).sum())
                show(exported(model)(batch(step)).sum())
    train(model, loss_of=loss, each=export, steps=steps)


@started(python=("-W", "ignore"), quick=True)
def traced():
    """torch.jit.trace of a frozen module and of the model, while it trains, each read back from a file."""
    def export(module):
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(module, batch()), file)
        file.seek(0)
        return torch.jit.load(file)
    with_teacher(frozen(), export)


@started(python=("-W", "ignore"))
def scripted():
    """torch.jit.script of both, frozen, and a scripted model that trains."""
    with_teacher(frozen(), torch.jit.script)
    with_teacher(torch.jit.script(frozen()))
    train(torch.jit.script(mlp()), steps=9)
    show(torch.jit.freeze(torch.jit.script(frozen()))(batch()).sum())


@started(python=("-W", "ignore"))
def scripted_beside():
    """A scripted module that lies beside the model, and is called, trains later, and is part of the model."""
    with_teacher(torch.jit.script(frozen()))
    model = nn.Sequential(torch.jit.script(nn.Linear(6, 6)), nn.Linear(6, 2))
    train(model, steps=9)


def exported():
    """torch.export of the model and of a frozen one; the graph has no node of a hook's."""
    def export(module):
        program = torch.export.export(module, (batch(),))
        show(len(program.graph.nodes))
        return program.module()
    with_teacher(frozen(), export, steps=3)


def exported_without_strictness():
    """torch.export in its other mode, and run as a program of its own."""
    def export(module):
        program = torch.export.export(module, (batch(),), strict=False)
        show(len(program.graph.nodes))
        return program.module()
    with_teacher(frozen(), export, steps=3)


def symbolic():
    """fx traces both by symbols, and make_fx by operators."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def export(module):
        graph = torch.fx.symbolic_trace(module)
        show([node.op for node in graph.graph.nodes])
        made = make_fx(module)(batch())
        show([str(node.target) for node in made.graph.nodes])
        return graph
    with_teacher(frozen(), export)


def fx_with_parts_of_the_program():
    """An own Tracer that records which modules it enters."""
    entered = []

    class Own(torch.fx.Tracer):
        def call_module(self, module, forward, arguments, options):
            entered.append(type(module).__name__)
            return super().call_module(module, forward, arguments, options)

    def export(module):
        return torch.fx.GraphModule(module, Own().trace(module))
    with_teacher(frozen(), export)
    show(entered)


def fake():
    """A model is made and run under FakeTensorMode, beside the training and in the middle of it."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        model = mlp()
        optimizer = sgd(model)
        model(torch.ones(4, 6)).sum().backward()
        optimizer.step()
        show(tuple(model(torch.ones(4, 6)).shape))
    real = mlp()

    def look(_step):
        with FakeTensorMode(allow_non_fake_inputs=True):
            show(tuple(real(torch.ones(4, 6)).shape))
    train(real, each=look, steps=9)


def compiled():
    """torch.compile without a compiler, of the model and of its parts; as many graphs and breaks as without."""
    from torch._dynamo.utils import counters
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        counters.clear()
        model = mlp()
        fast = torch.compile(model, backend=backend)
        optimizer = sgd(model)
        train(fast, optimizer, steps=6)
        fast.eval()
        with torch.no_grad():
            show(fast(batch()).sum())
        show(backend, dict(counters["stats"]), sum(counters["graph_break"].values()))


def compiled_in_place():
    """Module.compile(), and a compiled function that makes the loss, calls backward and steps."""
    model = mlp()
    model.compile(backend="eager")
    train(model, steps=6)
    other = mlp()
    optimizer = sgd(other)

    @torch.compile(backend="eager")
    def step(inputs):
        loss = other(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(6):
            show(step(batch(number)))


@started(unrecorded=True)
def compiled_step():
    """A compiled optimizer step."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))
    step = torch.compile(optimizer.step, backend="eager")
    for number in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        step()
        show(loss)


@started(variables={"TORCH_LOGS": "graph_breaks,recompiles"})
def compiled_with_its_log():
    """What the compiler logs of breaks and recompilations."""
    model = mlp()
    fast = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    for rows in (1, 2, 3, 4):
        optimizer.zero_grad()
        loss = fast(batch()[:rows]).pow(2).mean()
        loss.backward()
        optimizer.step()
        show(loss)


@started(python=("-W", "ignore"))
def whole_graph_alone():
    """fullgraph=True: a break would be an error; of a training step with a loader inside."""
    model = mlp()
    fast = torch.compile(model, backend="eager", fullgraph=True)
    train(fast, sgd(model), steps=6)
    clip = torch.compile(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1), backend="eager")
    for step in range(3):
        loss_of(model, step).backward()
        show(clip())


def explained():
    """torch._dynamo.explain of the model, between steps."""
    model = mlp()

    def look(step):
        if step == 3:
            said = torch._dynamo.explain(model)(batch())
            show(said.graph_count, said.graph_break_count)
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    train(model, each=look, steps=6)


@started(python=("-W", "ignore"))
def packaged():
    """torch.package of the model with its source."""
    from torch.package import PackageExporter, PackageImporter
    model = train(mlp())
    file = io.BytesIO()
    with PackageExporter(file) as writer:
        writer.extern("**")
        writer.save_pickle("model", "model.pkl", model)
    file.seek(0)
    again = PackageImporter(file).load_pickle("model", "model.pkl")
    train(again)
