"""lockstep watch -- COMMAND ..., prove -- COMMAND ..., and diagnose DIR, explain NAME, compare DIR DIR, report DIR."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, NoReturn, TextIO

import lockstep_torch
from lockstep_torch import places, watching
from lockstep_torch.saying import say

OK, FINDING, USAGE, COULD_NOT_RUN, DEADLINE, INTERRUPTED = 0, 1, 2, 3, 124, 130
PACKAGE = pathlib.Path(__file__).parent
MOST_STEPS = 2**31 - 1
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def has_violation(found: dict[str, Any]) -> bool:
    return any(one["severity"] == "violation" for one in found["findings"])


def tell(text: str) -> None:
    """On standard output, which may be closed or full: the command has failed then."""
    if sys.stdout is None:
        say("lockstep: standard output is closed")
        sys.exit(COULD_NOT_RUN)
    try:
        print(text, end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python tries it once more at its end
        say(f"lockstep: standard output cannot be written: {error.strerror}")
        sys.exit(COULD_NOT_RUN)


def warn(left_out: list[str]) -> None:
    for sentence in left_out:
        say(f"lockstep: {sentence}")


def text_of(found: dict[str, Any]) -> str:
    recorded, world_size = found["recorded_ranks"], found["world_size"]
    part = f"{recorded} of {world_size} ranks recorded\n" if recorded != world_size else ""
    return f"{part}{found['text']}"


def own_name() -> str:
    """What the user calls; the clone's own command says where it is."""
    return shlex.quote(os.environ.get("LOCKSTEP_COMMAND", "lockstep"))


def wrong_folder(into: str | None, make: bool) -> str:
    """Makes it where it is not there, unless that is for later."""
    if into is None:
        return ""
    if not into:
        return "--into wants the name of a folder"
    folder = there = pathlib.Path(into).absolute()
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        while not make and not os.path.lexists(there):
            there = there.parent
        if not there.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        held = any(folder.glob("*.trace")) or any(folder.glob("attempt_*/*.trace"))
        why = "holds a run already" if held else "" if os.access(there, os.W_OK) else "cannot be written"
    except OSError as error:
        why = f"cannot be used: {error.strerror}"
    return f"{folder} {why}; name another folder with --into" if why else ""


def wrong_probes(options: argparse.Namespace) -> str:
    if options.every is None and (options.first is not None or options.last is not None):
        return "--from and --to say where --every K holds, and there is no --every"
    if options.first is not None and options.last is not None and options.first > options.last:
        return f"--from {options.first} is after --to {options.last}"
    return ""


def probes(options: argparse.Namespace) -> dict[str, str]:
    """As variables, which the ranks read (common/lockstep/record/probes.h)."""
    told = {"LOCKSTEP_EVERY": options.every, "LOCKSTEP_FROM": options.first, "LOCKSTEP_TO": options.last}
    return {name: "" if value is None else str(value) for name, value in told.items()} if options.every else {}


def without_variables(words: list[str]) -> str:
    """`python -E` of `python -u -E train.py`."""
    for number, word in enumerate(words):
        if re.fullmatch(r"python[\d.]*", os.path.basename(word)):
            for option in itertools.takewhile(re.compile("-[a-zA-Z]").match, words[number + 1:]):
                if found := re.match("-[^EIcm]*([EI])", option):
                    return f"{os.path.basename(word)} -{found[1]}"
                if "c" in option or "m" in option:
                    break
    return ""


def why_nothing(command: list[str]) -> str:
    """Why a job that may well train records nothing, as far as its command and this process's variables say."""
    words = " ".join(command).split()
    if os.environ.get(AUTOLOAD) == "0" or f"{AUTOLOAD}=0" in words:
        return f"{AUTOLOAD}=0 has torch load no recorder"
    by_path = not places.INSTALLED.search(os.path.join(PACKAGE, ""))
    if by_path and (python := without_variables(words)):
        return f"{python} does not look at PYTHONPATH, by which this package is found"
    if by_path and any(word.startswith("PYTHONPATH=") for word in words):
        return "another PYTHONPATH hides this package"
    if found := re.search(r"(?:^|[ /])env (?:\S+ )*?(-i|-|--ignore-environment|(?:-u|--unset)[ =]?(?:LOCKSTEP_TRACE|"
                          r"PYTHONPATH))(?: |$)", " ".join(words)):
        return f"env {found[1]} takes away the variables by which a job is recorded"
    return ("no process of this job used torch.distributed, an optimizer or a DataLoader, or its Python has no "
            "lockstep-torch that fits its torch; a C++ job must link lockstep::record")


