"""evaluation/silence_cost: the statistics on numbers made by hand, and small trainings of the program.

usage: silence_cost_test.py PROGRAM
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "evaluation" / "silence_cost"))
sys.dont_write_bytecode = True
import silence_cost  # noqa: E402

PROGRAM = None
DEADLINE_S = 100
SMALL = ("--samples", "256", "--epochs", "1")


def run(variant, seed, *measured):
    return {"setting": "one", "variant": variant, "seed": seed, "measured": list(measured)}


class Statistics(unittest.TestCase):
    def test_interval_is_students(self):
        # Mean 2, standard error 1 / sqrt(3), and t of two degrees of freedom is 4.3027.
        summary = silence_cost.summary([1, 2, 3])
        self.assertAlmostEqual(summary["mean"], 2)
        self.assertAlmostEqual(summary["high_95"] - 2, 4.302653 / 3 ** 0.5, places=5)
        self.assertAlmostEqual(2 - summary["low_95"], 4.302653 / 3 ** 0.5, places=5)
        # t = 2 sqrt(3): two-sided 0.0742.
        self.assertAlmostEqual(summary["p"], 0.074180, places=5)

    def test_equal_values_have_an_interval_of_no_width(self):
        self.assertEqual(silence_cost.summary([0, 0, 0])["p"], 1)
        self.assertEqual(silence_cost.summary([-5, -5, -5])["p"], 0)
        self.assertEqual(silence_cost.summary([-5, -5, -5])["low_95"], -5)

    def test_holm_steps_down_and_never_falls(self):
        for given, corrected in (([0.02, 0.01, 0.5], [0.04, 0.03, 0.5]), ([0.01, 0.011], [0.02, 0.02]), ([], [])):
            self.assertEqual([round(p, 12) for p in silence_cost.holm(given)], corrected)

    def test_pairs_by_seed_and_rank_zero(self):
        runs = [run("correct", 0, 0.8, 0.8), run("correct", 1, 0.6, 0.6), run("correct", 2, 0.7, 0.7),
                run("a-fault", 1, 0.5, 0.1), run("a-fault", 0, 0.71, 0.1), run("a-fault", 2, 0.59, 0.1)]
        row, = silence_cost.rows_of(runs)
        self.assertAlmostEqual(row["mean"], -10)
        self.assertAlmostEqual(row["worst_rank"], -60)
        self.assertEqual(row["verdict"], "costs")

    def test_says_when_nothing_is_measurable_and_when_it_helps(self):
        right = [run("correct", seed, 0.7) for seed in range(3)]
        same = right + [run("f", seed, 0.7 + d) for seed, d in enumerate((-0.01, 0.01, 0.005))]
        better = right + [run("f", seed, 0.8 + d) for seed, d in enumerate((-0.01, 0.01, 0.005))]
        self.assertEqual(silence_cost.rows_of(same)[0]["verdict"], "no measurable effect")
        self.assertEqual(silence_cost.rows_of(better)[0]["verdict"], "helps")


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-silence-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def runs(self, *options):
        file = self.folder / "runs.jsonl"
        done = subprocess.run([PROGRAM, file, *SMALL, *options], capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in file.read_text().splitlines()]

    def test_a_run_is_the_same_alone_and_among_others(self):
        among = self.runs("--settings", "wrapper,resume,augmentation", "--seeds", "0,1",
                          "--variants", "correct,double-average,optimizer-state-missing,worker-streams-copied")
        self.assertEqual(len(among), 12)
        for setting, variant in (("resume", "correct"), ("resume", "optimizer-state-missing"),
                              ("augmentation", "worker-streams-copied")):
            alone, = self.runs("--settings", setting, "--seeds", "1", "--variants", variant)
            self.assertIn(alone, among)

    def test_script_writes_figures_and_table(self):
        out = self.folder / "cost.json"
        done = subprocess.run([sys.executable, ROOT / "evaluation" / "silence_cost" / "silence_cost.py", PROGRAM, *SMALL, "--seeds", "2",
                               "--settings", "wrapper,evaluation", "--out", out, "--variants",
                               "correct,optimizer-built-on-other-parameters,local-hits-global-count"],
                              capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = silence_cost.one_by_one(json.loads(out.read_text())["runs"])
        rows = {row["pitfall"]: row for row in silence_cost.rows_of(runs)}
        # Untrained, a model of ten classes is right about once in ten; and two ranks' hits are shared by two.
        untrained = rows["optimizer-built-on-other-parameters"]
        self.assertLess(untrained["correct"] + untrained["mean"], 25)
        half = rows["local-hits-global-count"]
        self.assertLess(half["mean"], -0.3 * half["correct"])
        self.assertIn("| local-hits-global-count |", out.with_suffix(".md").read_text())

    def test_every_silent_fault_is_measured_or_has_a_reason(self):
        listed = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        slugs = [line.split()[1] for line in listed.stdout.splitlines()]
        self.assertEqual(len(slugs), len(set(slugs)))
        self.assertFalse(set(slugs) & set(silence_cost.NOT_MEASURED))
        self.assertLessEqual(silence_cost.REPORTED | set(silence_cost.NOTES), set(slugs))
        self.assertLessEqual(set(slugs), {page.stem for page in ROOT.glob("lessons/*/pitfalls/*.md")})

    def test_unknown_names_are_refused(self):
        for option in ("--settings", "--variants"):
            done = subprocess.run([PROGRAM, self.folder / "x", option, "no-such"], capture_output=True, text=True,
                                  timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 2)
            self.assertIn('"no-such"', done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
