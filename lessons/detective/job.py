"""A run with a fault, and what it left: outcome, recorded events, what the ranks printed. cpp_job.py, python_job.py and
two_job.py make them."""

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile

DEADLINE_S = 120     # of a run, start to finish
GRACE_S = 5          # for its processes to end when told to


class CouldNotRun(Exception):
    """The message gives nothing away."""


class Job:
    """`outcome`: findings, and what the program reports: losses and accuracy by rank and epoch. `printed` and `logs`:
    [(rank, text)] of stdout and stderr. `seen`: asks an oracle; {what must be so: whether it is}. `proved`: makes more runs;
    what `lockstep prove --json` says of the program."""

    def __init__(self, outcome, trace, logs=(), printed=(), seen=None, devices=False, proved=None):
        self.outcome = {"losses": [], "accuracy": [], "findings": [], **outcome}
        self.ends, self.logs, self.printed, self.seen, self.devices = trace["ends"], logs, printed, seen, devices
        self.proved = proved
        self.world_size = outcome.get("world_size", trace["world_size"])
        self.word = "device" if self.devices else "rank"
        self.events = {rank: [] for rank in range(self.world_size)}
        for rank in trace["ranks"]:
            self.events.setdefault(rank["rank"], []).extend(rank["events"])
        self.kinds = {event["event"] for events in self.events.values() for event in events}
        self.closed = {rank["rank"] for rank in trace["ranks"] if rank["closed"]}
        times = [event["time_ns"] for events in self.events.values() for event in events]
        self.start_ns = min([*times, *(rank["started_ns"] for rank in trace["ranks"])], default=0)

    def of(self, *kinds):
        """(rank, event) by rank, and of a rank in the order recorded."""
        return [(rank, event) for rank in sorted(self.events) for event in self.events[rank] if event["event"] in kinds]

    def own(self, rank, kind):
        return [event for event in self.events[rank] if event["event"] == kind]

    def name(self, rank):
        return f"{self.word} {rank}"

    def by_step(self, kind):
        """{step: {rank: [fields]}}"""
        steps = collections.defaultdict(lambda: collections.defaultdict(list))
        for rank, event in self.of(kind):
            steps[event["step"]][rank].append(event["fields"])
        return dict(sorted(steps.items()))

    def at(self, time_ns):
        return f"{max(time_ns - self.start_ns, 0) / 1e9:.2f} s"


@contextlib.contextmanager
def undisturbed():
    """Holds Ctrl-C and its like back: a second one must leave neither the job nor its folder behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def folder_for_a_while():
    with undisturbed():
        folder = tempfile.TemporaryDirectory(prefix="lockstep-detective-", ignore_cleanup_errors=True)
    try:
        yield pathlib.Path(folder.name)
    finally:
        with undisturbed():
            folder.cleanup()


def ended_with_its_own(arguments, folder=None, **environment):
    """Runs a program in a session of its own. Whatever ends this process early ends that one first. (code, stdout)"""
    with subprocess.Popen([str(each) for each in arguments], cwd=folder, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                          env={**os.environ, **environment}) as program:
        try:
            said, _ = program.communicate(timeout=DEADLINE_S)
        except BaseException:
            with undisturbed():
                for number in (signal.SIGTERM, signal.SIGKILL):
                    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.killpg(program.pid, number)
                        program.wait(GRACE_S)
            raise
        return program.returncode, said


@contextlib.contextmanager
def could_not_run():
    """What goes wrong while a job runs, in words that give nothing away."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise CouldNotRun(f"The job did not end in {DEADLINE_S} s.") from error
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CouldNotRun("The job could not be run. ./lockstep doctor says what is missing.") from error


def require_shown(shown):
    if not shown:
        raise CouldNotRun("The job ran, and its fault did not show this time. Play it again, or another case.")


def exported(folder, course):
    """The trace itself."""
    return json.loads(ended_with_its_own([course, "diagnose", folder, "--export"])[1])


def found_in(folder, course):
    """What the detectors say of a trace."""
    return json.loads(ended_with_its_own([course, "diagnose", folder, "--json"])[1])["findings"]


def said_by_ranks(folder, ending):
    """[(rank, text)] of the files that the ranks' output went to, without the folder's name."""
    files = sorted(folder.rglob(f"rank_*.{ending}"))
    texts = [file.read_text(encoding="utf-8", errors="replace").replace(str(folder), "/job") for file in files]
    ranks = [int(file.stem.removeprefix("rank_")) for file in files]
    return [(rank, text) for rank, text in zip(ranks, texts, strict=True) if text.strip()]