def watch(options: argparse.Namespace) -> int:
    if refused := wrong_folder(options.into, not options.dry_run) or wrong_probes(options):
        say(f"lockstep: {refused}")
        return USAGE
    if options.dry_run:
        return OK
    folder = pathlib.Path(options.into or tempfile.mkdtemp(prefix="lockstep-")).absolute()
    say(f"lockstep: recording into {folder}")
    more = {"LOCKSTEP_TRACE": str(folder)} | probes(options) | ({places.ASKED: "1"} if options.timeout else {})
    try:
        job = watching.Job(options.command, folder, more, options.timeout)
    except OSError as error:
        if not options.into:
            folder.rmdir()
        beside = pathlib.Path(sys.executable).parent / options.command[0]
        of_this = f"; this Python's is {beside}" if os.sep not in options.command[0] and beside.is_file() else ""
        say(f"lockstep: cannot start {options.command[0]}: {error.strerror}{of_this}")
        return USAGE
    went_on = job.wait()
    code = job.leave()
    places.answered(folder)
    if not went_on:
        say(f"lockstep: no rank made progress for {options.timeout:g} s; the job was ended")
        code = DEADLINE
    if not any(folder.rglob("*.trace")):
        ended = f"{options.command[0]} exited with {code}; " if code != OK else ""
        say(f"lockstep: {ended}nothing was recorded: {why_nothing(options.command)}")
        if not options.into:
            shutil.rmtree(folder, ignore_errors=True)
        return code
    try:
        found = lockstep_torch.diagnose(folder)
    except Exception as error:  # noqa: BLE001 the job's exit code stays
        say(f"lockstep: {folder} cannot be diagnosed: {error}")
        return code
    warn(found["left_out"])
    if not found["findings"]:
        warn(job.left)
    say(text_of(found))
    if job.ended_by() and not found["findings"]:
        say("lockstep: the job was ended by a signal: what it had not done by then was not recorded")
    traces = shlex.quote(str(folder))
    if found["findings"]:
        first = min(found["findings"], key=lambda one: one["severity"] != "violation")
        rest = "what is near it" if "nearest" in first else "how to mend it"
        say(f"lockstep: what it is, and {rest}: {own_name()} explain {first['pitfall']}")
    say(f"lockstep: a page of this run: {own_name()} report {traces}\n"
        f"lockstep: what each detector says: {own_name()} diagnose {traces} --json")
    return FINDING if options.fail_on_finding and code == OK and has_violation(found) else code


def prove(options: argparse.Namespace) -> int:
    import torch

    from lockstep_torch.proving import command
    from lockstep_torch.proving.job import Wrong
    wanted = tuple(options.relations.split(",")) if options.relations is not None else command.RELATIONS
    if unknown := [name for name in wanted if name not in command.RELATIONS]:
        say(f"lockstep: there is no relation {unknown[0]!r}; there are {', '.join(command.RELATIONS)}")
        return USAGE
    if options.device == "cuda" and not torch.cuda.is_available():
        say("lockstep: --device cuda: torch finds no GPU here; leave it out, and the job runs on the CPU")
        return USAGE
    if options.html and not can_make_pages():
        return COULD_NOT_RUN
    for number in (signal.SIGTERM, signal.SIGHUP):  # nothing of the job is left then, either
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, signal.default_int_handler)
    try:
        with Progress() as progress:
            found = command.prove(options.command, options.steps, options.world_size, wanted, tuple(options.batch),
                                  options.limit, options.device, progress)
    except Wrong as wrong:
        say(f"lockstep: {wrong}")
        return USAGE
    except KeyboardInterrupt:
        say("lockstep: interrupted; nothing of the job is left")
        return INTERRUPTED
    told = command.json_of(found)
    tell(told if options.json else command.text_of(found))
    failed = page("prove_report.py", told, "--", options.html, said=sys.stderr) if options.html else OK
    return failed or command.code_of(found)


