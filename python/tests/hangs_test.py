"""Jobs that hang (hangs.py) under `lockstep watch --timeout`: each is ended, with nothing left, and says which rank
does not do what the others wait for, and at which line each rank is.

usage: python3 hangs_test.py PACKAGE [-v] [Hangs.test_NAME ...]      the folder that holds lockstep_torch
"""

import json
import pathlib
import sys
import tempfile
import unittest

from package import FOLDER, LOCKSTEP, run

sys.path.insert(0, str(FOLDER))

from lockstep_torch import processes

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 90
TIMEOUT_S = 5
WAITS = "mse_loss(model(inputs), targets).backward()"
# What is named, on which ranks; and what stands in the lines where the ranks are.
HANGS = {
    "a rank is frozen": ("no-progress", [1], {WAITS}),  # it cannot be asked
    "a rank computes for ever": ("no-progress", [1], {WAITS, "time.sleep(0.01)"}),
    "a worker is stuck": ("no-progress", [1], {WAITS, "in enumerate(loader)"}),
    "one rank calls a collective": ("rank-conditional-collective", [0], {WAITS, "dist.broadcast("}),
    "a rank stops early": ("no-progress", [1], {WAITS, "time.sleep(10_000)"}),  # what it does may be of the training
    "a rank has fewer batches": ("uneven-batches", [0, 1], {WAITS, "time.sleep(10_000)"}),
}


class Hangs(unittest.TestCase):
    def check(self, how):
        pitfall, ranks, lines = HANGS[how]
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as traces:
            done = run([*LOCKSTEP, "watch", "--into", traces, "--timeout", TIMEOUT_S, "--",
                        sys.executable, HERE / "start.py", 2, HERE / "hangs.py", how], DEADLINE_S)
            self.assertEqual(done.returncode, 124, done.stderr)
            found = json.loads(run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S).stdout)["findings"]
            pids = {processes.head(file, processes.PID_AT) for file in processes.traces(pathlib.Path(traces))}
        self.assertEqual([(one["pitfall"], one["ranks"]) for one in found if one["severity"] == "violation"],
                         [(pitfall, ranks)], done.stderr)
        self.assertEqual({words for words in lines for place in found[0]["places"] if words in place["source"]}, lines,
                         found[0]["places"])
        self.assertEqual([pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()], [])


def test_of(how):
    return lambda self: self.check(how)


for _how in HANGS:
    setattr(Hangs, f"test_{_how}".replace(" ", "_"), test_of(_how))

if __name__ == "__main__":
    unittest.main()
