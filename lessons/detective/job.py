"""A run of a lesson's variant, and what it left: the report, the recorded events, what the ranks printed."""

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
    def __init__(self, variant, trace, logs, seconds=0.0):
        self.variant, self.ends, self.logs, self.seconds = variant, trace["ends"], logs, seconds
        self.world_size, self.devices = variant["world_size"], variant["participants"] == "devices"
        self.word = "device" if self.devices else "rank"
        self.events = {rank: [] for rank in range(self.world_size)}
        for rank in trace["ranks"]:
            self.events.setdefault(rank["rank"], []).extend(rank["events"])
        self.kinds = {event["event"] for events in self.events.values() for event in events}
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


def ended_with_its_own(arguments):
    """Runs a program in a session of its own. Whatever ends this process early ends that one first. (code, stdout)"""
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, start_new_session=True) as program:
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


def program_of(lesson, programs):
    return pathlib.Path(programs, lesson)


def logs_in(folder):
    """[(rank, text)] of what the ranks wrote to stderr, without paths that tell where they ran."""
    files = sorted(folder.rglob("rank_*.err"))
    texts = [file.read_text(encoding="utf-8", errors="replace").replace(str(folder), "/job") for file in files]
    ranks = [int(file.stem.removeprefix("rank_")) for file in files]
    return [(rank, text) for rank, text in zip(ranks, texts, strict=True) if text.strip()]


def run(lesson, variant, world_size, programs, course):
    """One variant, recorded in a folder that is gone when this returns."""
    with folder_for_a_while() as folder:
        report, traces = folder / "report.json", folder / "trace"
        options = ["--variant", variant, "--world-size", str(world_size), "--trace", traces, "--json", report]
        try:
            ended_with_its_own([program_of(lesson, programs), *options])
            found = json.loads(report.read_text(encoding="utf-8"))["variants"][0]
            _, trace = ended_with_its_own([course, "diagnose", traces / lesson / variant, "--export"])
            job = Job(found, json.loads(trace), logs_in(traces / lesson / variant))
        except subprocess.TimeoutExpired as error:
            raise CouldNotRun(f"The job did not end in {DEADLINE_S} s.") from error
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise CouldNotRun("The job could not be run. ./lockstep doctor says what is missing.") from error
    if found["verdict"] != "as-expected":
        raise CouldNotRun("The job ran, and its fault did not show this time. Play it again, or another case.")
    return job


def correct_beside(page, world_size, programs, course):
    """A correct variant of the same part of the lesson; None where there is none."""
    try:
        _, said = ended_with_its_own([program_of(page.lesson, programs), "--describe"])
        variants = json.loads(said)["variants"]
        part = next(variant["part"] for variant in variants if variant["name"] == page.slug)
    except (OSError, ValueError, KeyError, StopIteration, subprocess.TimeoutExpired) as error:
        raise CouldNotRun("The correct job could not be run. ./lockstep doctor says what is missing.") from error
    names = [variant["name"] for variant in variants if variant["part"] == part and variant["kind"] == "correct"]
    return run(page.lesson, names[0], world_size, programs, course) if names else None
