"""A C++ job under `lockstep watch`: what links lockstep::record is recorded and named as a Python job is.

usage: python3 cpp_test.py PACKAGE PROGRAM HANG     the folder that holds lockstep_torch; gestures; cpp_hang
"""

import json
import pathlib
import sys
import tempfile
import unittest
from typing import Any

from package import LOCKSTEP, run

DEADLINE_S = 120
TIMEOUT_S = 5
HERE = pathlib.Path(__file__).resolve().parent
PROGRAM, HANG = sys.argv.pop(1), sys.argv.pop(1)


class CppJob(unittest.TestCase):
    def watch(self, variant: str) -> tuple[int, str, list[dict[str, Any]]]:
        """Exit code, what was said, and the lines that rank 1 wrote."""
        with tempfile.TemporaryDirectory(prefix="lockstep test ") as folder:
            done = run([*LOCKSTEP, "watch", "--into", f"{folder}/traces", "--fail-on-finding", "--", PROGRAM,
                        f"{folder}/accuracy", "--variants", variant], DEADLINE_S)
            self.assertTrue(pathlib.Path(folder, "accuracy").exists(), done.stderr)
            text = pathlib.Path(folder, "traces", "places_1.jsonl").read_text(encoding="utf-8")
        return done.returncode, done.stderr, [json.loads(line) for line in text.splitlines()]

    def test_a_fault_is_named_with_its_line(self) -> None:
        code, said, _ = self.watch("rate-differs-on-one-rank")
        self.assertIn("violation: update-differs", said)
        self.assertRegex(said, r"train\.cpp:\d+: optimizer\.step\(\);")
        self.assertEqual(code, 1, said)

    def test_a_right_job_has_no_violation(self) -> None:
        code, said, lines = self.watch("correct")
        self.assertNotIn("violation", said)
        self.assertEqual(code, 0, said)
        # Its loader begins the passes.
        kinds = ["backward", "checkpoint", "collective", "update", "wrapping"]
        self.assertEqual({(line["kind"], pathlib.Path(line["file"]).parent.name) for line in lines},
                         {(kind, "gestures") for kind in kinds}, lines)

    def test_where_each_rank_of_a_hang_is(self) -> None:
        with tempfile.TemporaryDirectory(prefix="lockstep test ") as folder:
            done = run([*LOCKSTEP, "watch", "--into", f"{folder}/traces", "--timeout", TIMEOUT_S, "--",
                        sys.executable, HERE / "start.py", 2, HANG], DEADLINE_S)
            self.assertEqual(done.returncode, 124, done.stderr)
            said = json.loads(run([*LOCKSTEP, "diagnose", "--json", f"{folder}/traces"], DEADLINE_S).stdout)
        places = {(tuple(place["ranks"]), place["source"]) for place in said["findings"][0]["places"]}
        self.assertEqual(places, {((0,), "lockstep::broadcast(*group, sum);"),
                                  ((1,), "lockstep::all_reduce(*group, sum);")}, done.stderr)


if __name__ == "__main__":
    unittest.main()
