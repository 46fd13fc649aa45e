"""Awkward programs (awkward/), plain and watched: what each prints, how it ends, and the state that its process is in
are the same, the recorder says nothing, and nothing is found in it.

usage: python3 awkward_test.py PACKAGE [--all] [--control] [-v] [Awkward.test_KIND_NAME ...]

--all: all of them, not only those of the quick tier. --control: both runs are plain, so that a difference is the
program's own. A program is a function of a file in awkward/, KIND, and its first line says what is awkward.
"""

import importlib
import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

from package import ALL, FOLDER, environment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "awkward"))
sys.path.insert(0, str(FOLDER))

import nothing_left
import state

import lockstep_torch

HERE = pathlib.Path(__file__).resolve().parent
CONTROL = "--control" in sys.argv and sys.argv.pop(sys.argv.index("--control"))
KINDS = sorted(file.stem for file in (HERE / "awkward").glob("*.py")
               if file.stem not in ("planted", "run", "state", "usual"))
DEADLINE_S = 120
# What is another in each run: addresses, times, process numbers.
VARIES = re.compile(r"0x[0-9a-f]{6,}|\b\d{4}-\d\d-\d\d[ T_][\d:.,]+|\b[EIVW]\d{4} [\d:.]+|\[?\bpid:? ?\d+\]?|\b\d{4,} "
                    r"(?=torch)|/tmp/\S+?/(?=plain|watched)|\b(?:plain|watched)\b|port \d+|:\d{4,5}\b|(?<=process )\d+")
SAID = re.compile(r"^lockstep: .*\n", re.MULTILINE)
FRAME = re.compile(r'^(\[rank\d+\]: )? *File "<lockstep_torch.*\n', re.MULTILINE)  # a wrapper's, in a traceback

LAST_MODEL = "the last model's parameters are kept until another one trains"
HOOKED = "the recorder has a hook on each trained parameter"
LENGTH = "the data set's length is asked for once a pass"
# {program: {what differs: why}}. What cannot be otherwise is in docs/python-recorded.md. An entry that no longer
# differs fails.
KNOWN = {
    "compilers.compiled_in_place": dict.fromkeys(("errors", "held", "signals", "threads"),
                                                 "a compiled training step takes in the recorder's wrappers"),
    "data.data_set_that_counts": {"output": LENGTH},
    "data.data_set_whose_length_changes": {"output": LENGTH},
    "descriptors.folder_is_gone": {"said": "the line of a backward has no absolute path there"},
    "exits.finalizers": {"output": LAST_MODEL},
    "gradients.graph_is_let_go_with_the_thread": {"output": LAST_MODEL},
    "modules.class_lies": {"output": "__class__ is asked for by isinstance"},
    "modules.weak_references_are_counted": {"output": "the recorder has weak references"},
    "observers.functions_looked_at": {"output": "torch.Tensor.detach_ is listened to"},
    "observers.random_is_replaced": {"said": "the recorder's modules are the program's, too"},
    "optimizers.differentiable": dict.fromkeys(("errors", "said"), "the rate has a gradient, the parameter is no leaf"),
    "optimizers.steps_inside_of_a_profile": dict.fromkeys(("errors", "output"), "the profiler sees all operators"),
    "processes.shared_tensors": {"descriptors": LAST_MODEL},
    "signals.raises_in_the_middle": {"said": "a handler that raises while the recording begins"},
    "signals.real_time_under_a_timeout": {"signals": "SIGRTMIN is taken there"},
    "signals.stacks_at_real_time_under_a_timeout": {"signals": "SIGRTMIN is taken there"},
    "tensors.hooks_of_parameters_are_the_program_s": {"output": HOOKED},
    "tensors.models_let_go": {"output": LAST_MODEL},
    "tensors.parameter_counted_by_torch_function": {"output": "the recorder calls functions of torch with it"},
    "tensors.shared_memory": {"descriptors": LAST_MODEL},
}


def programs():
    """{(kind, name): the function}"""
    return {(kind, name): each for kind in KINDS
            for name, each in vars(importlib.import_module(kind)).items()
            if inspect.isfunction(each) and each.__module__ == kind and each.__doc__ and not each.__code__.co_argcount}


