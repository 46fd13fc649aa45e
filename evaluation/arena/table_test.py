"""Contestants on three cases, for real: the table from the corpus to the score; and the oracles on the same cases.

usage: table_test.py BUILD      (skipped with 77 where the package is not built, or this Python has no torch)
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "support")]
sys.dont_write_bytecode = True
import corpus  # noqa: E402
import nothing_left  # noqa: E402

BUILD = None
DEADLINE_S = 300  # on two idle cores it takes a minute
CASES = {"gradients-not-zeroed", "shape-mismatch", "right-classifier"}
ONLY = ("always_nothing", "plain", "detail", "lockstep_0", "lockstep_2", "traincheck")


class Table(nothing_left.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="lockstep-arena-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.corpus = self.folder / "corpus"
        chosen = [case for case in corpus.public() if case.truth["name"] in CASES and case.truth["set"] == "lessons"]
        corpus.write(self.corpus, corpus.files_of(chosen, "public"))

    def call(self, script, *arguments):
        return subprocess.run([sys.executable, "-B", HERE / script, *map(str, arguments)], capture_output=True, text=True,
                              timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                              env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")})

    def table(self, *more):
        out = self.folder / "out.json"
        done = self.call("table.py", self.corpus, self.folder / "runs", "--build", BUILD, "--sample", "2,1", "--out", out,
                         "--only", ",".join(ONLY), *more)
        return done, json.loads(out.read_text()) if out.exists() else None

    def test_three_cases(self):
        done, result = self.table("--seconds", 0)
        self.assertEqual((done.returncode, result), (5, None))
        self.assertIn(f"{len(CASES) * len(ONLY)} runs are left", done.stderr)
        done, result = self.table()
        self.assertEqual(done.returncode, 0, done.stderr)
        verdicts = {one["name"]: one["verdicts"] for one in result["cases"].values()}
        placed = "noticed, ranks and step right"
        self.assertEqual(verdicts["shape-mismatch"], {"always_nothing": "silent", "plain": placed, "detail": "named",
                                                      "lockstep_0": "named", "lockstep_2": "named"})
        self.assertEqual(verdicts["gradients-not-zeroed"], {"always_nothing": "silent", "plain": "silent", "detail": "error",
                                                            "lockstep_0": "silent", "lockstep_2": "named"})
        self.assertEqual(verdicts["right-classifier"], {**dict.fromkeys(verdicts["shape-mismatch"], "clean"), "detail": "error"})
        rows = result["contestants"]
        self.assertEqual(rows["detail"]["errors"], 2)  # it crashes under DDP on Gloo
        self.assertEqual(rows["traincheck"]["state"], "not run")
        self.assertIn("name it by --venv", rows["traincheck"]["reason"])
        kept = sorted((self.folder / "runs" / "findings").rglob("*.json"))
        times = [path.stat().st_mtime_ns for path in kept]
        self.table()  # runs nothing again
        self.assertEqual([path.stat().st_mtime_ns for path in kept], times)

    def test_the_oracles_hold(self):
        done = self.call("prove.py", self.corpus)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("3 of 3 truths hold", done.stdout)
        proofs = json.loads((self.corpus / "proofs.json").read_text())
        [right] = [one.id for one in corpus.public() if one.truth["name"] == "right-classifier"]
        self.assertEqual(proofs[right], {"holds": True, "figures": {"ended": True, "parameters": True}})

    def test_what_cannot_be_asked_for_is_named(self):
        done, _ = self.table("--only", "no-such")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no contestant no-such; there are: always_nothing", done.stderr)
        done = self.call("table.py", self.folder / "nowhere", self.folder / "runs", "--build", BUILD)
        self.assertEqual(done.returncode, 3)
        self.assertIn("manifest.json is not there; CORPUS is what corpus.py made", done.stderr)
        done = self.call("prove.py", self.corpus, "0123456789")
        self.assertEqual(done.returncode, 3)
        self.assertIn("has no case 0123456789; name ids of its cases/", done.stderr)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if importlib.util.find_spec("torch") is None or not list((BUILD / "python").glob("lockstep_torch/_extension*.so")):
        print("skipped: this Python has no torch, or the package is not built")
        sys.exit(77)
    unittest.main(verbosity=2)
