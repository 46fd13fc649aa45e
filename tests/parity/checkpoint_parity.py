"""Checkpoints between Python and C++ on the same LibTorch. Each side reads what the other wrote; a training
run that changes sides half way ends bit for bit where an unbroken one ends.

usage: checkpoint_parity.py PROGRAM      (PROGRAM is the built checkpoint_parity)
"""

import collections
import os
import subprocess
import tempfile
import unittest
import warnings

import ranks

PROGRAM = None  # set by ranks.main
STEPS = 5  # in each half; the schedule's parts change at step 4

# name: what to make in Python. The C++ side has the same names.
OPTIMIZERS = {
    "sgd": lambda optim, p: optim.SGD(p, lr=0.05),
    "sgd_momentum": lambda optim, p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": lambda optim, p: optim.Adam(p, lr=0.01),
    "adam_amsgrad": lambda optim, p: optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda optim, p: optim.AdamW(p, lr=0.01),
    "rmsprop": lambda optim, p: optim.RMSprop(p, lr=0.001, momentum=0.9),
    "adagrad": lambda optim, p: optim.Adagrad(p, lr=0.01, lr_decay=0.1),
}


# Optimizers of LibTorch's that round differently from Python's: only their layout is compared.
LAYOUT_ONLY = {
    "libtorch_adam": lambda optim, p: optim.Adam(p, lr=0.01),
    "libtorch_adamw": lambda optim, p: optim.AdamW(p, lr=0.01),
    "rmsprop_centered": lambda optim, p: optim.RMSprop(p, lr=0.001, momentum=0.9, centered=True),
}


def run(*commands):
    """The program's output; raises where it failed."""
    words = [word for command in commands for word in ("+", *map(str, command))][1:]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{words} exited with {done.returncode}: {done.stderr}")
    return done.stdout


def train(name, source, target, steps):
    """The twin of train() in checkpoint_parity.cpp."""
    import torch
    from model_parity import ConvNet
    from torch.optim import lr_scheduler

    torch.manual_seed(1)
    net = ConvNet()
    optimizer = {**OPTIMIZERS, **LAYOUT_ONLY}[name](torch.optim, net.parameters())
    scheduler = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4),
                    lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)], [4])
    step = 0
    if source != "-":
        checkpoint = torch.load(source, weights_only=True)
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        torch.set_rng_state(checkpoint["rng_state"])
        step = checkpoint["step"]
    for _ in range(steps):
        inputs = torch.randn(8, 784)
        targets = torch.randint(0, 10, (8,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(), "rng_state": torch.get_rng_state(), "step": step + steps}, target)


def differences(ours, theirs, path=""):
    """Where two values differ: kinds, keys in their order, bits of tensors."""
    import torch
    if isinstance(ours, torch.Tensor) or isinstance(theirs, torch.Tensor):
        if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
            return [f"{path}: {ours!r} and {theirs!r}"]
        same = (ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
                and ours.requires_grad == theirs.requires_grad
                and ours.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
                .equal(theirs.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)))
        return [] if same else [f"{path}: tensors differ: {ours.dtype} {tuple(ours.shape)}, "
                                f"{theirs.dtype} {tuple(theirs.shape)}"]
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return [f"{path}: keys {list(ours)} and {list(theirs)}"]
        return [d for key in ours for d in differences(ours[key], theirs[key], f"{path}.{key}")]
    if isinstance(ours, (list, tuple)) and type(ours) is type(theirs) and len(ours) == len(theirs):
        return [d for i, (a, b) in enumerate(zip(ours, theirs)) for d in differences(a, b, f"{path}.{i}")]
    if {type(ours), type(theirs)} == {int, float}:  # Python's default weight_decay is the int 0
        return [] if ours == theirs else [f"{path}: {ours!r} and {theirs!r}"]
    return [] if type(ours) is type(theirs) and ours == theirs else [f"{path}: {ours!r} and {theirs!r}"]


