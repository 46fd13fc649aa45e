"""The rules, on outputs made by hand. Needs no torch. Run: python3 evaluation/pytorch_means/rules_test.py"""

import json
import pathlib
import re
import unittest

import report
import rules
import vocabulary

LESSONS = pathlib.Path(__file__).resolve().parents[2] / "lessons"
TRACEBACK = '''Traceback (most recent call last):
  File "/somewhere/09_hanging_collective/python/collectives.py", line 57, in main
    dist.all_reduce(shapes)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
'''


def run(rank_0="", rank_1="", launcher="", ended=(0, 0), means="plain", **more):
    return {"broken": True, "means": means, "in_time": True, "ended": list(ended), "fr_trace": None,
            "texts": {"0": rank_0, "1": rank_1, "launcher": launcher}, "losses": [], "metrics": [], **more}


RIGHT = run()
EITHER = (frozenset({0}), frozenset({1}), frozenset({0, 1}))


class Messages(unittest.TestCase):
    def word(self, broken, slug, ranks=(), plain=None, correct=RIGHT):
        return rules.judge_broken(broken, plain or broken, correct, slug, ranks).word

    def test_nothing_said_is_silent(self):
        self.assertEqual(self.word(RIGHT, "sum-not-mean"), "silent")

    def test_an_error_that_names_the_fault_the_rank_and_the_place_is_exact(self):
        said = run(rank_0=TRACEBACK + "RuntimeError: shapes differ: rank 1 has [8]", ended=(1, 1))
        self.assertEqual(self.word(said, "shape-mismatch", EITHER), "exact")
        self.assertEqual(self.word(said, "shape-mismatch", (frozenset({0}),)), "named")
        nowhere = run(rank_0="RuntimeError: shapes differ: rank 1 has [8]", ended=(1, 1))
        self.assertEqual(self.word(nowhere, "shape-mismatch", EITHER), "named")

    def test_a_message_without_a_rank_counts_for_who_said_it(self):
        said = run(rank_1=TRACEBACK + "ValueError: a damaged sample", ended=(1, 1))
        self.assertEqual(self.word(said, "one-rank-raises", (frozenset({1}),)), "exact")
        self.assertEqual(self.word(said, "one-rank-raises", (frozenset({0}),)), "named")

    def test_our_own_words_in_a_traceback_name_nothing(self):
        said = run(rank_0=TRACEBACK + "RuntimeError: Connection closed by peer", ended=(1, 0))
        self.assertEqual(self.word(said, "shape-mismatch", EITHER), "noticed")
        stack = "Not all\nshape_mismatch at /09_hanging_collective/python/shape_mismatch.py:57\n"
        self.assertEqual(self.word(run(means="flight", fr_trace=stack), "shape-mismatch", EITHER), "silent")

    def test_what_the_correct_variant_says_too_names_nothing(self):
        line = "UserWarning: shapes are 7 and 8"
        self.assertEqual(self.word(run(line), "shape-mismatch", correct=run(line.replace("8", "9"))), "silent")
        self.assertEqual(self.word(run(line), "shape-mismatch"), "named")
        self.assertEqual(self.word(run("UserWarning: odd"), "shape-mismatch"), "noticed")

    def test_a_deadline_is_noticed(self):
        self.assertEqual(self.word(run(in_time=False, ended=(0, 0)), "slow-rank"), "noticed")

    def test_a_crash_of_the_means_is_an_error(self):
        crashed = run(ended=(-11, -11), means="detail")
        self.assertEqual(self.word(crashed, "sum-not-mean", plain=RIGHT), "error")
        self.assertEqual(self.word(crashed, "sum-not-mean", plain=run(ended=(-11, 1))), "noticed")
        self.assertEqual(self.word(run(ended=(1, -15)), "sum-not-mean", plain=RIGHT), "noticed")
        self.assertEqual(rules.judge_correct({**crashed, "broken": False}, RIGHT).word, "error")

    def test_a_correct_variant(self):
        self.assertEqual(rules.judge_correct(RIGHT, RIGHT).word, "clean")
        failed = run(rank_0="RuntimeError: no", ended=(1, 0))
        self.assertEqual(rules.judge_correct(failed, RIGHT), rules.Verdict("false alarm", "RuntimeError: no"))

    def test_the_flight_recorder(self):
        def flight(text, ended=(1, 1)):
            return run(rank_0="shapes differ: rank 1", ended=ended, means="flight", fr_trace=text)
        missing = "Not all ranks joining collective, sequence number: 21\nmissing ranks: {1}\n"
        self.assertEqual(self.word(flight(missing), "local-early-stop", (frozenset({1}),)), "exact")
        self.assertEqual(self.word(flight(""), "shape-mismatch"), "silent")  # only fr_trace counts
        self.assertEqual(self.word(flight(None), "shape-mismatch"), "not triggered")
        self.assertEqual(self.word(flight("AssertionError: x\nfr_trace failed"), "shape-mismatch"), "error")
        self.assertEqual(rules.judge_correct(flight(missing, (0, 0)), RIGHT).word, "false alarm")
        self.assertEqual(rules.judge_correct(flight("No errors found", (0, 0)), RIGHT).word, "clean")

    def test_ranks_in_words(self):
        for line, ranks in (("[Rank 0]: Ranks 1 failed to pass", {1}), ("missing ranks: {0, 1}", {0, 1}),
                            ("process 1 terminated with signal SIGKILL", {1}), ("dumps from ranks ({1})", {1}),
                            ("no such thing as 3", set()),
                            ("Error: [Rank 0]: Ranks 1 failed to pass", {1}),
                            ("Rank 1 successfully reached it, but waits for rank 0. Check rank 0", {0}),
                            ("[rank1]: RuntimeError", set())):
            self.assertEqual(rules.ranks_of(line), ranks, line)

    def test_every_twin_has_words(self):
        truths = json.loads((LESSONS / "python" / "truths.json").read_text(encoding="utf-8"))
        self.assertEqual(sorted(truths), sorted(vocabulary.WORDS))

    def test_every_fault_is_switched_in_one_place_of_its_program(self):
        truths = json.loads((LESSONS / "python" / "truths.json").read_text(encoding="utf-8"))
        programs = {path.stem: path.read_text(encoding="utf-8") for path in LESSONS.glob("*/python/*.py")}
        switched = [(slug, name) for name, text in programs.items() for slug in re.findall(r'fault\("([a-z0-9-]+)"\)', text)]
        self.assertEqual(sorted(switched), sorted((slug, truth["program"]) for slug, truth in truths.items()))
        for name in {truth["program"] for truth in truths.values()}:
            self.assertNotIn("lockstep", programs[name].lower())


