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
UPDATES = 3 * 7  # of job.py


def watch(folder, *arguments):
    return run([*LOCKSTEP, "watch", "--into", folder, "--", sys.executable, HERE / "start.py", 2, HERE / "job.py",
                *arguments], DEADLINE_S)


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
        compared = {aspect["aspect"] for aspect in said["aspects"] if aspect["steps"]}
        self.assertLessEqual({"configuration", "data", "initial", "loss", "local_gradients", "reduced_gradients",
                              "hyper_parameters", "update"}, compared)
        text = compare(self.first, self.again)
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        self.assertIn("A and B are equal to the bit, in all that was compared.", text.stdout)

    def test_another_learning_rate_is_named_at_its_step(self):
        """It changes with the second epoch, at whose first update everything before the rate is still the same."""
        said, code = self.said(self.first, self.faster)
        self.assertEqual((code, said["answer"], said["first"]), (1, "different", "hyper_parameters"))
        first = next(aspect["first"] for aspect in said["aspects"] if aspect["aspect"] == "hyper_parameters")
        self.assertEqual((first["step"], first["ranks"], first["what"]), (UPDATES // 3, [0, 1], "learning rate"))
        self.assertEqual((first["a"], first["b"]), ("0.1", "0.2"))
        self.assertEqual(said["agree_until"], UPDATES // 3 - 1)

    def test_the_advice_is_to_call_this_command(self):
        text = flat(compare(self.first, self.faster).stdout)
        self.assertIn(f"next: lockstep diagnose {self.first} and lockstep diagnose {self.faster} say", text)
        text = flat(compare(self.first, self.faster, LOCKSTEP_COMMAND="/a clone/lockstep").stdout)
        self.assertIn(f"next: '/a clone/lockstep' diagnose {self.first} and", text)

    def test_what_cannot_be_compared(self):
        self.assert_usage(compare(self.first, self.first), f"{self.first} and {self.first} are one folder; name two runs")
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
        self.assert_usage(compare(self.first, damaged), "rank_0.trace")
        self.assert_usage(compare(self.first), "required: b")


if __name__ == "__main__":
    unittest.main()
