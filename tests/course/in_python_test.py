"""Lessons and exercises in Python, by runs: ./lockstep run LESSON --python, ./lockstep exercise check SLUG --python.

usage: in_python_test.py PACKAGE      (the folder that holds the built lockstep_torch)
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "lessons" / "python"
PACKAGE = None
SLUG = "missing-set-epoch"
DEADLINE_S = 300
LOOP = "    for epoch in range(EPOCHS):\n"
NOTE = re.compile(r"^    note\((.*)\)$", re.MULTILINE)


class Course(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-in-python-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, script, *arguments, **more):
        return subprocess.run([sys.executable, SCRIPTS / f"{script}.py", *arguments], capture_output=True, text=True,
                              timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PYTHONPATH": PACKAGE, "XDG_STATE_HOME": str(self.folder), **more})

    def progress(self):
        file = self.folder / "lockstep" / "progress.json"
        return json.loads(file.read_text())["lessons"] if file.exists() else {}


class Run(Course):
    def test_both_variants_are_judged_and_diagnosed(self):
        result = self.call("run", "5", "--variant", SLUG, "--world-size", "3", "--python")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        broken, right = result.stdout.split("\n  correct: ")
        self.assertIn("observed: otherwise: parameters", broken)
        self.assertIn(f"found: {SLUG}, ranks 0, 1, 2: ", broken)
        self.assertRegex(broken, r"\n      lessons/05_set_epoch/python/shards\.py:\d+: for inputs, targets in")
        self.assertIn("observed: so it is", right)
        self.assertIn("found: nothing", right)
        sums = [re.findall(r"rank \d: parameters: 193 numbers, their sum ([\d.]+)", part) for part in (broken, right)]
        self.assertEqual([len(part) for part in sums], [3, 3])
        self.assertNotEqual(sums[0][0], sums[1][0])
        self.assertRegex(right, r"(?s)\nWhy\n.*\nThe fix\n.*\n\+ +sampler\.set_epoch\(epoch\)\n.*\nExercise\n")
        self.assertEqual([line for line in result.stdout.splitlines() if len(line) > 80], [])

    def test_what_cannot_run_on_so_many_ranks_is_skipped(self):
        result = self.call("run", "09", "--variant", "rank-skips-init", "--world-size", "3")
        self.assertEqual(result.returncode, 77, result.stdout + result.stderr)
        self.assertIn("skipped: rank-skips-init, correct: groups.py runs on 2 ranks only", " ".join(result.stdout.split()))


class Exercise(Course):
    def check(self, text):
        (self.folder / f"{SLUG}.py").write_text(text)
        return self.call("exercise", "check", SLUG, "--folder", str(self.folder))

    def broken(self):
        self.assertEqual(self.call("exercise", "start", SLUG, "--folder", str(self.folder)).returncode, 0)
        return (self.folder / f"{SLUG}.py").read_text()

    def test_what_is_mended_passes_and_counts(self):
        result = self.check(self.broken().replace(LOOP, f"{LOOP}        sampler.set_epoch(epoch)\n"))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("Right: the oracle holds, the detectors find nothing, and no work was left out.", result.stdout)
        self.assertRegex(result.stderr, r"(?s)step 2 of 4: yours on 2 ranks, seed \d+ .*step 4 of 4: yours on 3 ranks, seed \d+ ")
        done = self.progress()["05_set_epoch"]
        self.assertEqual((list(done["mended"]), done["passed"]), ([SLUG], done["mended"][SLUG]))

    def test_what_is_not_mended_fails(self):
        broken = self.broken()
        mended = broken.replace(LOOP, f"{LOOP}        sampler.set_epoch(epoch)\n")
        late = broken.replace(LOOP, f"{LOOP}        sampler.set_epoch(epoch + 1)\n")
        for text, words in ((broken, f"found: {SLUG}"), (late, "not as it must be: parameters"),
                            (NOTE.sub("", mended), "note(...) is gone")):
            result = self.check(text)
            self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
            self.assertIn(words, " ".join(result.stdout.split()))
        self.assertEqual(self.progress(), {})

    def test_figures_that_are_written_down_fail(self):
        """Those that the right program has with the seeds that stand in it."""
        notes = self.folder / "notes"
        notes.mkdir()
        mended = self.broken().replace(LOOP, f"{LOOP}        sampler.set_epoch(epoch)\n")
        (self.folder / "right.py").write_text(mended)
        start = SCRIPTS.parents[1] / "python" / "tests" / "start.py"
        done = subprocess.run([sys.executable, start, "2", self.folder / "right.py", self.folder], text=True,
                              capture_output=True, timeout=DEADLINE_S,
                              env={**os.environ, "PYTHONPATH": str(SCRIPTS), "TWIN_NOTES": str(notes)})
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads((notes / "0.json").read_text())["parameters"]
        result = self.check(NOTE.sub(f"    note(parameters={figures})", mended))
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("not as it must be: parameters", " ".join(result.stdout.split()))

    def test_work_that_is_left_out_is_missed(self):
        """The ranks compute the oracle's figures, and do not train."""
        oracle = (ROOT / "lessons/05_set_epoch/python/shards.py").read_text()
        steps = re.search(r"    for parts in steps.*?(?=    return)", oracle, re.DOTALL)[0]
        broken = self.broken()
        begin, end = broken.index(LOOP), broken.index("    note(")
        alone = ("    from oracles import joint, steps\n    model = network()\n    optimizer = torch.optim.SGD(model.parameters(), lr=LR)\n"
                 + steps)
        result = self.check(broken[:begin] + alone + broken[end:])
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertRegex(" ".join(result.stdout.split()), r"draws of a sample, and 128 are to be made|found: ")


if __name__ == "__main__":
    PACKAGE = sys.argv.pop(1)
    unittest.main(verbosity=2)
