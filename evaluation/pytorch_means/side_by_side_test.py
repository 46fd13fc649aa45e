"""The script as a user runs it, on a few twins, for real: what each variant gives under which of PyTorch's means.

usage: side_by_side_test.py      (Python needs torch; skipped with 77 without)
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
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import nothing_left  # noqa: E402

SCRIPT = HERE / "side_by_side.py"
SCHEMA = ROOT / "reports" / "schema" / "side_by_side.schema.json"
MEASURED = ROOT / "reports" / "results" / "side_by_side.json"
DEADLINE_S = 100  # of a call; on two idle cores it takes 10 s


def validate(file):
    return subprocess.run([sys.executable, ROOT / "tests" / "support" / "validate.py", SCHEMA, file],
                          capture_output=True, text=True, timeout=30)


class SideBySide(nothing_left.TestCase):
    maxDiff = None

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="lockstep-side-by-side-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, *arguments):
        return subprocess.run([sys.executable, "-B", SCRIPT, *map(str, arguments)], capture_output=True, text=True,
                              timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                              env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")})

    def cells(self, *slugs):
        """{slug: {checker: (broken, correct)}}, without our own column: there is nothing in `nowhere`."""
        out = self.folder / "out.json"
        result = self.call("--only", ",".join(slugs), "--ours", self.folder / "nowhere", "--out", out,
                           "--cache", self.folder / "cache", "--markdown", self.folder / "table.md")
        self.assertEqual(result.returncode, 0, result.stderr)
        checked = validate(out)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        self.assertEqual((self.folder / "table.md").read_text(), result.stdout)
        cases = json.loads(out.read_text())["cases"]
        return {case["slug"]: {name: (variants["broken"]["verdict"], variants["correct"]["verdict"])
                               for name, variants in case["cells"].items()} for case in cases}

    def test_a_few_twins(self):
        got = self.cells("no-gradient-sync", "dtype-mismatch", "one-rank-raises")
        silent, mismatch, raises = (got[slug] for slug in ("no-gradient-sync", "dtype-mismatch", "one-rank-raises"))
        self.assertEqual(silent["plain"], ("silent", "clean"))
        self.assertEqual(silent["barrier"], ("silent", "clean"))
        self.assertEqual(silent["flight"][0], "not triggered")  # it has no collectives
        self.assertEqual(silent["lockstep"], ("skipped", "skipped"))
        self.assertEqual(mismatch["plain"], ("silent", "clean"))
        self.assertEqual(mismatch["detail"], ("exact", "error"))  # it crashes under DDP on Gloo
        self.assertEqual(mismatch["flight"], ("exact", "clean"))
        self.assertEqual(raises["plain"], ("exact", "clean"))
        self.assertEqual(len(list((self.folder / "cache").iterdir())), 3 * (5 * 2 + 5))
        # What has been run is not run again, and judged the same.
        self.assertEqual(self.cells("dtype-mismatch")["dtype-mismatch"], mismatch)

    def test_an_unknown_slug_is_named(self):
        result = self.call("--only", "no-such-thing")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("there is no twin of no-such-thing", result.stderr)


class Measured(unittest.TestCase):
    def test_the_committed_table_fits_its_schema(self):
        checked = validate(MEASURED)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        table = json.loads(MEASURED.read_text())
        self.assertGreaterEqual(len(table["cases"]), 25)
        self.assertTrue(all(case["proved"] for case in table["cases"]))


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: this Python has no torch")
        sys.exit(77)
    unittest.main(verbosity=2)
