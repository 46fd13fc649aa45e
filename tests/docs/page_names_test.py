"""The names in the code of the pages are there: Python's in the torch that is here, with the arguments that they take, and
C++'s in our headers or LibTorch's. What can run is run by docs.page_snippets, in the full tier.
"""

import ast
import builtins
import functools
import importlib
import inspect
import pathlib
import re
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

sys.dont_write_bytecode = True
import page_python  # noqa: E402
from page_commands import COMMAND, FENCED, INDENTED, INLINE, PAGES, ROOT  # noqa: E402


class Of:
    """Something of this class."""

    def __init__(self, kind):
        self.kind = kind


UNKNOWN = object()
TORCH = pathlib.Path(torch.__file__).parent
# What these return, where something is called on it.
RETURNS = {torch.cuda.current_stream: torch.cuda.Stream, torch.utils.data.get_worker_info: torch.utils.data._utils.worker.WorkerInfo}
# What is one of another kind on a page.
ON_PAGES = {"norm-reduced-twice": {"model": Of(FullyShardedDataParallel)}}
# Things of which there is none without a GPU or a worker.
OTHERS = {"side": torch.cuda.Stream, "info": torch.utils.data._utils.worker.WorkerInfo}
READERS = {"self", "update_parameters", "load_state_dict", "f", "state", "hook"}
# No Python, C++ or command: what is set, or what an error says.
OTHER_BLOCKS = re.compile(r"[A-Z_]+=|Parameter at index 1 ")


class Wrong(Exception):
    pass