class Progress:
    """Of a proof, a line for each run; in a terminal one line with a bar."""

    def __init__(self) -> None:
        self.bar = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_error: object) -> None:
        self.put("")

    def __call__(self, text: str, part: float | None = None) -> None:
        """`part`: of all runs, how many are made."""
        if not self.bar or part is None:
            self.put("")
            return say(f"lockstep: {text}")
        done = ("#" * round(20 * min(part, 1))).ljust(20, ".")
        return self.put(f"{done} {text}"[:shutil.get_terminal_size().columns - 1])

    def put(self, line: str) -> None:
        if self.bar:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def diagnose(options: argparse.Namespace) -> int:
    try:
        found = lockstep_torch.diagnose(options.folder)
    except RuntimeError as error:
        say(f"lockstep: {error}")
        return USAGE
    warn(found["left_out"])
    if options.json:
        told = {key: value for key, value in found.items() if key not in ("text", "left_out")}
        tell(json.dumps(told, indent=2) + "\n")
    else:
        tell(text_of(found))
    if has_violation(found):
        return FINDING
    # Nothing found of a part is no good news.
    return COULD_NOT_RUN if found["incomplete"] and not found["findings"] else OK


def explain(options: argparse.Namespace) -> int:
    from lockstep_torch import explaining
    try:
        tell(explaining.explained(options.name) if options.name else explaining.all_names())
    except (LookupError, RuntimeError) as error:
        say(f"lockstep: {error.args[0]}")
        return USAGE
    return OK


def compare(options: argparse.Namespace) -> int:
    from lockstep_torch.extension import extension
    if options.html and not can_make_pages():
        return COULD_NOT_RUN
    try:
        found = extension().compare(options.a, options.b, own_name().encode("utf-8", "surrogateescape"))
    except RuntimeError as error:
        say(f"lockstep: {error}")
        return USAGE
    tell(found["json" if options.json else "text"])
    code = {"different": FINDING, "undecided": COULD_NOT_RUN}.get(found["answer"], OK)
    failed = page("compare_report.py", found["json"], "--", options.html, said=sys.stderr) if options.html else OK
    return failed or code


def can_make_pages() -> bool:
    if missing := [name for name in ("jinja2", "vl_convert") if importlib.util.find_spec(name) is None]:
        say(f"lockstep: a page needs {' and '.join(missing)}: pip install jinja2 vl-convert-python")
    return not missing


def page(script: str, told: str, *arguments: str | os.PathLike[str], said: TextIO | None = None) -> int:
    """A program of its own makes it, as in the clone. `said`: where its size is told, if not on standard output."""
    installed = PACKAGE / "html"
    pages = installed if installed.exists() else PACKAGE.parents[1] / "reports" / "html"  # of the clone
    return subprocess.run([sys.executable, pages / script, *arguments], input=told.encode(), stdout=said,
                          check=False).returncode


def report(options: argparse.Namespace) -> int:
    from lockstep_torch.extension import extension
    if not can_make_pages():
        return COULD_NOT_RUN
    try:
        job, left_out = extension().page(options.folder, PACKAGE)
    except RuntimeError as error:
        say(f"lockstep: {error}")
        return USAGE
    warn(left_out)
    out = [f"--out={options.out}"] if options.out else []
    return page("job_report.py", job, *out, "--", options.folder)


def seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (value := float(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"a number of seconds above 0 is wanted, not {text!r}")


def steps(text: str, least: int = 1) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= MOST_STEPS:
        raise argparse.ArgumentTypeError(f"a whole number from {least} to {MOST_STEPS} is wanted, not {text!r}")
    return int(text)


def step(text: str) -> int:
    return steps(text, 0)


def ranks(text: str) -> int:
    return steps(text, 2)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        say(f"lockstep: {message}; see {self.prog} --help")
        self.exit(USAGE)

    def parse(self, arguments: list[str] | None) -> argparse.Namespace:
        options, extras = self.parse_known_args(arguments)
        named = options.parser
        if extras and getattr(options, "command", None) and "--" not in (arguments or sys.argv):
            named.error(f"put -- before the command: {named.prog.split()[-1]} -- {options.command[0]} ...")
        if extras and not extras[0].startswith("-"):
            named.error(f"not expected: {extras[0]}")
        if extras:
            near = difflib.get_close_matches(extras[0], named._option_string_actions, 1)
            named.error(f"there is no option {extras[0]}" + (f"; the nearest: {near[0]}" if near else ""))
        return options


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="lockstep", description="Names what is wrong in a data-parallel training run.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    watched = commands.add_parser("watch", help="run a job, record it, and say what is wrong",
                                  usage="lockstep watch [--into DIR] [--timeout S] [--fail-on-finding] [--every K "
                                        "[--from STEP] [--to STEP]] -- COMMAND ...")
    watched.add_argument("--into", metavar="DIR",
                         help="where the traces go; all ranks share it (default: a new folder)")
    watched.add_argument("--timeout", metavar="S", type=seconds,
                         help="end a job in which no rank records anything for S seconds, and exit with 124")
    watched.add_argument("--every", metavar="K", type=steps,
                         help="record gradients and parameters at every K-th step, too (1: at every step)")
    watched.add_argument("--from", metavar="STEP", type=step, dest="first", help="--every holds from this step on")
    watched.add_argument("--to", metavar="STEP", type=step, dest="last", help="--every holds up to this step")
    watched.add_argument("--fail-on-finding", action="store_true", help="exit with 1 where a violation is found")
    watched.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)  # refuses what it would refuse
    watched.add_argument("command", nargs="+", metavar="COMMAND")
    watched.set_defaults(run=watch)
    proved = commands.add_parser("prove", help="run a job a few times, and say whether it does what one process would",
                                 usage="lockstep prove [--steps N] [--world-size W] [--relations NAME,...] "
                                       "[--batch NAME] [--device D] [--limit S] [--json] [--html FILE] -- "
                                       "COMMAND ...")
    proved.add_argument("--steps", metavar="N", type=steps, default=12,
                        help="end each run after N updates of an optimizer (default: 12)")
    proved.add_argument("--world-size", metavar="W", type=ranks, default=2, help="ranks (default: 2)")
    proved.add_argument("--relations", metavar="NAME,...",
                        help="which must hold, of slope, one, swap and restart (default: all)")
    proved.add_argument("--batch", metavar="NAME", action="append", default=[],
                        help="the batch size's variable or option, where its name does not say so; may be repeated")
    proved.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="cpu: with Gloo, whatever the program asks for (default); cuda: with what it asks for")
    proved.add_argument("--limit", metavar="S", type=seconds, default=120.0,
                        help="end a run after S seconds (default: 120)")
    proved.add_argument("--json", action="store_true")
    proved.add_argument("--html", metavar="FILE", type=pathlib.Path, help="also write a page")
    proved.add_argument("command", nargs="+", metavar="COMMAND")
    proved.set_defaults(run=prove)
    read = commands.add_parser("diagnose", help="say what is wrong in a folder of traces")
    read.add_argument("folder", type=pathlib.Path)
    read.add_argument("--json", action="store_true")
    read.set_defaults(run=diagnose)
    meaning = commands.add_parser("explain", help="say what a finding means, and how to mend a pitfall")
    meaning.add_argument("name", nargs="?", help="as diagnose calls it (default: lists all names)")
    meaning.set_defaults(run=explain)
    both = commands.add_parser("compare", help="say where two recorded runs of one training part")
    both.add_argument("a", type=pathlib.Path, help="a run that is right")
    both.add_argument("b", type=pathlib.Path, help="the run to compare with it")
    both.add_argument("--json", action="store_true", help="all that was compared as JSON")
    both.add_argument("--html", metavar="FILE", type=pathlib.Path, help="also write a page")
    both.set_defaults(run=compare)
    reported = commands.add_parser("report", help="write an HTML page of a folder of traces")
    reported.add_argument("folder", type=pathlib.Path)
    reported.add_argument("--out", metavar="FILE", type=pathlib.Path,
                          help="the page (default: report-FOLDER.html in the working directory)")
    reported.set_defaults(run=report)
    for each in commands.choices.values():
        each.set_defaults(parser=each)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="backslashreplace")
    options = parser.parse(arguments)
    result: int = options.run(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
