"""What the report draws of a run, and which pictures show its fault. No browser.

Run by the Python of the project's environment: pictures_test.py
"""

import pathlib
import sys
import unittest

import made_up

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "reports" / "html"))
import charts  # noqa: E402
import distance  # noqa: E402
import losses  # noqa: E402
import owners  # noqa: E402
import pictures  # noqa: E402
import timeline  # noqa: E402

CALLS = ["allgather", "broadcast", "allreduce", "allreduce", "barrier"]


def drew(*passes, samples=6, every=1):
    return [{"phase": "train", "epoch": epoch, "samples": samples, "every": every, "ranks": ranks}
            for epoch, ranks in enumerate(passes)]


def called(*ranks, first=None, truncated=False):
    """Each rank's operations; a "!" says that the call failed, a "?" that it never returned."""
    calls = [{"rank": rank, "sequence": number, "op": operation.strip("!?"), "group": "0", "entered_s": number / 100,
              "left_s": None if "?" in operation else number / 100 + 0.001,
              **({"failed": True} if "!" in operation else {})}
             for rank, operations in enumerate(ranks) for number, operation in enumerate(operations, 1)]
    difference = first and {"group": "0", "sequence": first, "ranks": [1]}
    return {"calls": calls, "truncated": truncated, "first_difference": difference}


def apart(*distances):
    return [{"step": step, "distance": value} for step, value in enumerate(distances, -1)]


def run(kind="broken", outcome="completed", divergence=(), timeline=None, owners=()):
    picture = {"divergence": list(divergence), "tolerance": 1e-6, "timeline": timeline or called(),
               "owners": list(owners)}
    return made_up.variant(kind, kind, outcome=outcome, pictures=picture)


class Owners(unittest.TestCase):
    def rows(self, ranks=([0, 1, 4], [1, 2]), **more):
        passes = drew(list(ranks), **more)
        return owners.rows_of(passes[0], owners.known(passes))

    def test_rows(self):
        self.assertEqual(self.rows(), [[0, 1, "rank 0", 1], [1, 2, "several ranks", 2], [2, 3, "rank 1", 1],
                                       [3, 4, "no rank", 0], [4, 5, "rank 0", 1], [5, 6, "no rank", 0]])

    def test_neighbours_are_one_row(self):
        self.assertEqual(self.rows(([0, 1, 2], [5, 4, 3])), [[0, 3, "rank 0", 1], [3, 6, "rank 1", 1]])

    def test_of_every_third_sample_it_is_not_known_what_no_rank_drew(self):
        self.assertEqual(self.rows(([9, 0], [3]), every=3, samples=12),
                         [[0, 3, "rank 0", 1], [3, 9, "rank 1", 1], [9, 12, "rank 0", 1]])

    def test_but_for_what_was_drawn_in_the_other_pass(self):
        passes = drew([[0], [3]], [[6], [3]], every=3)
        self.assertEqual(owners.rows_of(passes[0], owners.known(passes)),
                         [[0, 3, "rank 0", 1], [3, 6, "rank 1", 1], [6, 9, "no rank", 0]])

    def test_no_samples(self):
        self.assertEqual(self.rows(([], []), samples=0), [])
        self.assertEqual(owners.of(run(owners=drew([[], []]))), [])

    def test_an_epoch_that_comes_again(self):
        passes = drew([[0], [1]], [[0], [1]])
        passes[1]["epoch"] = 0
        self.assertEqual(owners.lanes(passes), ["epoch 0", "epoch 0 again"])


