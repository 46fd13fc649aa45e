"""./lockstep detective on Python programs and on programs with two faults: played through in a pipe that reads JSON,
and in a terminal; nothing gives a case away.

usage: detective_more_test.py LOCKSTEP_COURSE MUTANT PACKAGE      (the folder that holds lockstep_torch)
"""

import json
import os
import sys
import types
import unittest

import detective_play as play
from detective_play import PAGES

import cases
import evidence
import job as jobs
import python_job
import two_job

COURSE = MUTANT = PACKAGE = None


def options():
    return types.SimpleNamespace(course=COURSE, mutant=MUTANT)


def every():
    return PAGES | play.pages.generic(lambda slug: two_job.explained(slug, options()))


class InPython(play.Folder):
    def command(self, *arguments):
        return play.command("--course", COURSE, "--language", "python", *arguments)

    def test_by_json_through_the_evidence_to_the_right_answer(self):
        """What takes another run, compare and check, the full tier asks."""
        case = cases.numbered("python", 3, PAGES)
        paid = [each.name for each in evidence.PAID]
        asked = play.asked(paid, [case.page.slug])
        said = [*asked, f"answer {case.page.slug} 0", f"answer {case.page.slug} all"]
        result = self.play("\n".join(said), "--case", "3", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        *said, over = map(json.loads, result.stdout.splitlines())
        self.assertEqual((said[0]["case"], said[0]["world_size"]), (case.name, 2))
        self.assertEqual(play.complaints(case, said), [])
        self.assertIn("  rank 0 prints:", said[0]["lines"])
        self.assertRegex(" ".join(said[0]["lines"]),
                         r"epoch 0: loss \d+\.\d+ .*timeline: +\d+\.\d\d s .* rank 1 +[-#]{50}.* completed")
        shown = {each["question"]: "\n".join(each["lines"]) for each in said if each["event"] == "evidence"}
        self.assertRegex(shown["epochs"], r"rank 0: the program counts epoch \d; told to the data order: epoch 0\n"
                                          r"  rank 1: the program counts epoch \d; told to the data order: epoch 1\n")
        self.assertEqual([each["right"] for each in said if each["event"] == "answer"], [False, False])  # slug; ranks
        [fault] = over["pitfalls"]
        self.assertEqual((over["how"], fault["pitfall"], fault["ranks"]), ("solved", case.page.slug, [0, 1]))
        self.assertEqual(over["path"], ["dataset", "epochs"])
        self.assertIn(f"explain {case.page.slug} --python", "\n".join(over["lines"]))
        self.assertEqual(self.kept(), {case.name: {"best": 0, "day": self.kept()[case.name]["day"]}})

    def test_in_a_terminal_a_rank_that_left(self):
        case = cases.numbered("python", 5, PAGES)
        ends = ("Next: ./lockstep detective --language python --case 1", "")
        shown = self.in_terminal(("[100 points] > ", "collectives"), ("[85 points] > ", f"answer {case.page.slug} 1"),
                                 ends, arguments=["--case", "5"])
        self.assertRegex(shown, r"rank 0 waits in allreduce \d+, .*; rank 1 did")
        self.assertIn("Right: 85 of 100 points", shown)
        self.assertNotIn(case.page.slug, shown.partition("[85 points]")[0])
        self.assertEqual([line for line in shown.replace("\r", "").splitlines() if len(line) > play.COLUMNS], [])
        self.assertEqual(self.kept()[case.name]["best"], 85)

    def test_without_the_package(self):
        result = self.play("", "--case", "1", PYTHONPATH="")
        self.assertEqual((result.returncode, result.stdout.count("\n\n")), (3, 1))
        self.assertIn("could not be run", result.stderr)

    def test_cases(self):
        """Of ten lessons, all with a program; a seed draws any of those."""
        lessons = [PAGES[slug].lesson for slug, _, _ in cases.TEN_IN_PYTHON]
        self.assertEqual(len(set(lessons)), len(lessons))
        levels = [level for *_, level in cases.TEN_IN_PYTHON]
        self.assertEqual(levels, sorted(levels))
        drawn = {cases.seeded("python", seed, PAGES).page.slug for seed in range(1000)}
        self.assertEqual(drawn, PAGES.keys() & python_job.programs().keys())
        self.assertGreater(len(drawn), 80)

    def test_what_is_not_recorded_is_checked(self):
        """Without the losses the gradients alone do not tell a sum from a mean of what was meant."""
        questions = [each for each in evidence.PAID if "loss" not in each.kinds]
        page = PAGES["sum-not-mean"]
        self.assertEqual([each.name for each in evidence.decisive((page,), [*questions, evidence.CHECK])],
                         ["gradients", "check"])
        self.assertEqual([each.name for each in evidence.decisive((page,), evidence.PAID)], ["gradients", "backward"])

    def test_log_is_without_traces_code_places_and_advice(self):
        said = ("/usr/lib/torch/a.py:12: UserWarning: careful: /data/x/y.npy\n"
                "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/job/train.py\", line 3, in main\n"
                "[rank1]:     broken(sampler)\n[rank1]:     ^^^^^^\n\n[rank1]: RuntimeError: It failed. Do this.\n"
                "[rank1]: And that.\n")
        self.assertEqual(" ".join(play.of_state.plain(said)), "UserWarning: careful: ... RuntimeError: It failed.")


class Two(play.Folder):
    def command(self, *arguments):
        return play.command("--course", COURSE, "--mutant", MUTANT, "--two", *arguments)

    def test_by_json_both_are_named(self):
        case = cases.numbered("two", 1, every(), options())
        first, second = case.pages
        asked = play.asked([each.name for each in evidence.PAID], [first.slug, second.slug], hints=3)
        answers = [f"{second.slug}", f"{second.slug}", f"{first.slug} 1", f"{first.slug} all"]
        said = [*asked, *(f"answer {each}" for each in answers)]
        result = self.play("\n".join(said), "--case", "1", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(play.complaints(case, lines[:len(asked) + 1]), [])
        self.assertIn("two faults. Which are they", " ".join(lines[0]["lines"]))
        one, again, ranks, over = lines[-4:]
        self.assertEqual([each["event"] for each in (one, again, ranks, over)], ["answer", "error", "answer", "over"])
        self.assertIn("that is one of two. Name the other. You named no ranks", " ".join(one["lines"]))
        self.assertEqual([each.get("right") for each in (one, again, ranks)], [True, None, False])
        self.assertEqual(over["how"], "solved")
        self.assertEqual([(each["pitfall"], each["named"]) for each in over["pitfalls"]],
                         [(page.slug, True) for page in case.pages])
        told = "\n".join(over["lines"])
        for wanted in (f"{first.slug}, ranks 0 and 1: {first.title[:20]}", f"{second.slug}, rank", "The detectors say:",
                       "Why:", f"explain {first.slug}", f"explain {second.slug}"):
            self.assertIn(wanted, told)

    def test_in_a_terminal_one_is_named(self):
        """Half of the points that are left."""
        case = cases.numbered("two", 1, every(), options())
        shown = self.in_terminal(("[100 points] > ", "samples"), ("[90 points] > ", "answer no-sharding all"),
                                 ("[90 points] > ", "give up"), ("Next: ./lockstep detective --two --case 2", ""),
                                 arguments=["--case", "1"])
        self.assertIn("You named one of two faults: 45 points.", " ".join(shown.split()))
        self.assertEqual([line for line in shown.replace("\r", "").splitlines() if len(line) > play.COLUMNS], [])
        self.assertEqual(self.kept()[case.name]["best"], 45)

    def test_cases_have_two_faults_that_can_be_named(self):
        for number in range(1, len(cases.TWO) + 1):
            slugs = [page.slug for page in cases.numbered("two", number, every(), options()).pages]
            self.assertEqual(len(set(slugs)), 2)
        known = every()
        drawn = [cases.seeded("two", seed, known, options()) for seed in range(300)]
        self.assertEqual({(case.program, case.operator) for case in drawn}, set(two_job.pairs(options())))

    def test_without_the_program(self):
        with self.assertRaises(jobs.CouldNotRun):
            two_job.operators(f"{MUTANT}-that-is-not-there")


if __name__ == "__main__":
    COURSE, MUTANT, PACKAGE = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
    os.environ["PYTHONPATH"] = PACKAGE
    unittest.main(verbosity=2)
