"""What a watched process must not notice: memory, threads, files, exceptions and warnings are as without watching.

usage: python3 leaves_alone_test.py PACKAGE [--all]      the folder that holds lockstep_torch, for PYTHONPATH
"""

import contextlib
import gc
import io
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import threading
import unittest
import warnings
import weakref

import package

sys.path.insert(0, str(package.FOLDER))

import torch
import torch.distributed as dist

import lockstep_torch
from lockstep_torch import recording


def train(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model


class LeavesAlone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        cls.addClassCleanup(folder.cleanup)
        lockstep_torch.watch(pathlib.Path(folder.name, "traces"))
        store = dist.FileStore(os.path.join(folder.name, "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)
        cls.model = train(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))

    def test_models_that_the_program_lets_go_are_freed(self):
        """But for the last that was recorded."""
        made = []
        for _ in range(6):
            teacher, model = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
            with torch.no_grad():
                teacher(torch.ones(1, 4))
            made += [weakref.ref(teacher.weight), weakref.ref(train(model).weight)]
        del teacher, model
        gc.collect()
        self.assertLessEqual(sum(each() is not None for each in made), 1)

    def test_trained_tensors_are_pickled_without_a_word(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pickle.dumps(self.model[0].weight)

    def test_an_exception_of_the_program_s_signal_handler_reaches_it(self):
        class Preempted(Exception):
            pass

        def leave(_number, _frame):
            raise Preempted
        before = signal.signal(signal.SIGUSR1, leave)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        hook = recording.listens("a signal")(lambda _here: signal.raise_signal(signal.SIGUSR1))
        self.assertRaises(Preempted, hook)
        other = recording.listens("a fault")(lambda _here: 1 / 0)
        with contextlib.redirect_stderr(io.StringIO()):
            other()

    def test_the_threads_of_a_destroyed_group_end(self):
        def threads():
            return len(os.listdir("/proc/self/task"))
        before = threads()
        for _ in range(4):
            group = dist.new_group([0], backend="gloo")
            dist.all_reduce(torch.ones(1), group=group)
            dist.destroy_process_group(group)
            del group
        self.assertEqual(threads(), before)
        dist.all_reduce(torch.ones(1))


class Programs(unittest.TestCase):
    """What a program prints, and its exit code, are as without watching."""

    BEGIN = """if True:
        import collections, copy, hashlib, io, pickle, re, resource, sys, warnings
        import torch
        import torch.nn as nn
        torch.manual_seed(0)
        torch.set_num_threads(1)
        def mlp():
            return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
        model, teacher, x = mlp(), mlp().requires_grad_(False).eval(), torch.randn(8, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def step(model=model, optimizer=optimizer, x=x, target=0):
            optimizer.zero_grad()
            loss = (model(x) - target).pow(2).mean()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), flush=True)
        """

    def recorded(self, script, *arguments):
        """What it says on standard error when it is watched."""
        command = [sys.executable, "-c", self.BEGIN + script, *arguments]
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            plain, watched = package.run(command, 120, folder), package.run(command, 120, folder, LOCKSTEP_TRACE=folder)
            self.assertTrue(list(pathlib.Path(folder).rglob("rank_*.trace")), watched.stderr)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertEqual((watched.returncode, watched.stdout), (plain.returncode, plain.stdout), watched.stderr)
        return watched.stderr

    @package.full_tier
    def test_a_module_is_traced_exported_and_compiled(self):
        said = self.recorded("""
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.utils.flop_counter import FlopCounterMode
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        def faked(module):
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                print(module(mode.from_tensor(x)).shape)
            return module
        def counted(module):
            with FlopCounterMode(display=False) as counter, torch.enable_grad():
                step(target=module(x))
            print(counter.get_total_flops())
            return module
        ways = {"trace": lambda module: torch.jit.trace(module, x),
                "trace_module": lambda module: torch.jit.trace_module(module, {"forward": x}),
                "script": torch.jit.script,
                "strict": lambda module: torch.export.export(module, (x,), strict=True).module(),
                "export": lambda module: torch.export.export(module, (x,), strict=False).module(),
                "fx": torch.fx.symbolic_trace,
                "make_fx": lambda module: make_fx(module, tracing_mode="fake", _allow_non_fake_inputs=True)(x),
                "fake": faked, "flops": counted, "vmap": torch.func.vmap, "deepcopy": copy.deepcopy,
                "call": lambda module: lambda x: torch.func.functional_call(module, dict(module.named_parameters()), x),
                "compile": lambda module: torch.compile(module, backend="eager", fullgraph=True),
                "break": lambda module: torch.compile(lambda x: module(x), backend="eager", fullgraph=True)}
        for number, (way, make) in enumerate(ways.items()):
            for module in (teacher, model.eval()):
                with torch.no_grad():
                    made = make(module)
                    print(way, hashlib.sha1(made(x).numpy().tobytes()).hexdigest())
                graph = getattr(made, "graph", None)
                print(graph if way != "flops" else "", module._forward_pre_hooks, module._forward_hooks)
            model.train()
            step(target=teacher(x) if number % 2 else 0)
        """)
        self.assertNotIn("lockstep:", said)

    @package.full_tier
    def test_trained_tensors_are_swapped(self):
        said = self.recorded("""
        from torch.testing._internal.two_tensor import TwoTensor
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.ones(16, 10)))  # before the first step
        for _ in range(2):
            step()
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.ones(16, 10)))
        step()  # with the same optimizer
        torch.__future__.set_swap_module_params_on_conversion(True)
        model.zero_grad()
        model.double()
        for _ in range(2):
            step(optimizer=torch.optim.SGD(model.parameters(), lr=0.1), x=x.double())
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, assign=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            step(optimizer=optimizer, x=x.double())
        optimizer.zero_grad()
        for each in model.parameters():
            torch.utils.swap_tensors(each, nn.Parameter(TwoTensor(each.detach().clone(), each.detach().clone())))
        print(type(model[0].weight), model(x.double()).a.sum().item().hex())
        """)
        self.assertNotIn("lockstep:", said)

    @package.full_tier
    def test_what_is_pickled_copied_fused_and_numbered_has_nothing_of_the_recorder_s(self):
        said = self.recorded("""
        def own(*given):
            pass
        def shown(dump):  # without addresses
            return hashlib.sha1(re.sub(rb"[0-9]{12,}", b"", dump)).hexdigest()
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm, self.relu = nn.Conv1d(10, 4, 1), nn.BatchNorm1d(4), nn.ReLU()
            def forward(self, x):
                return self.relu(self.norm(self.conv(x.unsqueeze(-1)))).flatten(1)
        net, kept = Net(), nn.Sequential(nn.TransformerEncoderLayer(10, 2, 4), nn.Linear(10, 3))
        optimizer = torch.optim.Adam(net.parameters())
        for number in range(4):
            step(net, optimizer, target=teacher(x).sum())
            net.conv.weight.register_hook(own)
            for module in (net, kept, teacher):
                module.register_forward_hook(own)
                print(list(module._forward_hooks), shown(pickle.dumps(module)))
                copied = copy.deepcopy(module)
                print([len(part._forward_pre_hooks) for part in copied.modules()])
                print([each._backward_hooks for each in copied.parameters()])
            file = io.BytesIO()
            torch.save({"model": kept}, file)
            print(shown(file.getvalue()))
            with torch.no_grad():
                fused = torch.ao.quantization.fuse_modules(copy.deepcopy(net).eval(), [["conv", "norm", "relu"]])
                print([dict(part._forward_pre_hooks) for part in fused.modules()])
        """)
        self.assertNotIn("lockstep:", said)

    def test_odd_tensors_and_modules_are_left_out_alone(self):
        said = self.recorded("""
        odd = {"meta": torch.empty(3, device="meta"), "bits": torch.empty(4, dtype=torch.bits8),
               "fp4": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
               "fp8": torch.zeros(4, dtype=torch.float8_e4m3fn), "scale": torch.ones(4).to(torch.float8_e8m0fnu),
               "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
               "nested": torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)]),
               "sparse": torch.eye(3).to_sparse(), "rows": torch.eye(3).to_sparse_csr(),
               "wide": torch.sparse_coo_tensor([[0], [1]], [1.0], (10 ** 6, 10 ** 6)),
               "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
               "complex": torch.ones(3, dtype=torch.complex64), "empty": torch.empty(0), "scalar": torch.tensor(1.5),
               "unsigned": torch.ones(3, dtype=torch.uint16), "int4": torch.empty(3, dtype=torch.int4),
               "expanded": torch.zeros(1).expand(10 ** 10), "freed": torch.ones(10)}
        if torch.backends.mkldnn.is_available():
            odd["mkldnn"] = torch.ones(3, 3).to_mkldnn()
        odd["freed"].untyped_storage().resize_(0)
        beside = nn.Linear(2, 2)
        for name, tensor in odd.items():
            model.register_buffer(name, tensor, persistent=False)
            beside.register_buffer(name, tensor, persistent=False)
        lazy, scripted, spare = nn.LazyLinear(3), torch.jit.script(mlp()), nn.Linear(3, 3, device="meta")
        frozen = nn.Linear(10, 2).requires_grad_(False)
        frozen.weight.data = frozen.weight.data.to(torch.float8_e4m3fn)
        for number in range(6):
            step(target=scripted(x).detach())
            print(torch.func.vmap(model)(x).sum().item().hex())
            beside(torch.ones(2))
            with torch.no_grad():
                for tensor in odd.values():
                    try:
                        nn.Identity()(tensor), model(tensor)
                    except (NotImplementedError, RuntimeError, TypeError, ValueError):
                        pass
            grads = torch.func.grad(lambda x: model(x).sum())(x)
            print(grads.sum().item().hex())
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20, "KiB"
        """)
        self.assertNotIn("lockstep:", said)

    @package.full_tier
    def test_a_warning_is_of_the_line_that_it_is_of_without_watching(self):
        said = self.recorded("""
        def show(message, category, filename, line, *_more):
            if filename in ("<string>", "lockstep_torch"):
                print(category.__name__, filename, line)
        warnings.showwarning = show
        warnings.simplefilter("always")
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for number in range(3):
            step()
            schedule.step(number)
        schedule.get_lr()
        nn.utils.clip_grad_value_((each for each in model.parameters()), 1.0)
        try:
            schedule.step("one", 2, 3)
        except TypeError as error:
            print(error)
        """)
        self.assertNotIn("lockstep:", said)

    @package.full_tier
    def test_objects_are_known_by_themselves_and_not_by_what_the_program_calls_equal(self):
        said = self.recorded("""
        class Equal:
            def __eq__(self, other):
                raise AssertionError
        class Net(Equal, nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(10, 2)
            def forward(self, x):
                return self.inner(x)
        class Sgd(Equal, torch.optim.SGD):
            pass
        class Schedule(Equal, torch.optim.lr_scheduler.StepLR):
            pass
        class Data(Equal, torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return x[index]
        net, kept = Net(), Net()
        optimizer = Sgd(net.inner.parameters(), lr=0.1)
        schedule = Schedule(optimizer, 1)
        for batch in torch.utils.data.DataLoader(Data(), 2):
            step(net, optimizer, batch)
            schedule.step()
        """)
        self.assertNotIn("lockstep:", said)

    @package.full_tier
    def test_a_hook_that_goes_wrong_has_nowhere_to_say_so(self):
        for kind in ("closed", "broken", "raises", "none"):
            with self.subTest(kind):
                self.recorded("""
        import os
        class Raises:
            def write(self, text):
                raise RuntimeError("not in production")
            def flush(self):
                pass
        hooks = sys.modules.get("lockstep_torch.outside")
        if hooks:
            hooks.modules_outside = lambda: 1 / 0
        kind = sys.argv[1]
        if kind == "closed":
            sys.stderr.close()
        elif kind == "broken":
            read, write = os.pipe()
            os.close(read)
            os.dup2(write, 2)
        else:
            sys.stderr = Raises() if kind == "raises" else None
        for _ in range(4):
            step()
        print(hooks is None or "modules outside the model" in sys.modules["lockstep_torch.recording"].recording.failed)
        """, kind)


class SeveralThreads(unittest.TestCase):
    def test_that_train_without_an_engine_end_the_recording(self):
        """Their gradients come and go while others are read."""
        script = ("import threading, torch\n"
                  "torch.set_num_threads(1)\n"
                  "both = threading.Barrier(2)\n"
                  "def train():\n"
                  "    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(100)))\n"
                  "    optimizer = torch.optim.SGD(model.parameters(), 1e-3)\n"
                  "    both.wait()\n"
                  "    for _ in range(20):\n"
                  "        optimizer.zero_grad()\n"
                  "        model(torch.ones(2, 4)).sum().backward()\n"
                  "        optimizer.step()\n"
                  "    both.wait()\n"
                  "threads = [threading.Thread(target=train) for _ in range(2)]\n"
                  "[each.start() for each in threads]\n"
                  "[each.join() for each in threads]\n"
                  "print('trained')\n")
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
            done = package.run([sys.executable, "-c", script], 90, LOCKSTEP_TRACE=folder)
        self.assertEqual((done.returncode, done.stdout), (0, "trained\n"), done.stderr)
        self.assertEqual(done.stderr.count("several threads of this process train"), 1, done.stderr)

    def test_one_after_another_are_one(self):
        here = recording.Recording("unused")
        said = []
        for _ in range(2):
            thread = threading.Thread(target=lambda: said.append(recording.is_the_trainer(here, claims=True)))
            thread.start()
            thread.join()
        self.assertEqual(said, [True, True])


if __name__ == "__main__":
    unittest.main()
