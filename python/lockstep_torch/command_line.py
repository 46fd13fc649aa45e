"""lockstep watch -- COMMAND ..., and diagnose DIR, explain NAME, compare DIR DIR and report DIR."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NoReturn, TextIO

from lockstep_torch import processes

OK, FINDING, USAGE, COULD_NOT_RUN, DEADLINE = 0, 1, 2, 3, 124
PACKAGE = pathlib.Path(__file__).parent
MOST_STEPS = 2**31 - 1
WITHIN_S = 2  # a stalled job is ended
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def wait_for(job: subprocess.Popen[bytes], folder: pathlib.Path, timeout: float | None, signals: list[int]) -> bool:
    """False where no rank made progress for `timeout` seconds, and the job was ended, at most WITHIN_S later. Before a
    rank has entered a collective, and after all have ended, the job is starting or at its end: that is no stall."""
    ends = processes.Ends(folder, job)
    seen, since, alive = None, time.monotonic(), set[int]()
    while timeout is None or seen is None or time.monotonic() - since < timeout:
        if ends.wait(0.2 if timeout is None else min(0.1, timeout / 10)):
            record_ends(told_of(ends, signals))
            return True
        if timeout is not None:
            now = processes.progress(folder, alive)
            if now != seen or now is None:
                seen, since = now, time.monotonic()
    by = time.monotonic() + WITHIN_S - 0.3  # that is for the looks above, which come 0.1 s apart
    try:
        ask_where(job, folder, by - 1)
    except Exception as error:  # noqa: BLE001 the job is ended whatever happens
        print(f"lockstep: where the ranks were is not known: {error}", file=sys.stderr)
    told = told_of(ends, signals)
    processes.end(job, by)
    record_ends(told)
    return False


def ask_where(job: subprocess.Popen[bytes], folder: pathlib.Path, until: float) -> None:
    from lockstep_torch import places
    running = [pid for pid in [*processes.descendants(job.pid), job.pid] if not processes.is_frozen(pid)]
    asked = places.ask(folder, running)
    while time.monotonic() < until and any(file.stat().st_size == 0 for file in asked):
        time.sleep(0.02)
    places.answered(folder)  # a rank that ends in order removes its answer


Told = dict[pathlib.Path, dict[int, tuple[str, int, int]]]


def told_of(ends: processes.Ends, signals: list[int]) -> Told:
    try:
        return ends.told(not ENDING.isdisjoint(signals))
    except Exception as error:  # noqa: BLE001 the job is ended whatever happens
        print(f"lockstep: how the ranks ended is not known: {error}", file=sys.stderr)
        return {}


def record_ends(told: Told) -> None:
    """Loads torch, which takes seconds."""
    if not told:
        return
    try:
        from lockstep_torch.extension import extension
        for folder, ends in told.items():
            extension().record_ends(folder, ends)
    except Exception as error:  # noqa: BLE001 the job's own end stays as it is
        print(f"lockstep: how the ranks ended was not recorded: {error}", file=sys.stderr)


def diagnosis(folder: pathlib.Path) -> dict[str, Any]:
    import lockstep_torch
    from lockstep_torch import places
    places.answered(folder)
    return lockstep_torch.diagnose(folder)


def has_violation(found: dict[str, Any]) -> bool:
    return any(one["severity"] == "violation" for one in found["findings"])


def warn(left_out: list[str]) -> None:
    for sentence in left_out:
        print(f"lockstep: {sentence}", file=sys.stderr)


def text_of(found: dict[str, Any]) -> str:
    recorded, world_size = found["recorded_ranks"], found["world_size"]
    part = f"{recorded} of {world_size} ranks recorded\n" if recorded != world_size else ""
    return f"{part}{found['text']}"


def say(found: dict[str, Any]) -> None:
    warn(found["left_out"])
    print(text_of(found), end="", file=sys.stderr)


def own_name() -> str:
    """What the user calls; the clone's own command says where it is."""
    return shlex.quote(os.environ.get("LOCKSTEP_COMMAND", "lockstep"))


