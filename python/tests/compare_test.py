"""`lockstep compare` of jobs recorded by `lockstep watch`: the same job twice, one with another learning rate, and what
cannot be compared.

usage: python3 compare_test.py PACKAGE [-v] [Compare.test_NAME ...]      the folder that holds lockstep_torch
"""

import json
import pathlib
import sys
import tempfile
import unittest

from package import LOCKSTEP, run

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 60
COMPILES_S = 240
UPDATES = 3 * 7  # of job.py


def watch(folder, *arguments, options=()):
    return run([*LOCKSTEP, "watch", "--into", folder, *options, "--", sys.executable, HERE / "start.py", 2,
                HERE / "job.py", *arguments], DEADLINE_S)


def compare(*arguments, **environment):
    return run([*LOCKSTEP, "compare", *arguments], DEADLINE_S, **environment)


def flat(text):
    """Without the breaks that fill lines to 80 columns."""
    return " ".join(text.split())


class Compare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.top = pathlib.Path(folder.name)
        cls.first, cls.again, cls.faster = (cls.top / name for name in ("first", "again", "faster"))
        for where, arguments in ((cls.first, ()), (cls.again, ()), (cls.faster, ("rate-later",))):
            done = watch(where, *arguments)
            assert done.returncode == 0, done.stderr

    def said(self, *arguments):
        done = compare(*arguments, "--json")
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout), done.returncode

    def assert_usage(self, done, *texts):
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def test_the_same_job_twice_is_equal_to_the_bit(self):
        said, code = self.said(self.first, self.again)
        self.assertEqual((code, said["answer"], said["first"]), (0, "equal", None))
        self.assertEqual((said["a"]["ranks"], said["a"]["updates"]), (2, UPDATES))
        self.assertLessEqual({"one-job", "equal-settings", "own-samples", "new-order", "equal-start", "modes",
                              "mean-gradient", "rates", "all-moved", "equal-after"}, self.held(said))
        of_gradients = next(one for one in said["measured"] if one["equation"] == "mean-gradient")["tensors"]
        self.assertEqual({tensor["name"].split()[0] for tensor in of_gradients}, {"local", "reduced"})
        text = compare(self.first, self.again)
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        self.assertIn("A and B are equal to the bit, in all that was compared.", text.stdout)

    def test_gradients_that_the_program_asks_for_are_not_the_backward_s(self):
        done = watch(self.top / "asks", "asks-for-gradients")
        self.assertEqual(done.returncode, 0, done.stderr)
        said, code = self.said(self.first, self.top / "asks")
        self.assertEqual((code, said["answer"]), (0, "equal"), said["first"])

    def test_another_learning_rate_is_named_at_its_step(self):
        """It changes with the second epoch, at whose first update everything before the rate is still the same."""
        said, code = self.said(self.first, self.faster)
        self.assertEqual((code, said["answer"], said["first"]), (1, "different", "rates"))
        line = next(line for line in said["ledger"] if line["equation"] == "rates")
        self.assertEqual((line["step"], line["ranks"], line["broken_by"]), (UPDATES // 3, [0, 1], ["learning rate"]))
        self.assertEqual((line["apart"]["a"], line["apart"]["b"]), ("0.1", "0.2"))
        self.assertEqual(said["agree_until"], UPDATES // 3 - 1)

    def test_a_compiled_model_trains_the_same_but_for_rounding(self):
        for kind in ("eager", "compiled"):
            done = run([*LOCKSTEP, "watch", "--into", self.top / kind, "--", sys.executable, HERE / "start.py", 2,
                        HERE / "eager_or_compiled.py", kind], COMPILES_S)
            self.assertEqual(done.returncode, 0, done.stderr)
        said, code = self.said(self.top / "eager", self.top / "compiled")
        self.assertEqual((code, said["answer"], said["first"]), (0, "rounding", None))
        self.assertLessEqual({"equal-start", "loss-weights", "mean-gradient", "rates", "all-moved", "equal-after"},
                             self.held(said))

    def test_the_advice_is_to_call_this_command(self):
        text = flat(compare(self.first, self.faster).stdout)
        self.assertIn(f"next: lockstep diagnose {self.first} and lockstep diagnose {self.faster} say", text)
        text = flat(compare(self.first, self.faster, LOCKSTEP_COMMAND="/a clone/lockstep").stdout)
        self.assertIn(f"next: '/a clone/lockstep' diagnose {self.first} and", text)

    @staticmethod
    def held(said):
        return {line["equation"] for line in said["ledger"] if line["standing"] == "held"}

    @staticmethod
    def gradients(said):
        """At which steps they were compared."""
        return next(measured for measured in said["measured"] if measured["equation"] == "mean-gradient")

    def test_a_stretch_is_recorded_beside_the_usual_steps(self):
        usual = self.gradients(self.said(self.first, self.again)[0])["steps"]
        self.assertEqual(usual, [0, 1, 2, 3, 4, 8, 16])
        folder = self.top / "closer"
        done = watch(folder, options=("--every", 1, "--from", 10, "--to", 12))
        self.assertEqual(done.returncode, 0, done.stderr)
        measured = self.gradients(self.said(self.first, folder)[0])
        self.assertEqual((measured["steps"], measured["only_a"], measured["only_b"]), (usual, [], [10, 11, 12]))
        # It has all steps of the other: that decides.
        said, code = self.said(folder, self.first)
        self.assertEqual((code, said["answer"]), (0, "equal"))

    def test_runs_recorded_on_different_steps_are_told_what_to_do(self):
        folders = [self.top / f"stretch {first}" for first in (9, 10)]
        for folder in folders:
            first = int(folder.name[-2:])
            done = watch(folder, options=("--every", 2, "--from", first, "--to", first + 3))
            self.assertEqual(done.returncode, 0, done.stderr)
        said, _ = self.said(*folders)
        measured = self.gradients(said)
        self.assertEqual((measured["only_a"], measured["only_b"]), ([], []))  # every 2nd step is an even one in both
        odd = self.top / "every 3rd"
        self.assertEqual(watch(odd, options=("--every", 3, "--from", 9)).returncode, 0)
        done = compare(folders[0], odd)
        self.assertEqual(done.returncode, 3, done.stdout)
        text = flat(done.stdout)
        self.assertIn("mean-gradient was probed on different steps: 10 in A only and 9, 15 and 18 in B only; to "
                      "compare these too, record both runs with the same --every, --from and --to", text)
        self.assertIn("with probes on the same steps: the same --every, --from and --to of lockstep watch.", text)

    def test_wrong_steps_are_refused_before_the_job_starts(self):
        for options, said in ((("--every", "0"), "--every: a whole number from 1 to 2147483647 is wanted, not '0'"),
                              (("--every", "-1"), "--every"),
                              (("--every", "many"), "not 'many'"),
                              (("--every", "1.5"), "not '1.5'"),
                              (("--every", "1", "--from", "x"), "--from: a whole number from 0 to"),
                              (("--every", "1", "--from", "60", "--to", "40"), "--from 60 is after --to 40"),
                              (("--from", "40"), "there is no --every"), (("--to", "40"), "there is no --every")):
            done = run([*LOCKSTEP, "watch", "--into", self.top / "never", *options, "--", "touch",
                        self.top / "started"], DEADLINE_S)
            self.assertEqual(done.returncode, 2, options)
            self.assertIn(said, done.stderr)
        self.assertFalse((self.top / "started").exists())

    def test_a_page_of_two_runs(self):
        file = self.top / "a page.html"
        done = compare(self.first, self.faster, "--html", file)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, compare(self.first, self.faster).stdout)
        self.assertRegex(done.stderr, r"^.*a page\.html: \d\.\d MB\n$")
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        text = file.read_text(encoding="utf-8")
        self.assertIn(f"<strong>A and B agree until step {UPDATES // 3 - 1}, then they differ.</strong>", text)
        done = compare(self.first, self.faster, "--html", file / "below")
        self.assertEqual(done.returncode, 3)
        self.assertIn("lockstep compare: ", done.stderr)

    def test_what_cannot_be_compared(self):
        self.assert_usage(compare(self.first, self.first),
                          f"{self.first} and {self.first} are one folder; name two runs")
        link = self.top / "link"
        link.symlink_to(self.first)
        self.assert_usage(compare(link, self.first), "are one folder")
        self.assert_usage(compare(self.first, self.top / "nowhere"), "there is no folder", "nowhere")
        empty = self.top / "empty"
        empty.mkdir()
        self.assert_usage(compare(empty, self.first), str(empty))
        damaged = self.top / "damaged"
        damaged.mkdir()
        for file in self.first.glob("*.trace"):
            (damaged / file.name).write_bytes(b"X" + file.read_bytes()[1:])
        self.assert_usage(compare(self.first, damaged), "damaged/rank_", "not a trace")
        self.assert_usage(compare(self.first), "required: b")


if __name__ == "__main__":
    unittest.main()
