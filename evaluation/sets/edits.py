"""Right programs, and what each becomes by an edit: FOLDER/BASE.py or BASE.cpp, and in BASE.json its edits, each with
its truth and its oracle. By authors who had not read the detectors, their pages or each other's programs."""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import re
import runpy
import socket
import subprocess
import sys
import tempfile
import time

RANKS = 2
ENDS_S = 25  # of an attempt


class EditError(Exception):
    """An edit that does not fit its program."""


@dataclasses.dataclass
class Run:
    """What an oracle sees: exits, and what the ranks left."""
    name: str
    code: int | str
    error: str
    weights: list
    reports: list


def read(folder):
    """All edits of a set by name."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return {one["name"]: one for edits in files for one in edits}


def attempts(base):
    """Programs that go on from a checkpoint stop halfway at first; others run to their end at once."""
    return 2 if base.startswith("resume") else 1


def applied(source, edit):
    """The edited program. Each replacement must fit one place, which an earlier edit may have taken away."""
    for change in edit["edits"]:
        places = source.count(change["was"])
        if places != 1:
            raise EditError(f"{edit['name']}: {places} places have {change['was']!r}, not one; mend its edits")
        source = source.replace(change["was"], change["is"])
    return source


def environment_of(rank, port):
    from start import numbered  # python/tests
    return {**numbered(rank, RANKS, 1), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def be_rank(rank, port, program, folder):
    """In a process of its own, which has torch imported already, as start.py would start it."""
    os.environ.update(environment_of(rank, port))
    output = os.open(f"{folder}/output_{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [str(program), str(folder)]
    runpy.run_path(str(program), run_name="__main__")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def in_python(program, folder):
    """The greatest exit code of the ranks, or "no end"."""
    port, context = free_port(), multiprocessing.get_context("fork")
    ranks = [context.Process(target=be_rank, args=(rank, port, program, folder)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + ENDS_S
    for rank in ranks:
        rank.join(max(0.0, deadline - time.monotonic()))
    late = [rank for rank in ranks if rank.is_alive()]
    for rank in late:
        rank.kill()
        rank.join()
    return "no end" if late else max(abs(rank.exitcode) for rank in ranks)


def in_cpp(command, folder):
    """As in_python."""
    port, ranks = free_port(), []
    for rank in range(RANKS):
        with open(folder / f"output_{rank}", "a") as output:
            ranks.append(subprocess.Popen(command, stdout=output, stderr=output,
                                          env={**os.environ, **environment_of(rank, port)}))
    deadline, late = time.monotonic() + ENDS_S, False
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            rank.kill()
            rank.wait()
    return "no end" if late else max(abs(rank.returncode) for rank in ranks)


class InPython:
    """`written` gives an edited program, or without an edit the right one, and its arguments."""

    def __init__(self, sources):
        self.sources, self.every = sources, read(sources)

    def written(self, folder, base, edit):
        source = (self.sources / f"{base}.py").read_text()
        program = pathlib.Path(folder, f"{base}.py")
        program.write_text(applied(source, edit) if edit else source)
        return program, []

    def attempt(self, program, arguments, folder):
        import torch
        torch.set_num_threads(1)  # the ranks are forks
        return in_python(program, folder)

    def weights(self, folder, rank, report):
        import torch
        return torch.load(folder / f"rank_{rank}.pt")

    def bare(self, base, edit):
        """What becomes of the ranks without Lockstep, by what they leave in their folder."""
        with tempfile.TemporaryDirectory(prefix="lockstep-changes-") as name:
            folder = pathlib.Path(name)
            program, arguments = self.written(folder, base, edit)
            for _ in range(attempts(base)):
                code = self.attempt(program, arguments, folder)
                if code != 0:
                    files = sorted(folder.glob("output_*"))
                    lines = [line for path in files for line in path.read_text().splitlines()]
                    words = [re.sub(r"\[[^]]*\](:\d+)? ?:?", "", line).strip() for line in lines]  # no rank, no port
                    errors = [line[:100] for line in words if re.match(r"\w*Error: ", line)]
                    return Run(base, code, errors[0] if errors else "", [], [])
            reports = [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(RANKS)]
            weights = [self.weights(folder, rank, report) for rank, report in enumerate(reports)]
            return Run(base, 0, "", weights, reports)


class InCpp(InPython):
    """They are built, and become an edited program by `--edit NAME`."""

    def __init__(self, sources, built):
        super().__init__(sources)
        self.built = built

    def written(self, folder, base, edit):
        if not (self.built / base).exists():
            raise EditError(f"{self.built / base} is not built; build the target set_{self.built.name}_{base}")
        if edit and f'edited("{edit["name"]}")' not in (self.sources / f"{base}.cpp").read_text():
            raise EditError(f"{base}.cpp has no edit {edit['name']}; write `if (edited(\"{edit['name']}\"))` in it")
        return self.built / base, ["--edit", edit["name"]] if edit else []

    def attempt(self, program, arguments, folder):
        return in_cpp([program, folder, *arguments], folder)

    def weights(self, folder, rank, report):
        import torch
        return {name: torch.tensor(values) for name, values in report.pop("weights").items()}