class Curves(unittest.TestCase):
    FALLING = [2.0 - 0.1 * i for i in range(16)]

    def references(self, values=(0, 0.01, -0.01, 0.02, -0.02)):
        return [run(losses=[[loss + more for loss in self.FALLING]] * 2) for more in values]

    def word(self, losses, **more):
        return rules.judge_curve(run(losses=losses, **more), self.references()).word

    def test_within_the_spread(self):
        self.assertEqual(self.word([self.FALLING] * 2), "silent")
        self.assertEqual(self.word([self.FALLING] * 2, broken=False), "clean")

    def test_outside_of_the_spread(self):
        away = [loss + 0.06 for loss in self.FALLING]  # the interval's half width is 2.776 * 0.0158 * sqrt(1.2) = 0.048
        self.assertEqual(self.word([away] * 2), "noticed")
        self.assertEqual(self.word([away] * 2, broken=False), "false alarm")
        self.assertEqual(self.word([self.FALLING, away]), "silent")  # the ranks' mean is watched: 0.03

    def test_rising_or_no_number(self):
        self.assertIn("rises", rules.judge_curve(run(losses=[self.FALLING[::-1]]), self.references()).evidence)
        self.assertIn("not a number", rules.judge_curve(run(losses=[[*self.FALLING, float("nan")]]),
                                                        self.references()).evidence)

    def test_too_short_to_be_a_curve(self):
        self.assertEqual(self.word([self.FALLING[:7]]), "not triggered")
        self.assertEqual(self.word([]), "not triggered")

    def test_a_metric_is_watched_too(self):
        references = [{**one, "metrics": [[], [0.7 + more]]} for one, more in
                      zip(self.references(), (0, 0.01, -0.01, 0.02, -0.02))]
        for metric, word in ((0.71, "silent"), (0.35, "noticed")):
            seen = run(losses=[self.FALLING], metrics=[[], [metric]])
            self.assertEqual(rules.judge_curve(seen, references).word, word)


class Report(unittest.TestCase):
    def test_the_best_of_several(self):
        self.assertEqual(rules.best(["silent", "error", "named", "noticed"]), "named")
        self.assertEqual(rules.best(["error", "not triggered"]), "error")

    def test_evidence_tells_nothing_of_the_machine(self):
        said = report.evidence(rules.Verdict("exact", "[/some/where/gloo/pair.cc:538] Read error"))
        self.assertEqual(said, "[pair.cc:538] Read error")
        self.assertEqual(len(report.evidence(rules.Verdict("exact", "x" * 500))), report.LONGEST)


if __name__ == "__main__":
    unittest.main()