class Differ(unittest.TestCase):
    """Which pictures lead, by what a broken run holds and the correct one does not."""
    halves = [[0, 2, 4], [1, 3, 5]]
    other = [[5, 4, 0], [3, 1, 2]]

    def lead(self, broken, correct=None):
        return [kind.KIND for kind in pictures.that_differ(broken, correct)]

    def of_owners(self, *passes, right=(halves, other), **more):
        return self.lead(run(owners=drew(*passes, **more)), run("correct", owners=drew(*right)))

    def test_who_drew_what(self):
        self.assertEqual(self.of_owners(self.halves, self.other), [])
        self.assertEqual(self.of_owners([[4, 0, 2], [1, 3, 5]], self.other), [], "another order is no fault")
        self.assertEqual(self.of_owners(self.halves, self.halves), ["owners"], "the second epoch repeats the first")
        self.assertEqual(self.of_owners(self.halves, [ids[:2] for ids in self.halves]), ["owners"], "as far as it went")
        self.assertEqual(self.of_owners(self.halves, self.halves, right=(self.halves, self.halves)), [],
                         "so does the correct one's")
        self.assertEqual(self.of_owners([[0, 1, 2], [2, 3, 4]], self.other), ["owners"], "a sample of two ranks")
        self.assertEqual(self.of_owners([[0, 2], [1, 3, 5]], self.other), ["owners"], "a sample of no rank")

    def test_samples_left_over_by_a_crash_are_no_fault(self):
        broken = run(outcome="crash", owners=drew([[0], [1]]))
        self.assertEqual(self.lead(broken, run("correct", owners=drew(self.halves))), [])

    def test_distance(self):
        equal = run("correct", divergence=apart(0, 0, 0))
        self.assertEqual(self.lead(run(divergence=apart(0, 1e-7, 9e-7)), equal), [])
        self.assertEqual(self.lead(run(divergence=apart(0, 0, 1e-3)), equal), ["divergence"])
        self.assertEqual(self.lead(run(divergence=apart(0, None, None)), equal), ["divergence"], "not finite")
        self.assertEqual(self.lead(run(divergence=apart(0, 1e-3)), run("correct", divergence=apart(0, 1e-3))), [])
        self.assertEqual(self.lead(run(divergence=apart(0, 1e-3))), ["divergence"], "there is no correct run")

    def of_calls(self, *ranks, **more):
        return self.lead(run(timeline=called(*ranks, **more)), run("correct", timeline=called(CALLS, CALLS)))

    def test_timeline(self):
        self.assertEqual(self.of_calls(CALLS, CALLS), [])
        self.assertEqual(self.of_calls(CALLS, CALLS, first=4), ["timeline"])
        self.assertEqual(self.of_calls(CALLS[:4], CALLS[:4]), ["timeline"], "fewer")
        self.assertEqual(self.of_calls(*2 * [[*CALLS[:3], "broadcast", "barrier"]]), [], "as many, of the same kinds")
        self.assertEqual(self.of_calls(*2 * [[*CALLS[:3], "alltoall", "barrier"]]), ["timeline"], "of another kind")

    def test_of_calls_that_are_not_all_there_only_the_numbers_are_compared(self):
        right = run("correct", timeline=called(CALLS, CALLS))
        late = called(CALLS, CALLS, truncated=True)
        late["calls"] = [call for call in late["calls"] if call["sequence"] > 2]
        self.assertEqual(self.lead(run(timeline=late), right), [])

    def test_ranks_that_part_ways_come_first(self):
        correct = run("correct", divergence=apart(0, 0), timeline=called(CALLS, CALLS))
        for outcome, first, wanted in (("completed", None, ["divergence", "timeline"]),
                                       ("completed", 4, ["timeline", "divergence"]),
                                       ("crash", None, ["timeline", "divergence"])):
            broken = run(outcome=outcome, divergence=apart(0, 1.0), timeline=called(CALLS[:4], CALLS[:4], first=first))
            self.assertEqual(self.lead(broken, correct), wanted)

    def test_only_a_broken_variant_leads_with_a_picture(self):
        near_miss = run("near-miss", divergence=apart(0, 1.0))
        comparison = made_up.report("05_x", [run("correct", divergence=apart(0, 0)), near_miss])
        self.assertEqual(pictures.of_run(charts.Charts(), comparison, near_miss)["lead"], [])


