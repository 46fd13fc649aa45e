"""What the tests of other launchers share: processes with a deadline, ports, reports. What they leave behind is looked
for by tests/support/nothing_left.py. Standard library only.
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import nothing_left  # noqa: E402

# What places a process in a job, or says how it talks: a test sets its own.
PLACING = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_STORE",
           "GLOO_SOCKET_IFNAME")
PLACING_PREFIXES = ("SLURM", "OMPI_", "PMIX_", "TORCHELASTIC_")
POLL_S = 0.02
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1

BIN = None  # the folder of the built lessons; main() sets both
PYTHON = sys.executable  # one that may have torch


class Finished:
    """How a process ended, what it said, and how long it took."""

    def __init__(self, code, text, seconds):
        self.code, self.text, self.seconds = code, text, seconds


class Job(nothing_left.TestCase):
    """A test with a folder of its own, a deadline for all it does, and nothing left behind."""

    deadline_s = 45

    def setUp(self):
        super().setUp()
        self.deadline = time.monotonic() + self.deadline_s
        self.held_ports = []
        self.processes = []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-launchers-"))
        self.addCleanup(self.clean_up)

    def environment(self, **more):
        own = {key: value for key, value in os.environ.items()
               if key not in PLACING and not key.startswith(PLACING_PREFIXES)}
        return {**own, "OMP_NUM_THREADS": "1", **more}

    def left_s(self):
        """Seconds until the deadline; fails the test when there are none."""
        left = self.deadline - time.monotonic()
        self.assertGreater(left, 0, f"deadline of {self.deadline_s} s")
        return left

    def port(self):
        """A port that nobody else gets before the test ends: bound, so that it is not handed out, and not listened
        on, so that a server that reuses addresses can."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("0.0.0.0", 0))
        self.held_ports.append(held)
        return held.getsockname()[1]

    def start(self, command, name="process", **environment):
        """Its output goes to a file, so that no grandchild keeps a pipe open."""
        log = self.folder / f"{name}.{len(self.processes)}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen([str(word) for word in command], env=self.environment(**environment),
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                       cwd=self.folder, start_new_session=True, preexec_fn=die_with_parent)
        process.log, process.began = log, time.monotonic()
        self.processes.append(process)
        return process

    def finish(self, process):
        try:
            code = process.wait(self.left_s())
        except subprocess.TimeoutExpired:
            self.fail(f"{process.args[:3]} did not end by the deadline:\n{said(process)}")
        return Finished(code, said(process), time.monotonic() - process.began)

    def run_to_end(self, command, name="process", **environment):
        return self.finish(self.start(command, name, **environment))

    def wait_until(self, condition, what, *processes):
        """Polls; fails at the deadline, or when one of the processes ends before."""
        while not condition():
            for process in processes:
                self.assertIsNone(process.poll(), f"ended before {what}: {process.args[:3]}\n{said(process)}")
            self.assertLess(time.monotonic(), self.deadline, f"waiting until {what}")
            time.sleep(POLL_S)

    def stop(self, process):
        """Ends one that would run for ever, and waits for it."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)

    def report(self, path):
        """The one variant that a report tells of."""
        self.assertTrue(path.exists(), "there is no report")
        return json.loads(path.read_text())["variants"][0]

    def assert_names(self, finished, path, slug):
        """Rank 0 judged the run, as expected, and the detectors found this and no other violation."""
        self.assertEqual(finished.code, 0, finished.text)
        variant = self.report(path)
        self.assertEqual(variant["verdict"], "as-expected", finished.text)
        found = {finding["pitfall"] for finding in variant["findings"] if finding["severity"] == "violation"}
        self.assertEqual(found, {slug} if slug else set(), finished.text)
        return variant

    def diagnose(self, folder):
        """(exit code, findings) of ./lockstep diagnose, from the traces alone."""
        finished = subprocess.run([BIN.parent / "lockstep-course", "diagnose", "--json", folder], text=True,
                                  capture_output=True, timeout=self.left_s(), env=self.environment(),
                                  stdin=subprocess.DEVNULL)
        self.assertIn(finished.returncode, (0, 1), finished.stderr)
        return finished.returncode, json.loads(finished.stdout)["findings"]

    def end_all(self):
        """Ends what was started; what that has started goes with it, or is found by the mark."""
        for process in reversed(self.processes):
            if process.poll() is None:
                self.stop(process)

    def clean_up(self):
        self.end_all()
        for held in self.held_ports:
            held.close()
        shutil.rmtree(self.folder)


def said(process):
    return process.log.read_text(errors="replace")[-6000:]


def die_with_parent():
    """In a child: a test that is killed at its deadline leaves no daemon."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def require(*programs):
    """Ends the test as skipped where one is missing. Daemons lie where a user's PATH may not look."""
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    for program in programs:
        if shutil.which(program) is None:
            skip(f"{program} is not installed; ./lockstep setup --launchers installs it")


def main():
    """unittest's main. usage: NAME_test.py BIN [unittest's arguments]; BIN holds the built lessons."""
    global BIN
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} BIN   (the folder of the built lessons)")
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(module="__main__", verbosity=2)
