"""Mutants, a few of each kind: each of the oracle's checks fails for the changes that it is for and for no harmless one,
and what is found is what the change is. The whole library runs in the full tier (mutants.py).

Run: python3 mutants_test.py BUILD   (needs the targets mutant and lockstep-course)
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import mutants  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None


def run(program, operator, world_size=2):
    """(the checks that fail, the oracle's label, the pitfalls found) of one mutant."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "mutant"
        done = subprocess.run([BUILD / "evaluation" / "mutant", "run", program, operator, "--folder", target, "--world-size",
                               str(world_size)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=mutants.DEADLINE)
        assert done.returncode == 0, done.stderr
        verdict = json.loads(done.stdout)
        told = subprocess.run([BUILD / "lockstep-course", "diagnose", target, "--json"], capture_output=True, text=True,
                              timeout=60)
        assert told.returncode in (0, 1), told.stderr
        findings = json.loads(told.stdout)["findings"]
        return set(verdict["failed"]), verdict["label"], {finding["pitfall"] for finding in findings}


class Changes(unittest.TestCase):
    """operator on program: the checks that must be among those that fail, and what must be found."""

    def check(self, program, operator, fails, label, world_size=2):
        failed, told, found = run(program, operator, world_size)
        self.assertEqual(told, label)
        if fails is None:
            self.assertEqual((failed, found), (set(), set()))
        else:
            self.assertIn(fails, failed)
            self.assertTrue(label in found or mutants.is_alike(label, found), f"{label} not in {found}")

    def test_programs_as_they_are_train_right(self):
        for program in ("pictures", "letters", "codes"):
            self.check(program, "as-it-is", None, "", world_size=3)

    def test_a_gradient_that_is_summed(self):
        self.check("pictures", "summed", "gradient", "sum-not-mean")

    def test_a_replica_that_changes(self):
        self.check("letters", "one-number-changed-on-one-rank", "replicas", "replicas-diverged")

    def test_an_optimizer_of_other_parameters(self):
        self.check("pictures", "optimizer-of-copies", "update", "optimizer-built-on-other-parameters")

    def test_samples_drawn_by_all(self):
        self.check("codes", "every-rank-reads-all", "samples", "no-sharding")

    def test_samples_drawn_in_one_order(self):
        self.check("letters", "epoch-not-told", "samples", "missing-set-epoch")

    def test_data_that_differ(self):
        self.check("codes", "data-of-each-rank", "contents", "dataset-unseeded")

    def test_noise_that_is_the_same(self):
        self.check("pictures", "noise-of-rank-zero-everywhere", "contents", "same-augmentation-everywhere")

    def test_a_score_of_the_wrong_count(self):
        self.check("letters", "score-by-all-samples", "score", "local-hits-global-count")

    def test_a_rank_that_throws(self):
        self.check("codes", "one-rank-throws", "ended", "one-rank-raises")

    def test_what_must_stay_silent(self):
        for program, operator in (("pictures", "buckets-of-any-size"), ("letters", "reduced-in-reverse"),
                                  ("codes", "uneven-shares-weighted"), ("pictures", "dropout")):
            self.check(program, operator, None, "")


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        listed = subprocess.run([BUILD / "evaluation" / "mutant", "list"], capture_output=True, check=True, timeout=30)
        cls.operators = json.loads(listed.stdout)["operators"]

    def test_names_are_unique_and_fit_some_program(self):
        names = [one["name"] for one in self.operators]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual([], [one["name"] for one in self.operators if not one["programs"]])

    def test_about_half_is_held_out_and_for_ever(self):
        first = [one for one in self.operators if one["half"] in ("known", "held_out")]
        held_out = {one["name"] for one in first if one["half"] == "held_out"}
        self.assertTrue(0.35 < len(held_out) / len(first) < 0.65)
        # By the hash of the name: whoever changes that moves operators between the halves.
        self.assertLessEqual({"summed", "maximum-for-sum", "sharded-again"}, held_out)
        self.assertTrue(held_out.isdisjoint({"not-zeroed", "every-rank-reads-all", "as-it-is"}))


class Summary(unittest.TestCase):
    """On a hand-made half."""

    def run_of(self, name, word, found=(), kind="fault"):
        return {"name": f"{name}.2.0", "kind": kind, "verdict": word, "findings": [{"pitfall": one} for one in found]}

    def test_counts(self):
        runs = [self.run_of("a", "exact", ["sum-not-mean"]), self.run_of("b", "noticed", ["update-differs"]),
                self.run_of("c", "silent"), self.run_of("d", "noticed, ranks and step right", ["no-progress"]),
                self.run_of("e", "false alarm", ["no-sharding"], "benign"), self.run_of("f", "clean", kind="benign"),
                self.run_of("g", "clean", kind="benign")]
        def verdict(fault, label, failed):
            return {"fault": fault, "label": label, "failed": dict.fromkeys(failed, "")}
        verdicts = {"a.2": verdict("sum-not-mean", "sum-not-mean", ["gradient"]),
                    "b.2": verdict("replicas-diverged", "replicas-diverged", ["replicas"]),
                    "c.2": verdict("double-average", "double-average", ["gradient"]),
                    "d.2": verdict("slow-rank", "slow-rank", ["ended"]), "e.2": verdict("", "", []),
                    "f.2": verdict("summed", "", []), "g.2": verdict("", "unexpected", ["score"])}
        told = mutants.summary(runs, verdicts)
        self.assertEqual([(told[key]["successes"], told[key]["trials"]) for key in ("named", "named_or_alike", "noticed")],
                         [(1, 4), (2, 4), (3, 4)])
        self.assertEqual([one["mutant"] for one in told["silent"]], ["c.2.0"])
        self.assertEqual([one["mutant"] for one in told["named_otherwise"]], ["b.2.0", "d.2.0"])
        self.assertEqual([one["mutant"] for one in told["alarms"]], ["e.2.0"])
        self.assertEqual(told["equivalent"], ["f.2.0"])
        self.assertEqual(told["not_benign"], ["g.2"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