def start(command: list[str], environment: dict[str, str], received: list[int]) -> subprocess.Popen[bytes]:
    """The job. The signals that this process gets are passed on to it, also those that come while it starts."""
    job = None
    early: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        if job is None:
            early.append(number)
        elif number != signal.SIGINT:  # a terminal gives it to the job, too
            job.send_signal(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    job = subprocess.Popen(command, env=environment)
    for each in early:
        job.send_signal(each)
    return job


def wrong_folder(into: str | None) -> str:
    """Makes it where it is not there."""
    if into is None:
        return ""
    folder = pathlib.Path(into).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = any(folder.rglob("*.trace"))
        why = "holds a run already" if held else "" if os.access(folder, os.W_OK) else "cannot be written"
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
    """As variables, which the ranks read (common/lockstep/record/probe_options.h)."""
    told = {"LOCKSTEP_EVERY": options.every, "LOCKSTEP_FROM": options.first, "LOCKSTEP_TO": options.last}
    return {name: "" if value is None else str(value) for name, value in told.items()} if options.every else {}


def watch(options: argparse.Namespace) -> int:
    if refused := wrong_folder(options.into) or wrong_probes(options):
        print(f"lockstep: {refused}", file=sys.stderr)
        return USAGE
    if options.dry_run:
        return OK
    folder = pathlib.Path(options.into or tempfile.mkdtemp(prefix="lockstep-")).absolute()
    signals: list[int] = []  # that were given to the job
    try:
        more = probes(options) | ({"LOCKSTEP_STACKS": "1"} if options.timeout else {})
        job = start(options.command, {**os.environ, "LOCKSTEP_TRACE": str(folder), **more}, signals)
    except OSError as error:
        if not options.into:
            folder.rmdir()
        beside = pathlib.Path(sys.executable).parent / options.command[0]
        of_this = f"; this Python's is {beside}" if os.sep not in options.command[0] and beside.is_file() else ""
        print(f"lockstep: cannot start {options.command[0]}: {error.strerror}{of_this}", file=sys.stderr)
        return USAGE
    went_on = wait_for(job, folder, options.timeout, signals)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    code = job.returncode if job.returncode >= 0 else 128 - job.returncode
    if not went_on:
        print(f"lockstep: no rank made progress for {options.timeout:g} s; the job was ended", file=sys.stderr)
        code = DEADLINE
    if not any(folder.rglob("*.trace")):
        ended = f"{options.command[0]} exited with {code}; " if code != OK else ""
        print(f"lockstep: {ended}nothing was recorded: no process of this job used torch.distributed, an optimizer or "
              "a DataLoader, or its Python has no lockstep-torch that fits its torch; a C++ job must link "
              "lockstep::record", file=sys.stderr)
        if not options.into:
            shutil.rmtree(folder, ignore_errors=True)
        return code
    try:
        found = diagnosis(folder)
    except Exception as error:  # noqa: BLE001 the job's exit code stays
        print(f"lockstep: {folder} cannot be diagnosed: {error}", file=sys.stderr)
        return code
    say(found)
    if not ENDING.isdisjoint(signals) and not found["findings"]:
        print("lockstep: the job was ended by a signal: what it had not done by then was not recorded", file=sys.stderr)
    traces = shlex.quote(str(folder))
    if found["findings"]:
        first = min(found["findings"], key=lambda one: one["severity"] != "violation")
        rest = "what is near it" if "nearest" in first else "how to mend it"
        print(f"lockstep: what it is, and {rest}: {own_name()} explain {first['pitfall']}", file=sys.stderr)
    print(f"lockstep: a page of this run: {own_name()} report {traces}\n"
          f"lockstep: what each detector says: {own_name()} diagnose {traces} --json", file=sys.stderr)
    return FINDING if options.fail_on_finding and code == OK and has_violation(found) else code


def diagnose(options: argparse.Namespace) -> int:
    try:
        found = diagnosis(options.folder)
    except RuntimeError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return USAGE
    warn(found["left_out"])
    if options.json:
        print(json.dumps({key: value for key, value in found.items() if key not in ("text", "left_out")}, indent=2))
    else:
        print(text_of(found), end="")
    return FINDING if has_violation(found) else OK


def explain(options: argparse.Namespace) -> int:
    from lockstep_torch import explaining
    try:
        print(explaining.explained(options.name) if options.name else explaining.all_names(), end="")
    except (LookupError, RuntimeError) as error:
        print(f"lockstep: {error.args[0]}", file=sys.stderr)
        return USAGE
    return OK


def compare(options: argparse.Namespace) -> int:
    from lockstep_torch.extension import extension
    if options.html and not can_make_pages():
        return COULD_NOT_RUN
    try:
        found = extension().compare(options.a, options.b, own_name())
    except RuntimeError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return USAGE
    print(found["json" if options.json else "text"], end="", flush=True)
    code = {"different": FINDING, "undecided": COULD_NOT_RUN}.get(found["answer"], OK)
    failed = page("compare_report.py", found["json"], options.html, said=sys.stderr) if options.html else OK
    return failed or code


def can_make_pages() -> bool:
    if missing := [name for name in ("jinja2", "vl_convert") if importlib.util.find_spec(name) is None]:
        print(f"lockstep: a page needs {' and '.join(missing)}: pip install jinja2 vl-convert-python", file=sys.stderr)
    return not missing


def page(script: str, told: str, *arguments: os.PathLike[str], said: TextIO | None = None) -> int:
    """A program of its own makes it, as in the clone. `said`: where its size is told, if not on standard output."""
    return subprocess.run([sys.executable, PACKAGE / "html" / script, *arguments], input=told, encoding="utf-8",
                          stdout=said, check=False).returncode


def report(options: argparse.Namespace) -> int:
    from lockstep_torch.extension import extension
    if not can_make_pages():
        return COULD_NOT_RUN
    try:
        job, left_out = extension().page(options.folder, PACKAGE)
    except RuntimeError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return USAGE
    warn(left_out)
    file = options.out or options.folder / "report.html"
    return page("job_report.py", job, options.folder, file)


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


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"lockstep: {message}; see {self.prog} --help\n")

    def parse(self, arguments: list[str] | None) -> argparse.Namespace:
        options, extras = self.parse_known_args(arguments)
        named = options.parser
        if extras and getattr(options, "command", None) and "--" not in (arguments or sys.argv):
            named.error(f"put -- before the command: watch -- {options.command[0]} ...")
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
                          help="the page (default: report.html in the folder)")
    reported.set_defaults(run=report)
    for each in commands.choices.values():
        each.set_defaults(parser=each)
    options = parser.parse(arguments)
    result: int = options.run(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