class CheckpointParity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import torch
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        cls.folder = tempfile.TemporaryDirectory(prefix="lockstep-parity-")
        cls.addClassCleanup(cls.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def load(self, name):
        import torch
        return torch.load(self.path(name), weights_only=True)

    def assert_equal(self, ours, theirs):
        found = differences(self.load(ours), self.load(theirs))
        self.assertEqual(found, [], "\n" + "\n".join(found[:20]))

    def test_a_run_may_change_sides_half_way(self):
        path = self.path
        for name in OPTIMIZERS:
            train(name, "-", path("python_half"), STEPS)
            train(name, path("python_half"), path("python_whole"), STEPS)
            run(("train", name, "-", path("cpp_half"), STEPS),
                ("train", name, path("cpp_half"), path("cpp_whole"), STEPS),
                ("train", name, "-", path("cpp_unbroken"), 2 * STEPS),
                ("train", name, path("python_half"), path("python_then_cpp"), STEPS))
            train(name, path("cpp_half"), path("cpp_then_python"), STEPS)
            with self.subTest(optimizer=name):
                self.assert_equal("cpp_half", "python_half")
                for whole in ("cpp_whole", "cpp_unbroken", "python_then_cpp", "cpp_then_python"):
                    with self.subTest(run=whole):
                        self.assert_equal(whole, "python_whole")

    def test_the_others_speak_pythons_layout(self):
        for name in LAYOUT_ONLY:
            train(name, "-", self.path("python"), 2)
            run(("train", name, self.path("python"), self.path("cpp"), 1))
            train(name, self.path("cpp"), self.path("back"), 1)
            ours, theirs = self.load("cpp")["optimizer"], self.load("back")["optimizer"]
            with self.subTest(optimizer=name):
                self.assertEqual(list(ours["param_groups"][0]), list(theirs["param_groups"][0]))
                self.assertEqual(set(ours["state"][0]), set(theirs["state"][0]))
                self.assertEqual((ours["state"][0]["step"], theirs["state"][0]["step"]), (3, 4))

    def test_values_come_back(self):
        import torch
        base = torch.arange(24.0).reshape(4, 6)
        big = torch.randn(300, 400)
        value = {
            "none": None, "bools": [True, False], "ints": [0, 255, 256, 65535, 65536, -1, 2**31, -2**31, 2**40,
                                                           2**63 - 1, -2**63],
            "floats": [0.1, -0.0, float("inf"), 5e-324], "text": "caf\u00e9 \u20ac \U0001f600", "empty": ["", [], (), {}],
            "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), 3: {-1: "negative key"}, "size": tuple(base.shape),
            "types": [torch.arange(6).to(t) for t in (
                torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32,
                torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)],
            "layouts": [base.t(), base[1:3], base[:, ::2], base[2], base[3, 4], torch.tensor(3.5), torch.empty(0),
                        torch.empty(3, 0, 2), base[4:], torch.ones(1).expand(5, 5), base[4:, 6:],
                        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)],
            "parameter": torch.nn.Parameter(torch.rand(2)), "frozen": torch.nn.Parameter(torch.rand(2), requires_grad=False),
            "many": [f"name {i % 700}" for i in range(2000)], "numbers": list(range(3000)),
            "views": {"whole": big, "row": big[7], "again": big},
        }
        value["many strings"] = {f"key {i}": i for i in range(2000)}
        torch.save(value, self.path("values"))
        run(("rewrite", self.path("values"), self.path("ours")), ("rewrite", self.path("ours"), self.path("twice")))
        self.assertEqual(differences(self.load("ours"), value), [])
        with open(self.path("ours"), "rb") as first, open(self.path("twice"), "rb") as second:
            self.assertEqual(first.read(), second.read(), "equal values, equal files")
        loaded = self.load("ours")["views"]
        loaded["row"].fill_(1e6)
        self.assertEqual(loaded["whole"][7].sum(), 400e6)
        self.assertLess(os.path.getsize(self.path("ours")), 1.02 * os.path.getsize(self.path("values")))

    def test_what_torch_save_may_hold_beside_dicts(self):
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        multi = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5, 5])  # holds a Counter
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        cases = {
            "model alone": net.state_dict(),  # an OrderedDict with _metadata
            "counter": {"multi": multi.state_dict(), "plateau": plateau.state_dict()},
            "size": {"size": base.shape if (base := torch.ones(2, 3)) is not None else None},
            "ordered": collections.OrderedDict(a=1, b=collections.OrderedDict()),
        }
        for name, value in cases.items():
            with self.subTest(name):
                torch.save(value, self.path("python"))
                run(("rewrite", self.path("python"), self.path("ours")))
                ours = self.load("ours")
                plain = {"size": {"size": (2, 3)}}.get(name, value)
                self.assertEqual(differences(ours, plain), [])
        torch.save(net.state_dict(), self.path("python"))
        run(("rewrite", self.path("python"), self.path("ours")))
        for source in ("ours", "python"):
            self.assertEqual(str(net.load_state_dict(self.load(source))), "<All keys matched successfully>")
        # Held in memory, on a stream, by another name, without checksums: the same format.
        with open(self.path("stream"), "wb") as stream:
            torch.save(net.state_dict(), stream)
        run(("rewrite", self.path("stream"), self.path("ours")))
        self.assertEqual(differences(self.load("ours"), dict(net.state_dict())), [])

    def test_refused_by_name(self):
        import torch

        class Custom:
            pass

        globals()["Custom"] = Custom
        Custom.__qualname__ = "Custom"

        class Harmful:
            def __reduce__(self):
                return os.system, ("echo harm > " + path("harm"),)

        path = self.path
        torch.save({"a": Custom()}, path("custom"))
        torch.save({"a": Harmful()}, path("harmful"))
        torch.save(torch.nn.Linear(1, 1), path("module"))
        torch.save(torch.eye(2).to_sparse(), path("sparse"))
        torch.save({"a": {1, 2}}, path("set"))
        torch.save({"a": b"bytes"}, path("bytes"))
        torch.save({"a": 2**64}, path("big"))
        torch.save({"a": 1}, path("legacy"), _use_new_zipfile_serialization=False)
        torch.save({"a": 1}, path("protocol"), pickle_protocol=4)
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path("script"))
        expected = {"custom": "__main__.Custom", "harmful": "posix.system", "module": "torch.nn.modules.linear.Linear",
                    "sparse": "torch._utils._rebuild_sparse_tensor", "set": "__builtin__.set", "bytes": "_codecs.encode",
                    "big": "integer of 9 bytes", "legacy": "before version 1.6", "protocol": "protocol 4",
                    "script": "TorchScript"}
        said = run(*(("refuse", path(name)) for name in expected)).splitlines()
        for (name, text), line in zip(expected.items(), said):
            with self.subTest(name):
                self.assertIn(path(name), line)
                self.assertIn(text, line)
        self.assertEqual(len(said), len(expected))
        self.assertFalse(os.path.exists(path("harm")))


if __name__ == "__main__":
    ranks.main()
