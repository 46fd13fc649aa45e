"""Exercises from the command line: handed out, hinted at, mended, and not to be cheated. A state folder of their own.

usage: exercise_test.py PROGRAM
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
DEADLINE_S = 150
SLUG = "sum-not-mean"  # of lesson 03, by hand: all_reduce, and no division
REDUCE = "all_reduce(group, parameter.mutable_grad());"


class Home(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-exercise-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / f"{SLUG}.cpp"
        self.progress = self.folder / "state" / "lockstep" / "progress.json"

    def call(self, *arguments):
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        folder = ("--folder", str(self.folder)) if arguments[0] == "exercise" else ()
        return subprocess.run([PROGRAM, *arguments, *folder], capture_output=True, text=True, timeout=DEADLINE_S,
                              stdin=subprocess.DEVNULL, env=environment, cwd=self.folder)

    def start(self):
        result = self.call("exercise", "start", SLUG)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.file.read_text()

    def check(self, text):
        self.file.write_text(text)
        return self.call("exercise", "check", SLUG)


class Exercise(Home):
    def test_what_is_handed_out_has_the_fault_and_not_the_answer(self):
        text = self.start()
        self.assertIn(REDUCE, text)
        self.assertNotIn("/= world_size", text)
        self.assertNotIn("fault(", text)
        self.assertNotIn("times too long", text)  # the comment that stands beside the fault in the lesson
        self.assertIn(f"./lockstep exercise check {SLUG}", text)

    def test_any_pitfall_can_be_started(self):
        pitfalls = re.findall(r"^  ([a-z0-9-]+) ", self.call("explain").stdout, re.MULTILINE)
        self.assertGreaterEqual(len(pitfalls), 100)
        for slug in pitfalls:
            result = self.call("exercise", "start", slug)
            self.assertEqual(result.returncode, 0, result.stderr)
            text = (self.folder / f"{slug}.cpp").read_text()
            self.assertIn(f"./lockstep exercise check {slug}\n", text)
            self.assertNotIn("fault(", text)

    def test_what_was_done_is_never_overwritten(self):
        self.start()
        self.file.write_text("// mine\n")
        again = self.call("exercise", "start", SLUG)
        self.assertEqual(again.returncode, 2)
        self.assertIn("reset", again.stderr)
        self.assertEqual(self.file.read_text(), "// mine\n")
        for number in (1, 2):
            self.file.write_text(f"// mine {number}\n")
            self.assertEqual(self.call("exercise", "reset", SLUG).returncode, 0)
            self.assertIn(REDUCE, self.file.read_text())
            self.assertEqual((self.folder / f"{SLUG}.cpp.old-{number}").read_text(), f"// mine {number}\n")

    def test_what_was_not_touched_is_not_kept(self):
        text = self.start()
        result = self.call("exercise", "reset", SLUG)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("kept", result.stdout)
        self.assertEqual(self.file.read_text(), text)
        self.assertEqual([each.name for each in self.folder.glob(f"{SLUG}*")], [self.file.name])

    def test_a_reset_of_what_was_never_started_says_so(self):
        result = self.call("exercise", "reset", SLUG)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.startswith("It was never started, so there is nothing to reset; it is started now.\n"))
        self.assertIn(REDUCE, self.file.read_text())
        self.assertNotIn("never started", self.call("exercise", "reset", SLUG).stdout)

    def test_no_hint_before_the_start(self):
        result = self.call("exercise", "hint", "03")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn(f"./lockstep exercise start {SLUG}", " ".join(result.stderr.split()))
        self.assertFalse(self.progress.exists())
        self.start()
        self.assertIn("Hint 1 of 3", self.call("exercise", "hint", "03").stdout)

    def test_hints_come_one_by_one(self):
        self.start()
        for number in (1, 2, 3, 3):
            told = self.call("exercise", "hint", "03").stdout
            self.assertEqual(re.findall(r"^Hint (\d) of 3$", told, re.MULTILINE), [str(n + 1) for n in range(number)])

    def test_wrong_use(self):
        for arguments, words in ((("exercise", "start", "no-such-thing"), "no-such-thing"),
                                 (("exercise", "check", SLUG), "exercise start"),
                                 (("exercise",), "subcommand")):
            result = self.call(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(words, " ".join(result.stderr.split()))

    def test_only_what_is_mended_passes(self):
        broken = self.start()
        mended = broken.replace(REDUCE, f"{{\n      {REDUCE}\n      parameter.mutable_grad() /= world_size;\n    }}")
        for text, why in (
                (broken, "expected 1"),
                (broken.replace(REDUCE, ";"), "expected"),  # the collective is gone
                (re.sub(r"kSteps; \+\+step", "0; ++step", broken), ""),  # so is the work
                # And the program no longer tells what they look at.
                (mended.replace("SGD optimizer(", "torch::optim::SGD optimizer("), "no optimizer has told of itself")):
            result = self.check(text)
            self.assertEqual(result.returncode, 1, text + result.stdout + result.stderr)
            self.assertIn("Not yet right", result.stdout)
            self.assertIn(why, re.sub(r"\s+", " ", result.stdout))
        self.assertFalse(self.progress.exists())
        # The right gradient, and a second move beside the optimizer's.
        result = self.check(mended.replace("optimizer.step();", """optimizer.step();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.sub_(kLearningRate * parameter.grad());"""))
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("distance from one process", re.sub(r"\s+", " ", result.stdout))
        self.assertFalse(self.progress.exists())
        # In another way than the lesson: one call for all gradients.
        flat = broken.replace(f"for (auto& parameter : model->parameters()) {REDUCE}", """
    auto all = flat_gradients(*model);
    all_reduce(group, all);
    all /= world_size;
    std::int64_t at = 0;
    for (auto& parameter : model->parameters()) {
      parameter.mutable_grad().copy_(all.narrow(0, at, parameter.numel()).view_as(parameter));
      at += parameter.numel();
    }""")
        self.assertNotEqual(flat, broken)
        result = self.check(flat)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("Right", result.stdout)
        told = result.stderr.splitlines()
        self.assertEqual([line.split(":")[0] for line in told], ["build 1 of 1"] + [f"step {n} of 3" for n in (1, 2, 3)])
        self.assertRegex(told[2], r"^step 2 of 3: running your code: 2 ranks, seed \d+, about \d+ s left$")
        lesson = json.loads(self.progress.read_text())["lessons"]["03_ddp"]
        self.assertRegex(lesson["passed"], r"^\d{4}-\d\d-\d\d$")
        self.assertRegex(self.call("list").stdout, r"03_ddp +done")

    def test_every_rank_has_a_line_of_its_own(self):
        text = self.start().replace(REDUCE, 'throw Error("rank " + std::to_string(context.rank()) + " gives up");')
        result = self.check(text)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"(?m)^Not yet right\.\n  on 2 ranks, seed \d+: it did not complete: crash\n"
                         r"    first: rank (\d) raised: rank \1 gives up\n    rank (?!\1)\d .*\nA hint: ")

    def test_an_error_is_at_the_line_of_the_exercise(self):
        lines = self.start().splitlines()
        line = next(i for i, text in enumerate(lines) if REDUCE in text)
        lines[line] = "    this is no C++;"
        result = self.check("\n".join(lines))
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{SLUG}.cpp:{line + 1}:", result.stdout)


class Progress(Home):
    def write(self, text):
        self.progress.parent.mkdir(parents=True)
        self.progress.write_text(text)

    def test_expires_where_the_lesson_is_another(self):
        self.write(json.dumps({"schema_version": 1, "lessons": {
            "03_ddp": {"sources": "0" * 16, "ran": "2026-01-01", "passed": "2026-01-01", "hints": {}}}}))
        self.assertRegex(self.call("list").stdout, r"03_ddp +changed since")

    def test_what_cannot_be_read_is_put_aside(self):
        self.write("{ torn")
        result = self.call("list")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("unreadable-1", result.stderr)
        self.assertEqual((self.progress.parent / "progress.json.unreadable-1").read_text(), "{ torn")

    def test_what_a_newer_program_wrote_is_left_alone(self):
        text = json.dumps({"schema_version": 99, "anything": True})
        self.write(text)
        self.start()
        result = self.call("exercise", "hint", SLUG)
        self.assertIn("newer", result.stderr)
        self.assertIn("Hint 1 of 3", result.stdout)
        self.assertEqual(self.progress.read_text(), text)

    def test_there_may_be_no_place_for_it(self):
        (self.folder / "state").write_text("a file")
        result = self.call("list")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.start()
        result = self.call("exercise", "hint", SLUG)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Hint 1 of 3", result.stdout)
        self.assertIn("not kept", result.stderr)


class Interruption(Home):
    def test_ctrl_c_is_no_verdict(self):
        self.call("exercise", "start", SLUG)
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        check = subprocess.Popen([PROGRAM, "exercise", "check", SLUG, "--folder", str(self.folder)], env=environment,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True)
        try:
            self.assertRegex(check.stderr.readline(), "^build 1 of 1: 03_ddp$")
            os.killpg(check.pid, signal.SIGINT)
            told, _ = check.communicate(timeout=DEADLINE_S)
        finally:
            if check.poll() is None:
                os.killpg(check.pid, signal.SIGKILL)
        self.assertNotIn("right", told.lower())
        self.assertIn(check.returncode, (130, -signal.SIGINT))


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
