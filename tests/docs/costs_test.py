"""What docs/costs.md says of the committed measurement is so; and the measurement itself adds up.

usage: costs_test.py
"""

import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
MEASURED = json.loads((ROOT / "reports" / "results" / "step_costs.json").read_text())
PARTS = ("forward", "backward", "waiting", "update")


def cases(question):
    return [case for case in MEASURED["cases"] if case["question"] == question]


class Costs(unittest.TestCase):
    def test_the_parts_of_a_step_are_the_step(self):
        for case in MEASURED["cases"]:
            for ddp in case["ddp"]:
                parts = sum(ddp[part]["median"] for part in PARTS)
                self.assertLess(abs(parts - ddp["step"]["median"]), 0.2 * ddp["step"]["median"], case["model"])
                self.assertLessEqual(ddp["reducing"]["median"], ddp["backward"]["high"] + ddp["waiting"]["high"])

    def test_all_cases_are_there(self):
        self.assertEqual(sorted((case["model"], case["ranks"]) for case in cases("ranks")),
                         sorted((model, ranks) for model in ("convolutions", "small MLP", "large MLP") for ranks in (1, 2, 4)))
        for case in cases("buckets"):
            self.assertEqual([ddp["buckets"] for ddp in case["ddp"]], sorted((ddp["buckets"] for ddp in case["ddp"]), reverse=True))
            self.assertEqual(case["ddp"][-1]["buckets"], 1)

    def test_an_all_reduce_over_the_link_takes_what_its_bytes_take(self):
        over_link = [case for case in MEASURED["cases"] if case["link_megabytes_a_second"]]
        self.assertEqual({case["ranks"] for case in over_link}, {2})
        for case in over_link:
            milliseconds = 1e3 * case["gradient_megabytes"] / case["link_megabytes_a_second"]
            self.assertTrue(1 <= case["all_reduce"]["median"] / milliseconds < 1.1, case["all_reduce"])

    def test_a_step_of_four_ranks_on_two_processors_takes_longer_than_one_of_two(self):
        self.assertEqual(MEASURED["processors"], 2)
        ddp = {(case["model"], case["ranks"]): case["ddp"][0] for case in cases("ranks")}
        for model in {model for model, _ in ddp}:
            self.assertGreater(ddp[model, 4]["step"]["median"], 1.4 * ddp[model, 2]["step"]["median"], model)
            self.assertLess(ddp[model, 4]["speedup"]["high"], MEASURED["processors"], model)

    def test_more_ranks_are_slower_than_one_where_there_is_little_to_compute(self):
        for case in cases("ranks"):
            if case["model"] == "small MLP" and case["ranks"] > 1:
                self.assertLess(case["ddp"][0]["speedup"]["high"], 1)

    def test_over_a_link_many_buckets_hide_most_and_one_hides_nothing(self):
        [case] = [case for case in cases("buckets") if case["link_megabytes_a_second"]]
        hidden = [ddp["hidden"]["median"] for ddp in case["ddp"]]
        self.assertEqual(hidden, sorted(hidden, reverse=True))
        self.assertGreater(case["ddp"][0]["hidden"]["low"], 0.5)
        self.assertEqual(case["ddp"][-1]["hidden"]["high"], 0)
        self.assertGreater(case["ddp"][-1]["waiting"]["low"], 2 * case["ddp"][0]["waiting"]["high"])

    def test_larger_batches_hide_the_all_reduce_as_the_rule_says(self):
        batches = cases("batches")
        self.assertLess(batches[0]["ddp"][0]["speedup"]["high"], 1)
        to_no_sync = [case["ddp"][0]["to_no_sync"]["median"] for case in batches]
        self.assertEqual(to_no_sync, sorted(to_no_sync, reverse=True))
        self.assertGreater(to_no_sync[0], 2)
        self.assertLess(to_no_sync[-1], 1.25)
        bound = [case["all_reduce"]["median"] / case["no_sync"]["step"]["median"] for case in batches]
        self.assertEqual(bound, sorted(bound, reverse=True))
        self.assertGreater(bound[0], 1)
        self.assertLess(bound[-1], 0.5)
        for case in batches:
            to_rule = case["ddp"][0]["to_rule"]["median"]
            self.assertTrue(0.9 < to_rule < 1.15, to_rule)


if __name__ == "__main__":
    unittest.main(verbosity=2)
