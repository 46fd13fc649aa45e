"""Lessons and exercises in Python: ./lockstep run LESSON --python, ./lockstep exercise VERB SLUG --python.

usage: in_python_test.py PACKAGE      (the folder that holds the built lockstep_torch)
"""

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


def call(script, *arguments):
    return subprocess.run([sys.executable, SCRIPTS / f"{script}.py", *arguments], capture_output=True, text=True,
                          timeout=DEADLINE_S, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": PACKAGE})


class Run(unittest.TestCase):
    def test_both_variants_are_judged_and_diagnosed(self):
        result = call("run", "5", "--variant", SLUG, "--python")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        broken, right = result.stdout.split("  right: ")
        self.assertIn("not as it must be: parameters", broken)
        self.assertIn(f"found: {SLUG}, ranks 0, 1: ", broken)
        self.assertRegex(broken, r"shards\.py:\d+: for inputs, targets in loader:")
        self.assertIn("all is as it must be", right)
        self.assertIn("found: nothing", right)
        self.assertEqual([line for line in result.stdout.splitlines() if len(line) > 80], [])

    def test_wrong_use(self):
        for arguments, words in ((["99"], 'no lesson "99"'), (["02"], "has no program in Python"),
                                 (["05", "--variant", "no-sharding"], "there are: epoch-differs-by-rank, epoch-set-after-prefetch")):
            result = call("run", *arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(words, " ".join(result.stderr.split()))


class Exercise(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-in-python-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / f"{SLUG}.py"

    def call(self, verb, *arguments):
        return call("exercise", verb, *(arguments or [SLUG]), "--folder", str(self.folder))

    def test_only_what_is_mended_passes(self):
        self.assertEqual(self.call("start", "05").returncode, 0)  # the pitfall that the lesson's page names
        broken = self.file.read_text()
        for word in ("fault(", "set_epoch(", "oracle"):
            self.assertNotIn(word, broken)
        loop = "    for epoch in range(EPOCHS):\n"
        mended = broken.replace(loop, f"{loop}        sampler.set_epoch(epoch)\n")
        late = broken.replace(loop, f"{loop}        sampler.set_epoch(epoch + 1)\n")
        without_notes = re.sub(r"^    note\(.*$", "", mended, flags=re.MULTILINE)
        for text, code, words in ((broken, 1, f"found: {SLUG}"), (late, 1, "parameters is not as it must be"),
                                  (without_notes, 1, "note(...) is gone"), (mended, 0, "Right: ")):
            self.file.write_text(text)
            result = self.call("check")
            self.assertEqual(result.returncode, code, result.stdout + result.stderr)
            self.assertIn(words, " ".join(result.stdout.split()))

    def test_what_was_done_is_kept(self):
        self.call("start")
        self.file.write_text("# mine\n")
        again = self.call("start")
        self.assertEqual((again.returncode, self.file.read_text()), (2, "# mine\n"))
        self.assertIn("reset", again.stderr)
        self.assertEqual(self.call("reset").returncode, 0)
        self.assertEqual((self.folder / f"{SLUG}.py.old-1").read_text(), "# mine\n")
        self.assertIn("range(EPOCHS)", self.file.read_text())

    def test_hints_come_one_by_one(self):
        self.assertEqual(self.call("hint").returncode, 2)
        self.call("start")
        for number in (1, 2, 3, 3):
            told = self.call("hint").stdout
            self.assertEqual(re.findall(r"^Hint (\d) of 3$", told, re.MULTILINE), [str(n + 1) for n in range(number)])

    def test_a_pitfall_without_a_program_is_refused(self):
        result = self.call("start", "wrong-stream")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("has no program in Python", result.stderr)


if __name__ == "__main__":
    PACKAGE = sys.argv.pop(1)
    unittest.main(verbosity=2)
