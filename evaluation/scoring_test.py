"""The scorer on truths and findings made by hand; and every truth of the sets fits the schema: scoring_test.py"""

import json
import pathlib
import sys
import unittest

import jsonschema
import same_findings
import scoring

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "sets"))
import edits  # noqa: E402

FAULT = {"kind": "fault", "names": ["a", "b"], "ranks": [1], "step": 4}


def finding(pitfall="a", ranks=(1,), step=4, severity="violation", **more):
    return {"pitfall": pitfall, "severity": severity, "ranks": list(ranks), "step": step, **more}


def read(*path):
    return json.loads(HERE.joinpath(*path).read_text(encoding="utf-8"))


class Verdicts(unittest.TestCase):
    def expect(self, word, *findings, state="answered", **more):
        self.assertEqual(scoring.verdict(scoring.Truth.of({**FAULT, **more}), findings, state), word, findings)

    def test_exact_is_the_name_the_ranks_and_the_step_and_no_other_violation(self):
        self.expect("exact", finding())
        self.expect("exact", finding("b", severity="advice"))
        self.expect("exact", finding(), finding("c", severity="advice"))
        self.expect("exact", finding(), finding("b", ranks=[0]))  # one of its names, as well
        self.expect("exact", finding(ranks=[2, 1]), ranks=[1, 2])
        self.expect("named", finding(ranks=[0]))
        self.expect("named", finding(step=6))
        self.expect("named", finding(), finding("c"))

    def test_what_the_truth_does_not_say_is_not_asked(self):
        self.expect("exact", finding(ranks=[0, 7]), ranks=None)
        self.expect("exact", finding(step=99), step=None)
        self.expect("exact", finding(ranks=[0, 1]), either=True)
        self.expect("named", finding(ranks=[0, 1]))

    def test_other_names_notice_it(self):
        placed = "noticed, ranks and step right"
        self.expect(placed, finding("c"))
        self.expect(placed, finding("c", step=5))
        self.expect(placed, finding("c", step=9, after=3))  # it was looked at after step 3, and then after step 9
        self.expect("noticed", finding("c", step=9, after=5))  # at step 5 it did not show yet
        self.expect("noticed", finding("c", step=6))
        self.expect("noticed", finding("c", step=None))
        self.expect("noticed", finding("c", ranks=[0]))
        self.expect("noticed", finding("c", ranks=[]), ranks=None)
        self.expect("silent", finding("c", severity="advice"))
        self.expect("silent")

    def test_a_checker_without_our_names_is_known_by_its_words(self):
        self.expect("exact", finding(None, text="RuntimeError: Shapes differ"), words=["shapes differ"])
        for other in (finding(None, text="RuntimeError"), finding("c", text="shapes differ")):
            self.expect("noticed, ranks and step right", other, words=["shapes differ"])

    def test_steps_may_be_as_far_off_as_the_set_says(self):
        strict = scoring.Truth.of(FAULT, before=0, behind=0)
        self.assertEqual([scoring.verdict(strict, [finding(step=step)]) for step in (3, 4, 5)],
                         ["named", "exact", "named"])

    def test_a_truth_may_hang_on_the_number_of_ranks(self):
        truth = {**FAULT, "ranks": {"2": [0, 1], "4": [3]}, "step": {"2": 8, "4": 4}}
        self.assertEqual(scoring.verdict(scoring.Truth.of(truth, 4), [finding(ranks=[3])]), "exact")
        every = scoring.Truth.of({**FAULT, "ranks": "all"}, 3)
        self.assertEqual(scoring.verdict(every, [finding(ranks=[0, 1, 2])]), "exact")

    def test_of_a_right_run_only_violations_are_alarms(self):
        right = scoring.Truth.of({"kind": "benign"})
        for findings, word in (([], "clean"), ([finding(severity="advice")], "clean"), ([finding()], "false alarm")):
            self.assertEqual(scoring.verdict(right, findings), word)
        self.assertEqual(scoring.verdict(right, [], "not triggered"), "not triggered")

    def test_what_was_not_looked_at_is_no_pass(self):
        for state in ("not triggered", "error", "skipped"):
            self.expect(state, state=state)
        self.expect("noticed", finding("c", ranks=[0]), state="not triggered")
        self.expect("not applicable", finding(), applicable=False)
        wrong = [word for word in scoring.VERDICTS if scoring.is_wrong(True, word)]
        self.assertEqual(wrong, [*scoring.FAULT[1:], "false alarm", "not triggered", "error"])
        self.assertFalse(scoring.is_wrong(False, "not triggered"))