@functools.cache
def stubs():
    """{a function that C++ brings: the names of its arguments}, of all its overloads."""
    found = {}
    for file in ("_VariableFunctions.pyi", "__init__.pyi"):
        for node in ast.walk(ast.parse((TORCH / "_C" / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                found.setdefault(node.name, set()).update(argument.arg for argument in every)
    return found


def check_arguments(called, node):
    names = [keyword.arg for keyword in node.keywords if keyword.arg]
    some = any(isinstance(each, ast.Starred) or (isinstance(each, ast.Constant) and each.value is ...) for each in node.args)
    some = some or len(names) < len(node.keywords)
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        there = stubs().get(getattr(called, "__name__", ""), set())
        if there and not set(names) <= there:
            raise Wrong(f"{ast.unparse(node.func)} takes {sorted(there)}") from None
        return
    try:
        if some:
            signature.bind_partial(**dict.fromkeys(names))
        else:
            itself = ["self"] if next(iter(signature.parameters), "") == "self" else []  # a schedule wraps its optimizer's step
            signature.bind(*itself, *node.args, **dict.fromkeys(names))
    except TypeError as error:
        raise Wrong(f"{ast.unparse(node)}: {error}") from None


class Names:
    """Resolves all names of one snippet; raises Wrong for one that is not there."""

    def __init__(self, job):
        self.known = {**vars(builtins), **job, **{name: Of(kind) for name, kind in OTHERS.items()}}
        self.known |= dict.fromkeys(READERS, UNKNOWN)

    def check(self, tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self.known.setdefault(node.id, UNKNOWN)
            elif isinstance(node, ast.arg):
                self.known.setdefault(node.arg, UNKNOWN)
            elif isinstance(node, ast.FunctionDef):
                self.known[node.name] = UNKNOWN
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.take(node)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Call, ast.Name)) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                self.value(node)

    def take(self, node):
        for name in node.names:
            module = importlib.import_module(node.module if isinstance(node, ast.ImportFrom) else name.name)
            if isinstance(node, ast.ImportFrom) and not hasattr(module, name.name):
                raise Wrong(f"{node.module} has no {name.name}")
            value = getattr(module, name.name) if isinstance(node, ast.ImportFrom) else module
            self.known[name.asname or name.name.split(".")[0]] = value if name.asname or "." not in name.name else sys.modules[
                name.name.split(".")[0]]

    def value(self, node):
        if isinstance(node, ast.Name):
            if node.id not in self.known:
                raise Wrong(f"what is {node.id}?")
            return self.known[node.id]
        if isinstance(node, ast.Attribute):
            return self.attribute(self.value(node.value), node)
        if isinstance(node, ast.Call):
            called = self.value(node.func)
            if called is UNKNOWN or isinstance(called, Of):
                return UNKNOWN
            check_arguments(called, node)
            return Of(called) if isinstance(called, type) else Of(RETURNS[called]) if called in RETURNS.keys() else UNKNOWN
        return UNKNOWN

    def attribute(self, of, node):
        if of is UNKNOWN:
            return UNKNOWN
        if isinstance(of, Of):
            if not hasattr(of.kind, node.attr) and node.attr not in getattr(of.kind, "__annotations__", {}):
                raise Wrong(f"{of.kind.__name__} has no {node.attr}")
            return UNKNOWN
        if not hasattr(of, node.attr):
            if "." in ast.unparse(node) and inspect.ismodule(of):
                try:
                    return importlib.import_module(f"{of.__name__}.{node.attr}")
                except ImportError:
                    pass
            raise Wrong(f"there is no {ast.unparse(node)}")
        return getattr(of, node.attr)


class Python(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-page-names-test-")
        cls.addClassCleanup(folder.cleanup)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)
        cls.job = page_python.job(folder.name)
        cls.addClassCleanup(cls.job["file"].close)

    def test_every_name_is_there(self):
        snippets = list(page_python.snippets())
        kinds = [snippet.kind for snippet in snippets]
        self.assertGreater(kinds.count("call"), 200)
        self.assertGreater(kinds.count("block"), 60)
        page, names = None, None
        for snippet in snippets:
            with self.subTest(snippet.page.stem, code=snippet.text):
                if snippet.page != page or snippet.kind != "call":
                    page, names = snippet.page, Names({**self.job, **ON_PAGES.get(snippet.page.stem, {})})
                names.check(page_python.tree_of(snippet))

    def test_what_is_wrong_is_seen(self):
        for text in ("dist.all_reduced(t)", "dist.all_reduce(t, average=True)", "torch.randn(3, seeded=None)", "loader.sampler.set_epochs(1)",
                     "torch.optim.SGD(parameters, rate=1)", "unheard(1)", "torch.Generator().manual_seeds(0)", "optimizer.zero_grad(1, 2)",
                     "from torch.utils.data import DistributedLoader", "torch.cuda.current_stream().waits()", "dist.barrier("):
            with self.subTest(text), self.assertRaises((Wrong, SyntaxError)):
                Names(self.job).check(ast.parse(text))

    def test_no_block_of_a_pitfall_is_passed_over(self):
        for page in ROOT.glob("lessons/*/pitfalls/*.md"):
            section = page.read_text(encoding="utf-8").split("## In your own job\n")[1].split("\n## ")[0]
            there = [body for kind, body in page_python.blocks_of(section)]
            for body in INDENTED.findall(section):
                text = page_python.textwrap.dedent(body).rstrip("\n")
                known = text in there or page_python.CPP.search(text) or COMMAND.match(text) or OTHER_BLOCKS.match(text)
                self.assertTrue(known, f"{page.name}: {text}")


@functools.cache
def words_of_headers():
    """All that C++ can mean: the words of our headers, and of LibTorch's."""
    ours = [path for folder in ("common", "lessons", "tests/consumer") for kind in ("*.h", "*.cpp", "*.cu") for path in (ROOT / folder).rglob(kind)]
    theirs = [path for folder in ("torch/csrc", "c10", "ATen/core", "ATen/ops") for path in (TORCH / "include" / folder).rglob("*.h*")]
    theirs += list((TORCH / "include" / "ATen").glob("*.h"))
    return {word for path in ours + theirs for word in re.findall(r"[A-Za-z_]\w+", path.read_text(encoding="utf-8", errors="replace"))}


def cpp_names(text):
    """What follows :: (but std's), members that are named to be set, and what is called in blocks of C++."""
    prose = INDENTED.sub("\n", FENCED.sub("", text))
    for code in INLINE.findall(prose):
        yield from re.findall(r"(?<!std)::(\w+)", code)
        yield from re.findall(r"[{ ]\.(\w+) = ", code)
    blocks = [body for language, body in FENCED.findall(text) if language == "cpp"]
    blocks += [body for body in INDENTED.findall(FENCED.sub("", text)) if page_python.CPP.search(body)]
    for body in blocks:
        body = re.sub(r"//.*", "", body)
        yield from re.findall(r"(?<!std)::(\w+)", body)
        yield from re.findall(r"(?<![:\w])(\w+)\(", body)


class Cpp(unittest.TestCase):
    def test_every_name_is_there(self):
        seen = set()
        for page in PAGES:
            names = set(cpp_names(page.read_text(encoding="utf-8"))) - {""}
            missing = sorted(name for name in names - words_of_headers() if not name.isdigit())
            self.assertEqual(missing, [], page)
            seen |= names
        self.assertGreater(len(seen), 100)


if __name__ == "__main__":
    unittest.main(verbosity=2)
