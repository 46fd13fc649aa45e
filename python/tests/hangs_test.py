"""Jobs that hang (hangs.py) under `lockstep watch --timeout S`: each is ended, with nothing left, S + 2 s after its
last progress. It is said which rank does not do what the others wait for, and at which line each rank is.

usage: python3 hangs_test.py PACKAGE [-v] [Hangs.test_NAME ...]      the folder that holds lockstep_torch
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from package import FOLDER, LOCKSTEP, environment, run

sys.path.insert(0, str(FOLDER))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))

import nothing_left

from lockstep_torch import processes

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 90
TIMEOUT_S = 5
WAITS = "mse_loss(model(inputs), targets).backward()"
# What is named, on which ranks; and what stands in the lines where the ranks are.
HANGS = {
    "a rank is frozen": ("no-progress", [1], {WAITS}),  # it cannot be asked
    "a rank computes for ever": ("no-progress", [1], {WAITS, "time.sleep(0.01)"}),
    "a helper has forked twice": ("no-progress", [1], {WAITS, "time.sleep(0.01)"}),
    "a rank takes no signal": ("no-progress", [1], {WAITS}),  # it can neither be asked nor told to end
    "a worker is stuck": ("no-progress", [1], {WAITS, "in enumerate(loader)", ": time.sleep(10_000)"}),
    "one rank calls a collective": ("rank-conditional-collective", [0], {WAITS, "dist.broadcast("}),
    "a rank stops early": ("no-progress", [1], {WAITS, "time.sleep(10_000)"}),  # what it does may be of the training
    "a rank has fewer batches": ("uneven-batches", [0, 1], {WAITS, "time.sleep(10_000)"}),
}


def is_there(pid):
    """And is no process that has ended, and that nobody has asked about."""
    return processes.status_of(pid)[:1] not in ([], ["Z"])


def recorded(traces):
    """How much of the ranks' traces is written, how many collectives were entered, and who writes them."""
    heads = [processes.head(file) for file in processes.traces(traces)]
    return sum(its.length for its in heads), sum(its.entered for its in heads), {its.pid for its in heads}


def time_to_end(job, traces):
    """From the ranks' last progress until nothing of the job is there, seen from outside every 10 ms. What a rank
    writes behind a stall is of its end."""
    seen, begun, moved, everybody = 0, False, time.monotonic(), set()
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        everybody.update(processes.descendants(job.pid))
        try:
            length, entered, ranks = recorded(traces)
        except (OSError, struct.error):
            continue  # a trace is being made
        if length != seen and (not begun or time.monotonic() - moved < TIMEOUT_S):
            seen, begun, moved = length, entered > 0, time.monotonic()
        if len(ranks) == 2 and not any(map(is_there, everybody)):
            return time.monotonic() - moved, everybody
        time.sleep(0.01)
    return DEADLINE_S, everybody


class Hangs(nothing_left.TestCase):
    def setUp(self):
        super().setUp()
        # What processes that are killed leave there is not the test's.
        temporary = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(temporary.cleanup)
        self.environment = environment(TMPDIR=temporary.name)

    def started(self, how, traces):
        command = [*LOCKSTEP, "watch", "--into", traces, "--timeout", str(TIMEOUT_S), "--",
                   sys.executable, HERE / "start.py", "2", HERE / "hangs.py", how]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)

    def watched(self, how, traces):
        job = self.started(how, traces)
        took, everybody = time_to_end(job, pathlib.Path(traces))
        said, _ = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 124, said)
        # Nothing starts meanwhile: it is the time that is promised.
        self.assertGreater(took, TIMEOUT_S - 0.1, said)
        self.assertLess(took, TIMEOUT_S + 2, said)
        self.assertGreaterEqual(len(everybody), 3)  # start.py and its ranks
        return said, everybody

    def check(self, how):
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as traces:
            said, pids = self.watched(how, traces)
            self.assert_found(how, traces, said)
        self.assertEqual([pid for pid in pids if is_there(pid)], [])

    def test_one_that_is_ended_from_outside_has_its_lines(self):
        # One signal is sent to `watch`, the other one by a terminal, to all of its foreground.
        for number, send, how in ((signal.SIGTERM, os.kill, "a rank computes for ever"),
                                  (signal.SIGINT, os.killpg, "a rank computes for ever"),
                                  (signal.SIGINT, os.killpg, "one rank calls a collective")):
            with self.subTest(f"{number.name}, {how}"), tempfile.TemporaryDirectory(prefix="lockstep-test-") as name:
                traces = pathlib.Path(name)
                command = [*LOCKSTEP, "watch", "--into", traces, "--", sys.executable, "-m", "torch.distributed.run",
                           "--standalone", "--nproc-per-node", "2", HERE / "hangs.py", how]
                job = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, start_new_session=True)
                until = time.monotonic() + DEADLINE_S
                moved, last = time.monotonic(), 0
                while time.monotonic() < until and (last == 0 or time.monotonic() - moved < TIMEOUT_S):
                    with contextlib.suppress(OSError, struct.error):  # a trace is being made
                        if (entered := recorded(traces)[1]) != last:
                            moved, last = time.monotonic(), entered
                send(job.pid, number)
                said, _ = job.communicate(timeout=DEADLINE_S)
                self.assert_found(how, traces, said)

    def test_who_does_not_end_after_the_training_is_said(self):
        line = f"at {HERE / 'hangs.py'}:"
        for how, *threads in (("a thread does not end", f"a thread that runs never_ends {line}",
                               "the main thread at /"),
                              ("its last function does not end", f"the main thread {line}")):
            with self.subTest(how), tempfile.TemporaryDirectory(prefix="lockstep-test-") as traces:
                job = self.started(how, traces)
                said, _ = job.communicate(timeout=DEADLINE_S)
                self.assertEqual(job.returncode, 124, said)
                told = re.findall(r"^lockstep: rank 1, process \d+, was still there: (.*)$", said, re.MULTILINE)
                self.assertEqual([each[:len(thread)] for each, thread in zip(told, threads, strict=True)], threads)
                self.assertIn("time.sleep(10_000)  # for ever", told[0])
                self.assertIn("What must hold", said)
                self.assertNotIn("BROKEN", said)

    def assert_found(self, how, traces, said):
        pitfall, ranks, lines = HANGS[how]
        found = json.loads(run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S).stdout)["findings"]
        self.assertEqual([(one["pitfall"], one["ranks"]) for one in found if one["severity"] == "violation"],
                         [(pitfall, ranks)], said)
        self.assertEqual({words for words in lines for place in found[0]["places"] if words in place["source"]}, lines,
                         found[0]["places"])


def test_of(how):
    return lambda self: self.check(how)


for _how in HANGS:
    setattr(Hangs, f"test_{_how}".replace(" ", "_"), test_of(_how))

if __name__ == "__main__":
    unittest.main()