class Words(unittest.TestCase):
    def test_owners(self):
        self.assertEqual(
            owners.words(run(owners=drew([[0, 1, 2], [2, 3]], [[0, 1, 2], [2, 3]]))),
            "17 % of the samples are drawn more than once. 33 % of the samples are drawn by no rank. "
            "The second epoch repeats the first: each rank draws the same samples in the same order.")
        self.assertEqual(owners.words(run(owners=drew([[0, 3], [6]], every=3))),
                         "Each sample is drawn once. One sample in 3 is shown.")

    def test_distance(self):
        for divergence, wanted in ((apart(0, 0), "stay equal"), (apart(0, 1e-7), "within the tolerance"),
                                   (apart(0, 0, 0.0123456), "part at step 1. Their largest distance is 0.01235"),
                                   (apart(1.0), "before the first step"),
                                   (apart(0, None), "Not all values are finite from step 0")):
            self.assertRegex(distance.words(run(divergence=divergence)), wanted)

    def test_timeline(self):
        two = CALLS[:2]
        said = timeline.words(run(outcome="crash", timeline=called([*two, "barrier!"], [*two, "allreduce?"], first=3)))
        self.assertIn("First difference, at number 3: rank 0 calls barrier; rank 1 calls allreduce.", said)
        self.assertIn("✗: the call failed. …: the call never returned.", said)
        said = timeline.words(run(outcome="crash", timeline=called([*two, "barrier!"], two, first=3)))
        self.assertIn("The ranks call 2 to 3 collectives", said)
        self.assertIn("rank 0 calls barrier; rank 1 never comes.", said)
        said = timeline.words(run(timeline=called(two, two)), run("correct", timeline=called(CALLS, CALLS)))
        self.assertIn("No rank calls allreduce or barrier, which the correct run does.", said)


class Charts(unittest.TestCase):
    def test_equal_tables_and_specifications_stand_in_the_page_once(self):
        drawn = charts.Charts()
        variants = [run("correct", divergence=apart(0, 0)), run(divergence=apart(0, 1.0))]
        for variant in variants:
            pictures.of_run(drawn, made_up.report("05_x", variants), variant)
        page = drawn.for_page()
        own = page["charts"]["divergence-run-05_x-correct"]
        beside = page["charts"]["beside-divergence-run-05_x-broken"]
        self.assertEqual(own["table"], beside["table"])
        self.assertEqual(beside["spec"], page["charts"]["divergence-run-05_x-broken"]["spec"], "the same scales")

    def test_figures_have_four_digits(self):
        row = [2.2780735553503035, 1000003, None, "1.23456789", 1.23456e-9]
        chart = charts.Charts().add("x", "x", "x", [("a", "a")], [row], {})
        self.assertEqual(chart.rows, [[2.278, 1000003, None, "1.23456789", 1.235e-9]])

    def test_losses_that_nearly_coincide_are_drawn_so(self):
        self.assertEqual(losses.scale_of([2.278, 2.2801]), {"zero": False, "nice": False, "domain": [2.25, 2.3]})
        self.assertEqual(losses.scale_of([1.5, 2.5]), {"zero": False})
        self.assertEqual(losses.scale_of([0.01, 2.5]), {"type": "log"})

    def test_mean_losses_leave_out_what_is_no_number(self):
        self.assertEqual(losses.mean_losses({"losses": [[1.0, None, None], [3.0, 4.0]]}),
                         [[0, 2.0, 1.0, 3.0], [1, 4.0, 4.0, 4.0]])

    def test_identifiers_are_different_and_plain(self):
        words = ["a b", "a_b", "a.b", "a.2e.b", "a</b>", "a"]
        made = [pictures.identifier("run", word) for word in words]
        self.assertEqual(len(set(made)), len(words))
        for text in made:
            self.assertRegex(text, r"^run-[A-Za-z0-9_.-]+$")


if __name__ == "__main__":
    unittest.main(verbosity=1)
