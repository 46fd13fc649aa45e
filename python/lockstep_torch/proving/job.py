"""The runs of a job that is proved: each in a copy of the working folder, with a plan that its processes read."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from lockstep_torch import processes
from lockstep_torch.proving.rank import read_all

COUNT = re.compile(r"--(nproc[-_]per[-_]node|num[-_]processes)(=(.*))?$")
BATCH = re.compile(r"(?i)(micro_?|train(ing)?_?|local_?|per_(gpu|device|rank)_?(train_?)?)?batch(_?size)?$|bs$")
MOST_BYTES = 2 << 30  # of a working folder
ABOUT = 12  # runs of a proof
MOST_SOURCE = 1 << 20  # of a file in which batch sizes are looked for


class Wrong(Exception):
    """What the user asked for cannot be done; its text says why, and what to do."""


class Run(NamedTuple):
    folder: pathlib.Path  # the ranks' files
    ranks: list[dict[str, Any]]  # by rank; those that left a file
    error: str  # why it is of no use; empty: it is
    uneven: bool  # since its ranks do not make as many updates
    seconds: float


def place_of_torchrun(command: list[str]) -> int | None:
    """Where its options begin. Of a command that begins with something else it is not known what that changes."""
    if os.path.basename(command[0]) == "torchrun":
        return 1
    module = [place for place, word in enumerate(command) if word == "torch.distributed.run"][:1]
    if module and is_python(command[0]) and command[module[0] - 1] == "-m" and all(
            word.startswith("-") for word in command[1:module[0]]):
        return module[0] + 1
    return None


def is_python(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*", os.path.basename(word)) is not None


class Program(NamedTuple):
    """What torchrun starts. `python`: of the ranks, or of torchrun, where they are no Python."""

    python: str
    name: str
    kind: str  # "file", "module" or "executable"
    arguments: list[str]


def of_torchrun(command: list[str]) -> Program | None:
    place = place_of_torchrun(command)
    if place is None:
        return None
    from torch.distributed.run import get_args_parser
    try:
        given = get_args_parser().parse_args(command[place:])
    except SystemExit:
        raise Wrong("torchrun does not take these options") from None
    if given.nnodes not in ("1", "1:1"):
        raise Wrong("a job of several nodes is proved on one: leave --nnodes out")
    starts = command[place - 1]
    python = command[0]
    if os.path.basename(starts) == "torchrun":
        found = shutil.which(starts)
        if found is None:
            raise Wrong(f"cannot start {starts}: there is no such program")
        with open(found, "rb") as script:
            words = script.readline().decode(errors="replace").strip().removeprefix("#!").split()
        words = words[1:] if words and os.path.basename(words[0]) == "env" else words
        if len(words) != 1 or not is_python(words[0]):
            return None
        python = words[0]
    if given.no_python and shutil.which(given.training_script) is None:
        raise Wrong(f"cannot start {given.training_script}: there is no such program")
    kind = "executable" if given.no_python else "module" if given.module else "file"
    return Program(python, given.training_script, kind, given.training_script_args)


def of_ranks(command: list[str], number: int) -> list[str]:
    """The command of another launcher, with another number of ranks."""
    for place, word in enumerate(command):
        if (found := COUNT.match(word)) and found[2]:
            return [*command[:place], f"--{found[1]}={number}", *command[place + 1:]]
        if found and place + 1 < len(command):
            return [*command[:place + 1], str(number), *command[place + 2:]]
    return command


def size_of(folder: pathlib.Path) -> int:
    total = 0
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_left(pathlib.Path(here) / name)]
        for name in files:
            total += os.lstat(os.path.join(here, name)).st_size
            if total > MOST_BYTES:
                return total
    return total


def is_left(folder: pathlib.Path) -> bool:
    """A repository's own folder, an environment of Python and a build folder are shared by all copies, which do not
    write there."""
    return folder.name == ".git" or folder.is_symlink() or any(
        (folder / name).exists() for name in ("pyvenv.cfg", "CMakeCache.txt"))


def copy(source: pathlib.Path, target: pathlib.Path, whole: tuple[pathlib.Path, pathlib.Path]) -> None:
    """`whole`: the folder that is copied, and its copy. A link to a place in the folder leads into the copy."""
    target.mkdir(parents=True)
    for entry in os.scandir(source):
        there, real = target / entry.name, pathlib.Path(os.path.realpath(entry.path))
        if whole[1].resolve().is_relative_to(real):
            continue  # the copies themselves
        if entry.is_symlink() and real.is_relative_to(whole[0].resolve()):
            there.symlink_to(whole[1] / real.relative_to(whole[0].resolve()))
        elif entry.is_symlink() or (entry.is_dir() and is_left(pathlib.Path(entry.path))):
            there.symlink_to(real)
        elif entry.is_dir():
            copy(pathlib.Path(entry.path), there, whole)
        elif entry.is_file():
            shutil.copy2(entry.path, there)


def environment_of(package: pathlib.Path, device: str) -> dict[str, str]:
    """Of a job."""
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if name not in ("LOCKSTEP_TRACE", "LOCKSTEP_PROVE")}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **hidden}


class Server:
    """server.py's process."""

    def __init__(self, python: str, package: pathlib.Path, device: str) -> None:
        try:
            program = pathlib.Path(__file__).with_name("server.py")
            self.process = subprocess.Popen([python, str(program), str(package)], env=environment_of(package, device),
                                            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise Wrong(f"cannot start {python}: {error.strerror}") from None

    def start(self, run: dict[str, Any]) -> int | None:
        """The exit code of the rank that failed first, else 0; None where the job did not end in time."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(run) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise Wrong("the process that starts the ranks has ended; what it said stands above")
        code: int | None = json.loads(answer)["code"]
        return code

    def leave(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:  # it is at a run, and ends its ranks
            self.process.terminate()
            self.process.wait()


PACKAGE = pathlib.Path(__file__).parents[1]


def found_by_torch(folder: pathlib.Path) -> pathlib.Path:
    """A folder for PYTHONPATH, in which torch finds autoload.py as where this package is installed."""
    told = folder / "lockstep_torch-0.1.0.dist-info"
    if not told.exists():
        told.mkdir(parents=True)
        (folder / PACKAGE.name).symlink_to(PACKAGE)
        (told / "METADATA").write_text("Metadata-Version: 2.1\nName: lockstep-torch\nVersion: 0.1.0\n")
        (told / "entry_points.txt").write_text("[torch.backends]\nlockstep_torch = lockstep_torch.autoload:load\n")
    return folder


class Job:
    """Of a command in a working folder. Each run is a new copy, but for one that goes on in another's. `device`: "cpu",
    with Gloo, or "cuda", with what the program asks for."""

    def __init__(self, command: list[str], source: pathlib.Path, most_steps: int, world_size: int, limit: float,
                 device: str = "cpu") -> None:
        self.command, self.source = command, source
        self.most_steps, self.world_size, self.limit = most_steps, world_size, limit
        self.runs = 0
        self.device, self.wide, self.stands_in = device, True, False  # stands_in: the CPU, where CUDA is asked for
        self.said: Any = lambda _text, _part=None: None
        self.program = of_torchrun(command)
        self.counts = self.program is not None or any(COUNT.match(word) for word in command)
        if size_of(source) > MOST_BYTES:
            raise Wrong(f"{source} holds more than {MOST_BYTES >> 30} GiB, and each run is made in a copy of it; call "
                        "this in a folder with the program and the data that it needs")
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-prove-"))
        self.package = found_by_torch(self.root / "path")
        try:
            self.server = Server(self.program.python, self.package, device) if self.program is not None else None
        except Wrong:
            shutil.rmtree(self.root)
            raise

    def here(self, word: str, copied: pathlib.Path) -> str:
        """A path in the working folder, as it is in the copy."""
        head, between, path = word.rpartition("=")
        named = pathlib.Path(os.environ.get("PWD", ""))  # as the shell names it, where links lead to it
        for source in (self.source, named):
            is_here = source.is_absolute() and source.resolve() == self.source.resolve()
            if is_here and os.path.isabs(path) and pathlib.Path(path).is_relative_to(source):
                return head + between + str(copied / pathlib.Path(path).relative_to(source))
        return word

    def words(self) -> list[str]:
        """In which batch sizes are looked for. Of a program that is started here, its file and its arguments."""
        return [self.program.name, *self.program.arguments] if self.program is not None else self.command

    def changes(self, sizes: Sizes) -> list[str]:
        """What `scaled` would change."""
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder) / "work"
            work.mkdir()
            for file in itertools.islice(self.source.rglob("*.py"), 1000):
                within = [parent for parent in file.parents if parent.is_relative_to(self.source)][:-1]
                if file.is_file() and self.root not in within and not any(map(is_left, (file, *within))):
                    (work / file.relative_to(self.source)).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(file, work / file.relative_to(self.source))
            return scaled([self.here(word, work) for word in self.words()], work, self.world_size, sizes)[1]

    def run(self, what: str, number: int | None = None, again: pathlib.Path | None = None,
            batch: Sizes | None = None, keeps_work: bool = False, limit: float = 0, **plan: Any) -> Run:
        """`number`: of ranks, where it is another than the job's. `again`: the folder of the run that this one goes
        on from. `batch`: names whose values are the batch sizes, to be multiplied by the world size."""
        self.runs += 1
        self.said(f"{self.runs}: {what}", (self.runs - 1) / ABOUT)
        folder = self.root / f"{self.runs}"
        work = (again or folder) / "work"
        folder.mkdir()
        if again is None:
            try:
                copy(self.source, work, (self.source, work))
            except (OSError, shutil.Error) as error:
                raise Wrong(f"{self.source} cannot be copied to {self.root}: {error}") from None
        words = [self.here(word, work) for word in self.words()]
        if batch is not None:
            words, _changes = scaled(words, work, self.world_size, batch)
        whole = {"folder": str(folder), "steps": self.most_steps, "ranks": self.world_size, "device": self.device,
                 "stands_in": self.stands_in, "wide": self.wide, "still": None, "tilt": None, "force": None,
                 "batches": None, "swaps": False, "saves": False, "keeps": False} | plan
        file = folder / "plan.json"
        file.write_text(json.dumps(whole))
        began = time.monotonic()
        number = number or self.world_size
        if self.server is not None and self.program is not None:
            code = self.server.start({
                "folder": str(folder), "work": str(work), "plan": str(file), "ranks": number,
                "limit": limit or self.limit,
                "source": str(self.source), "program": words[0], "kind": self.program.kind,
                "arguments": words[1:]})
        else:
            code = self.started(of_ranks(words, number), work, folder, limit or self.limit)
        output = (folder / "output").read_text(errors="replace")[-4000:] if (folder / "output").exists() else ""
        found = read_all(folder)
        if not keeps_work:
            shutil.rmtree(work, ignore_errors=True)
        uneven = uneven_text(found, code)
        return Run(folder, found, uneven or why_of_no_use(code, output, found), bool(uneven),
                   time.monotonic() - began)

    def started(self, command: list[str], work: pathlib.Path, folder: pathlib.Path, limit: float) -> int | None:
        """Its exit code; None where it did not end in time."""
        variables = environment_of(self.package, self.device) | {
            "LOCKSTEP_PROVE": str(folder / "plan.json"), "PWD": str(work)}
        before = set(processes.descendants(os.getpid()))
        with (folder / "output").open("wb") as output:
            try:
                job = subprocess.Popen(command, cwd=work, env=variables, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT)
            except OSError as error:
                raise Wrong(f"cannot start {command[0]}: {error.strerror}") from None
            try:
                return job.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                processes.end(job, time.monotonic() + 1, before)

    def leave(self) -> None:
        if self.server is not None:
            self.server.leave()
        shutil.rmtree(self.root, ignore_errors=True)


def uneven_text(ranks: list[dict[str, Any]], code: int | None) -> str:
    """A rank that has done enough ends, and then one that waits for it fails, or waits on."""
    enough = next((one for one in ranks if one["enough"]), None)
    other = next((one for one in ranks if one["error"]), None)
    if enough is not None and other is None and code is None and len(ranks) < enough["world_size"]:
        return (f"the ranks do not make as many updates: rank {enough['rank']} had made {len(enough['updates'])}, and "
                "another one went on waiting")
    if enough is None or other is None:
        return ""
    return (f"the ranks do not make as many updates: rank {enough['rank']} had made {len(enough['updates'])} when rank "
            f"{other['rank']} had made {len(other['updates'])}")


def why_of_no_use(code: int | None, output: str, ranks: list[dict[str, Any]]) -> str:
    if errors := [f"rank {one['rank']}: {one['error']}" for one in ranks if one["error"]]:
        return errors[0]
    last = [line for line in output.strip().splitlines() if line.strip()][-1:]
    said = f"; it said last: {last[0].strip()[:200]}" if last else ""
    if not ranks:
        return ("it did not end in time" if code is None else f"it exited with {code}") + (
            f", and no optimizer made a step{said}")
    if code and not all(one["enough"] for one in ranks):
        return f"it exited with {code}{said}"
    if code is None and len(ranks) < ranks[0]["world_size"]:
        return "it did not end in time"
    if len(ranks) < ranks[0]["world_size"]:
        missing = sorted(set(range(ranks[0]["world_size"])) - {one["rank"] for one in ranks})
        return f"rank {missing[0]} made no step"
    return ""


# ---- the batch size ----

def is_size(name: str, names: tuple[str, ...]) -> bool:
    name = name.lstrip("-").replace("-", "_")
    return name in names if names else bool(BATCH.match(name))


Number = tuple[str, ast.Constant, int]  # its name, where it stands, its value


def sizes_in(tree: ast.AST, names: tuple[str, ...]) -> Iterator[Number]:
    """Whole numbers that stand for a batch size: those of a variable, a field, a key, a parameter or an option of such
    a name."""
    for node in ast.walk(tree):
        pairs: list[tuple[str | None, ast.AST | None]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += [(getattr(one, "id", None), value)
                              for one, value in zip(target.elts, node.value.elts, strict=False)]
                else:
                    pairs.append((getattr(target, "id", getattr(target, "attr", None)), node.value))
        elif isinstance(node, ast.AnnAssign):
            pairs.append((getattr(node.target, "id", None), node.value))
        elif isinstance(node, ast.Dict):
            pairs += [(getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.Call):
            pairs += [(each.arg, each.value) for each in node.keywords]
            option = next((one.value for one in node.args if isinstance(one, ast.Constant)
                           and isinstance(one.value, str) and is_size(one.value, names)), None)
            pairs += [(option, each.value) for each in node.keywords if each.arg == "default"]
        elif isinstance(node, ast.arguments):
            given = [*node.posonlyargs, *node.args]
            pairs += [(one.arg, value) for one, value in zip(given[len(given) - len(node.defaults):], node.defaults,
                                                             strict=True)]
            pairs += [(one.arg, value) for one, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        for name, value in pairs:
            if (isinstance(name, str) and is_size(name, names) and isinstance(value, ast.Constant)
                    and type(value.value) is int):
                yield name, value, value.value


class Literal(NamedTuple):
    """A number in the program, which has no name."""

    value: int
    place: int  # among those of its value, from the last: the loop mostly stands behind the model


Sizes = tuple[str, ...] | Literal  # no names: those that BATCH matches


def scaled(command: list[str], work: pathlib.Path, factor: int, names: Sizes) -> tuple[list[str], list[str]]:
    """The command with batch sizes times `factor`, in its options and in the sources of the copy; and what was
    changed."""
    changed = []
    command = list(command)
    if isinstance(names, Literal):
        file = work / command[0]
        return command, list(scaled_in(file, work, factor, names)) if file.suffix == ".py" and file.exists() else []
    for place, word in enumerate(command):
        option, is_given, value = word.partition("=")
        if not word.startswith("-") or not is_size(option, names):
            continue
        if is_given and value.isdigit():
            command[place] = f"{option}={int(value) * factor}"
        elif not is_given and place + 1 < len(command) and command[place + 1].isdigit():
            value, command[place + 1] = command[place + 1], str(int(command[place + 1]) * factor)
        else:
            continue
        changed.append(f"{option} {value} -> {int(value) * factor}")
    for file in sorted(work.rglob("*.py")):
        if file.is_symlink() or file.stat().st_size > MOST_SOURCE:
            continue
        changed += scaled_in(file, work, factor, names)
    return command, changed


def literals_in(tree: ast.AST, value: int) -> list[Number]:
    found = [node for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and type(node.value) is int and node.value == value]
    return [("", node, value) for node in sorted(found, key=lambda node: (-node.lineno, -node.col_offset))]


def scaled_in(file: pathlib.Path, work: pathlib.Path, factor: int, names: Sizes) -> Iterator[str]:
    if not file.resolve().is_relative_to(work.resolve()):
        return  # a link that leads out of the copy
    try:
        source = file.read_bytes()
        tree = ast.parse(source)
        of_names = (literals_in(tree, names.value)[names.place:names.place + 1] if isinstance(names, Literal)
                    else sizes_in(tree, names))
        found = sorted({(node.lineno, node.col_offset, node.end_col_offset, name, value)
                        for name, node, value in of_names}, reverse=True)
    except (SyntaxError, ValueError, OSError):
        return
    lines = source.splitlines(keepends=True)
    for line, begin, end, _name, value in found:
        text = lines[line - 1]
        lines[line - 1] = text[:begin] + str(value * factor).encode() + text[end:]
    if found:
        file.write_bytes(b"".join(lines))
    for line, _begin, _end, name, value in reversed(found):
        yield f"{file.relative_to(work)}:{line}: {name}{' ' * bool(name)}{value} -> {value * factor}"
