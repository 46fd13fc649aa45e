"""The five steps of ./lockstep start: each prints what its page says, in C++ and in Python.

usage: start_test.py PROGRAMS Start|InPython      (the folder of the built steps)
"""

import pathlib
import re
import subprocess
import sys
import unittest

PROGRAMS = None
RUN = pathlib.Path(__file__).resolve().parents[2] / "lessons" / "start" / "run.py"
DEADLINE_S = 120
COLUMNS = 80
ONE_DEVICE = ["1.195393", "1.011628", "0.840385"]
ALONE = [["1.205034", "1.017066", "0.848681"], ["1.189215", "1.008605", "0.837182"]]  # of two ranks that share nothing
LOSSES = {1: [ONE_DEVICE], 2: [ONE_DEVICE] * 2, 3: ALONE, 4: [ONE_DEVICE] * 2, 5: [ONE_DEVICE] * 2}


def start(*arguments):
    return subprocess.run([sys.executable, RUN, "--programs", PROGRAMS, *arguments], capture_output=True, text=True,
                          timeout=DEADLINE_S, stdin=subprocess.DEVNULL)


class Start(unittest.TestCase):
    language = ()

    def assert_losses(self, text, wanted, digits):
        """Those that ranks have printed after the prompt, a line each."""
        said = re.findall(r"^(?:rank (\d), )?epoch (\d): loss (\d\.\d{6})$", text.split("\n$ ")[1].split("\n\n")[0],
                          re.MULTILINE)
        found = [[loss for rank, _, loss in sorted(said) if int(rank or 0) == number] for number in range(len(wanted))]
        self.assertEqual(len(said), 3 * len(wanted), text)
        for own, right in zip(found, wanted):
            for one, other in zip(own, right):
                self.assertAlmostEqual(float(one), float(other), places=digits)

    def test_each_step(self):
        for step, losses in LOSSES.items():
            with self.subTest(step=step):
                result = start(str(step), *self.language)
                self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
                self.assertTrue(result.stdout.startswith(f"Step {step}: "))
                self.assert_losses(result.stdout, losses, 5)
                self.assertIn({1: "optimizer.step()", 2: "init_process_group", 3: "share", 4: "all_reduce",
                               5: "DistributedDataParallel"}[step], result.stdout.split("\n$ ")[0])
                self.assertEqual([line for line in result.stdout.splitlines() if len(line) > COLUMNS], [])

    def test_four_ranks_equal_one_device(self):
        result = start("5", "--world-size", "4", *self.language)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_losses(result.stdout, [ONE_DEVICE] * 4, 4)

    def test_wrong_use(self):
        for arguments in (["6"], ["--world-size", "3"], ["--no-such"]):
            result = start(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn("error: ", result.stderr)


class InPython(Start):
    language = ("--python",)


if __name__ == "__main__":
    PROGRAMS = sys.argv.pop(1)
    unittest.main(verbosity=2)