class Run:
    """One run of a program: what can be compared with another's."""

    def __init__(self, kind, name, how, folder, watched):
        self.folder, self.traces = folder, folder.parent / "traces"
        folder.mkdir()
        for each in ("here", "tmp"):
            folder.joinpath(each).mkdir()
        self.mark = uuid.uuid4().hex
        self.variables = environment(**{
            nothing_left.MARK: self.mark, "TMPDIR": str(folder / "tmp"), "PYTHONWARNINGS": "always",
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "AWKWARD_PACKAGE": str(FOLDER),
            state.REPORT: str(folder / "state"), **({"LOCKSTEP_TRACE": str(self.traces)} if watched else {}),
            **how.get("variables", {})})
        ranks = how.get("ranks", 0)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(how["torchrun"]),
                    "--max-restarts", str(how.get("restarts", 0))] if "torchrun" in how else []
        command = [sys.executable, *how.get("python", ()), *launcher, HERE / "awkward/run.py", kind, name]
        self.started = [self.start(command, rank, {"RANK": str(rank), "LOCAL_RANK": str(rank),
                                                   "WORLD_SIZE": str(ranks)} if ranks else {})
                        for rank in range(max(ranks, 1))]
        self.launched = bool(launcher)

    def finish(self, by):
        """By this time.monotonic(); whoever is left then, or after its parent, is ended."""
        try:
            self.codes = [each.wait(max(by - time.monotonic(), 1)) for each in self.started]
        except subprocess.TimeoutExpired:
            self.codes = ["it did not end"]
        patience = time.monotonic() + nothing_left.PATIENCE_S
        while (left := nothing_left.marked(self.mark)) and time.monotonic() < patience:
            time.sleep(nothing_left.POLL_S)
        self.left = sorted(left.values())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for each in self.started:
            each.wait()

    def start(self, command, rank, variables):
        out, err = (open(self.folder / f"{name} {rank}", "wb") for name in ("out", "err"))
        with out, err:
            return subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    cwd=self.folder / "here", env={**self.variables, **variables})

    def text(self, name):
        """Of all ranks; where one launcher has them write to one file, their lines come in any order."""
        text = "\n".join(file.read_text(errors="backslashreplace") for file in sorted(self.folder.glob(f"{name} *")))
        return "\n".join(sorted(text.splitlines())) if self.launched else text

    def said(self):
        return SAID.findall(self.text("err"))

    def aspects(self):
        """{what can be compared: how it is in this run}"""
        found = {"exit codes": self.codes, "output": VARIES.sub("?", self.text("out")), "processes left": self.left}
        if not self.launched:  # torchrun says who failed first
            found["errors"] = VARIES.sub("?", FRAME.sub("", SAID.sub("", self.text("err"))))
        for file in sorted(self.folder.glob("state.*")):
            for what, value in json.loads(file.read_text()).items():
                found.setdefault(what, {})[file.suffixes[-2] + file.suffix] = json.loads(
                    VARIES.sub("?", json.dumps(value)))
        here, temporary = self.folder / "here", self.folder / "tmp"
        files = filter(pathlib.Path.is_file, here.rglob("*"))
        found["files"] = {str(file.relative_to(here)): file.stat().st_size for file in files}
        found["temporary files"] = sum(file.is_file() for file in temporary.rglob("*"))  # their names are made up
        return found


def differences(plain, watched, says):
    """{what differs: how it was, and how it is}. `says`: what the recorder is to say, if anything."""
    before, now = plain.aspects(), watched.aspects()
    found = {what: f"plain: {part_of(before.get(what), now.get(what))}"
                   f"\nwatched: {part_of(now.get(what), before.get(what))}"
             for what in {**before, **now} if before.get(what) != now.get(what)}
    said = watched.said()
    if bool(said) != bool(says) or not all(re.search(says, line) for line in said):
        found["said"] = "".join(said) or f"nothing of: {says}"
    return found


def part_of(value, other):
    """What another one of its kind does not have."""
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: part_of(each, other.get(key)) for key, each in value.items() if other.get(key) != each}
    if isinstance(value, str) and isinstance(other, str):
        return "\n".join(line for line in value.splitlines() if line not in other.splitlines())[:3_000] or value[-500:]
    return value


def findings(traces, how):
    """What is found in it, but for advice, or how it cannot be: {which: what it says}"""
    if not any(traces.rglob("*.trace")):
        return {} if how.get("unrecorded") else {"not recorded": "there is no trace"}
    try:
        found = lockstep_torch.diagnose(traces)["findings"]
    except RuntimeError as error:
        return {"not diagnosed": str(error)}
    return {f"finding {one['pitfall']}": str(one) for one in found
            if one["severity"] == "violation" and not re.fullmatch(how.get("finds", ""), one["pitfall"])}


def compared(kind, name, how):
    """Both runs at once."""
    with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
        runs = [Run(kind, name, how, pathlib.Path(folder, each), each == "watched" and not CONTROL)
                for each in ("plain", "watched")]
        by = time.monotonic() + DEADLINE_S
        for run in runs:
            run.finish(by)
        found = differences(*runs, None if CONTROL else how.get("says"))
        if runs[0].codes != how.get("ends", [0] * len(runs[0].codes)):
            found["the program itself"] = f"{runs[0].codes}\n{runs[0].text('err')[-2_000:]}"
        return found if CONTROL else {**found, **findings(runs[1].traces, how)}


class Awkward(unittest.TestCase):
    """Its tests are made of the programs."""


class Comparison(unittest.TestCase):
    @unittest.skipIf(CONTROL, "nothing is watched")
    def test_all_that_can_differ_is_seen(self):
        self.assertEqual(sorted(compared("planted", "everything", {})), sorted((
            "children", "descriptors", "errors", "exit codes", "files", "gc", "held", "hooks", "limits", "output",
            "processes left", "random numbers", "said", "settings", "signals", "temporary files", "threads", "umask",
            "variables")))


def test_of(kind, name, how):
    def test(self):
        found = compared(kind, name, how)
        known = {} if CONTROL else KNOWN.get(f"{kind}.{name}", {})
        self.assertEqual(sorted(found), sorted(known), "\n".join(
            f"{what}: {text}" for what, text in found.items() if what not in known))
    return test


for (_kind, _name), _program in programs().items():
    _how = getattr(_program, "how", {})
    if ALL or _how.get("quick"):
        setattr(Awkward, f"test_{_kind}_{_name}", test_of(_kind, _name, _how))

if __name__ == "__main__":
    unittest.main()