class Totals(unittest.TestCase):
    def test_shares_have_wilsons_interval(self):
        # Of 10 of 10 the low end is 1 / (1 + z^2 / 10), of 0 of 300 the high end 1 - 1 / (1 + z^2 / 300).
        for of, low, high in (((10, 10), 0.722467, 1), ((0, 300), 0, 0.012643), ((45, 50), 0.786398, 0.956524)):
            one = scoring.share(*of)
            self.assertEqual((round(one["low"], 6), round(one["high"], 6)), (low, high))
        self.assertEqual(scoring.share(0, 0)["high"], None)

    def test_an_error_is_a_failure_and_what_was_not_asked_is_none(self):
        words = ["exact", "named", "noticed", "noticed, ranks and step right", "silent", "not triggered", "error",
                 "not applicable", "skipped"]
        right = ["clean", "false alarm", "not triggered", "error"]
        totals = scoring.totals([(True, word) for word in words] + [(False, word) for word in right])
        self.assertEqual([(totals[key]["successes"], totals[key]["trials"])
                          for key in ("exact", "named", "noticed", "false_alarms")], [(1, 7), (2, 7), (4, 7), (1, 2)])
        self.assertEqual(sum(totals["verdicts"].values()), 13)
        self.assertEqual(totals["verdicts"]["error"], 2)

    def test_of_nothing_nothing_is_known(self):
        totals = scoring.totals([])
        self.assertEqual((totals["exact"]["value"], totals["verdicts"]), (None, {}))
        self.assertEqual(scoring.share_text(totals["exact"]), "-")


class Truths(unittest.TestCase):
    def test_every_set_has_one_format(self):
        schema = json.loads((HERE.parent / "reports/schema/truth.schema.json").read_text(encoding="utf-8"))
        valid = jsonschema.Draft202012Validator(schema)
        settings = [read(name, "truths.json") for name in ("silence_cost", "gestures")]
        truths = [edit["truth"] for language in ("python", "cpp")
                  for edit in edits.read(HERE / "sets/eighth" / language).values()]
        truths += [truth for name in ("threads", "pairs") for truth in read(name, "truths.json").values()]
        truths += [truth for of in settings for variants in of.values() for truth in variants.values()]
        self.assertGreater(len(truths), 300)
        for truth in truths:
            valid.validate(truth)
            scoring.Truth.of(truth)
        for bad in ({"kind": "fault"}, {"kind": "maybe"}, {**FAULT, "rank": 1}, {**FAULT, "ranks": {"two": [1]}},
                    {**FAULT, "step": "4"}):
            self.assertFalse(valid.is_valid(bad), bad)


class SameFindings(unittest.TestCase):
    def test_the_last_findings_of_each_program_are_compared(self):
        runs = {"x": {"verdict": "exact", "found": [finding(step=3)]}, "y": {"found": []}}
        found = same_findings.findings_of({"first": {"runs": runs}, "later": {"runs": {"x": {"found": [finding()]}}}})
        self.assertEqual(found, {"x": [("a", "violation", [1], "4")], "y": []})

    def test_results_of_the_old_shape_are_read(self):
        old = {"later": {"right": {"p": {"found": []}}, "broken": {"s": {"found": [finding()]}}, "score": {"all": {}}}}
        self.assertEqual(same_findings.findings_of(old), {"right-p": [], "s": [("a", "violation", [1], "4")]})


if __name__ == "__main__":
    unittest.main(verbosity=1)
