"""./lockstep detective on the lessons' programs: played to right and wrong answers, by pipe, JSON and terminal; nothing
gives a case away. detective_more_test.py plays Python programs and two faults.

usage: detective_test.py LOCKSTEP_COURSE PROGRAMS      (the folder of the lessons' programs)
"""

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
import unittest
import unittest.mock

import detective_play as play
from detective_play import COLUMNS, PAGES

import answer
import cases
import cpp_job
import evidence
import job as jobs
import of_time
import scores

COURSE = PROGRAMS = None
NUMBERS = range(1, len(cases.TEN) + 1)


def case_of(number):
    return cases.numbered("cpp", number, PAGES)


@functools.cache
def job_of(number):
    """A case's run, once for all tests."""
    return cpp_job.played(case_of(number), types.SimpleNamespace(programs=PROGRAMS, course=COURSE))


def game_of(number):
    return play.game_of(case_of(number), job_of(number))


class Folder(play.Folder):
    def command(self, *arguments):
        return play.command("--course", COURSE, "--programs", PROGRAMS, *arguments)


class Played(Folder):
    def test_by_pipe_to_the_right_answer(self):
        said = ["no such", "collective", "buffers", "no-sharding", "answer", "answer no-shardin",
                "answer no-sharding 7", "answer no-sharding x", "list nothing-like-it", "", "\x1b[31m", "samples",
                "samples", "answer sum-not-mean", "answer no-sharding 1", "answer no-sharding 0 1", "never read"]
        result = self.play("\n".join(said), "--case", "1")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        points = [int(each) for each in re.findall(r"^\[(\d+) points\] > ", result.stdout, re.MULTILINE)]
        self.assertEqual(points, [100] * 12 + [90, 90, 70, 60])  # what is not understood costs nothing
        for wanted in ("Did you mean no-sharding?", "There is no rank 7", '"x" is no rank', "no evidence for `buffers`",
                       "To name a pitfall, write: answer no-sharding", "Right: 60 of 100 points", "Why:", "Fix:",
                       "./lockstep explain no-sharding", "The shortest path: samples (10). It leaves 90 points.",
                       "Next: ./lockstep detective --case 2"):
            self.assertIn(wanted, result.stdout)
        self.assertNotIn("\x1b", result.stdout)
        self.assertEqual(self.kept()["case 1"]["best"], 60)
        self.assertEqual([line for line in result.stdout.splitlines() if len(line) > COLUMNS], [])

    def test_by_json_to_the_right_answer(self):
        said = "modes\ncompare\nhint\nanswer train-mode-differs-across-ranks\n"
        result = self.play(said, "--case", "8", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([(line["event"], line["points"]) for line in lines],
                         [("case", 100), ("evidence", 95), ("evidence", 65), ("hint", 55), ("over", 45)])
        self.assertEqual(lines[0]["questions"]["modes"], 5)
        own, _, other = " ".join(lines[2]["lines"]).partition("The same job without the fault:")
        self.assertNotEqual(re.findall(r"\d\.\d+", own), re.findall(r"\d\.\d+", other)[:len(own)])
        self.assertRegex(other, r"rank 2 +\d\.\d+")
        [fault] = lines[4]["pitfalls"]
        self.assertEqual((lines[4]["how"], fault["ranks"], lines[4]["path"]), ("solved", [0], ["modes"]))
        self.assertEqual(self.kept()["case 8"]["best"], 45)
        listed = self.play("", "--list", "--json")
        best = {line["case"]: line["best"] for line in map(json.loads, listed.stdout.splitlines())}
        self.assertEqual((best["case 8"], best["case 1"], best["case 8 in Python"]), (45, None, None))

    def test_a_wrong_answer_and_the_end_of_the_input(self):
        result = self.play("answer epoch-differs-by-rank all\n", "--case", "3")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("the same lesson. 20 points less.", result.stdout)
        self.assertIn("Not solved.", result.stdout)
        self.assertNotIn("missing-set-epoch", result.stdout)
        self.assertFalse(self.state.exists())

    def test_a_seed(self):
        lines = [json.loads(line) for line in self.play("give up\n", "--seed", "0", "--json").stdout.splitlines()]
        self.assertEqual((lines[0]["case"], lines[1]["how"]), ("seed 0", "given up"))
        self.assertEqual(lines[1]["pitfalls"][0]["pitfall"], cases.seeded("cpp", 0, PAGES).page.slug)

    def test_wrong_use(self):
        for arguments in (["--case", "0"], ["--case", "11"], ["--case", "x"], ["--seed", "-1"], ["--seed", "1.5"],
                          ["--case", "1", "--seed", "1"], ["more"], ["--two", "--case", "5"],
                          ["--two", "--language", "python"], ["--language", "c"]):
            result = self.play("", *arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn("error: ", result.stderr)

    def test_what_cannot_run(self):
        result = self.play("", "--case", "1", "--programs", self.folder)
        self.assertEqual(result.returncode, 3)
        self.assertIn("could not be run", result.stderr)
        self.assertNotIn("sharding", result.stdout + result.stderr)

    def test_help_shows_what_a_learner_gives(self):
        result = self.play("", "--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("--programs", result.stdout)


class Ended(Folder):
    def test_ctrl_c_while_the_job_runs(self):
        with subprocess.Popen(self.command("--case", "5"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE, start_new_session=True, env=self.environment) as program:
            end = time.monotonic() + play.DEADLINE_S
            while not list(self.folder.rglob("rank_0.trace")) and time.monotonic() < end and program.poll() is None:
                time.sleep(0.05)
            self.assertTrue(self.left())
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=play.DEADLINE_S)
        self.assertEqual((program.returncode, errors), (130, "\nEnded. Nothing is left running.\n"))
        self.assertEqual((self.left(), os.listdir(self.folder / "tmp")), ([], []))

    def test_in_a_terminal_with_ctrl_c_and_ctrl_d(self):
        for key, code, last in ((b"\x03", 130, "Nothing is left running."), (b"\x04", 0, "Not solved.")):
            shown = self.in_terminal(("[100 points] > ", "dataset"), ("[95 points] > ", key), (last, ""),
                                     arguments=["--case", "1"], code=code)
            self.assertTrue(all(len(line) <= COLUMNS for line in shown.replace("\r", "").splitlines()), shown)


class Cases(unittest.TestCase):
    def test_no_two_of_one_lesson(self):
        self.assertEqual(len({PAGES[slug].lesson for slug, _, _ in cases.TEN}), len(cases.TEN))

    def test_nothing_gives_a_case_away(self):
        for number in NUMBERS:
            with self.subTest(case=number):
                self.assertEqual(play.complaints_of_job(case_of(number), job_of(number)), [])

    def test_what_would_give_a_case_away_is_seen(self):
        """Planted in what a rank prints: the slug, its title, a path, a comment of the source, and a long line."""
        case, job = case_of(3), job_of(3)
        names = ("no SET_EPOCH here", "x/a_file.cpp: 3", "a near-miss-set", "as order-mismatch has it", case.page.title)
        planted = [*(("gives away", each) for each in names), ("longer than", "x" * 90),
                   ("words of the source", max(play.comments_of(case), key=len))]
        for what, each in planted:
            with unittest.mock.patch.object(play.of_state, "printed", lambda _, said=each: [said]):
                found = play.complaints_of_job(case, job)
            self.assertTrue(any(one.startswith(what) for one in found), (each, found))

    def test_the_shortest_path_is_offered_and_the_answer_ends_the_case(self):
        for number in NUMBERS:
            with self.subTest(case=number):
                one = game_of(number)
                self.assertTrue(one.path)
                for question in one.path:
                    self.assertIn(question, one.questions)
                    one.turn(question.name)
                [fault] = one.faults
                over = one.turn(f"answer {fault.page.slug} {','.join(map(str, fault.ranks))}")
                self.assertEqual((over["how"], over["points"]), ("solved", 100 - sum(each.cost for each in one.path)))
                self.assertGreaterEqual(over["points"], 75)
                self.assertTrue(all(len(line) <= COLUMNS for line in over["lines"]), over["lines"])

    def test_what_decides_a_case_is_shown(self):
        """By somebody who has read the lesson: the line that tells the fault from all others."""
        decides = {1: ("samples", "512 draws of 256 different"),
                   2: ("gradients", r" (\S+)\n.* equal\n.* sum: norm \1\n"),
                   3: ("epochs", "the same order as in the pass before"),
                   4: ("checkpoints", "saved +6 +A +A(.*\n)+.*resumed +12 +A +B"),
                   5: ("collectives", "18  rank 0: barrier"),
                   6: ("metrics", r"252 +\d+ +1009"), 7: ("updates", "180 at step 60"),
                   8: ("modes", "then 3 in evaluation mode"), 9: ("random", r"  0 .* (A +A B C D)\n.*  1 .* \1\n"),
                   10: ("scaling", "updates +updates +inf: skips")}
        for number, (question, pattern) in decides.items():
            with self.subTest(case=number):
                self.assertRegex("\n".join(game_of(number).turn(question)["lines"]), pattern)

    def test_every_seed_has_a_path(self):
        everything = [*evidence.FREE, *evidence.PAID]
        for page in PAGES.values():
            self.assertIsNotNone(evidence.path((page,), everything), page.slug)
        for case in (cases.seeded("cpp", seed, PAGES) for seed in range(3000)):
            self.assertIn(case.world_size, (2, 3, 4))
            self.assertTrue("ranks" not in case.page.facts or case.page.ranks(case.world_size), case)
        rows = [cases.shows_on(PAGES["rank-as-device-index"], size) for size in (2, 3, 4)]
        self.assertEqual(rows, [False, True, True])  # two ranks have the two devices that it needs

    def test_a_question_costs_once_and_points_do_not_fall_below_0(self):
        one = game_of(1)
        self.assertEqual([one.turn("samples")["points"] for _ in range(2)], [90, 90])
        for _ in range(6):
            last = one.turn("answer sum-not-mean")
        self.assertEqual((last["points"], one.over), (0, False))


def call(rank, number, entered_s, left_s, op="allreduce", failed=0):
    fields = {"op": op, "group": "0", "sequence": number, "left_ns": int(left_s * 1e9), "failed": failed}
    return rank, {"event": "collective", "fields": fields, "step": 0, "time_ns": int(entered_s * 1e9)}


class Timeline(unittest.TestCase):
    def drawn(self, *calls, ends=()):
        calls = [call(0, 0, 0, 0.01), call(1, 0, 0, 0.01), *calls]
        by_rank = [[event for own, event in calls if own == rank] for rank in (0, 1)]
        ranks = [{"rank": rank, "started_ns": 0, "closed": True, "events": own} for rank, own in enumerate(by_rank)]
        ends = [{"rank": rank, "how": "stopped", "ended_ns": int(at * 1e9)} for rank, at in ends]
        return of_time.timeline(jobs.Job({}, {"world_size": 2, "ranks": ranks, "ends": ends}))

    def test_who_comes_first_waits(self):
        """Rank 0 is there at 1 s, rank 1 at 3 s: rank 0 waits for the third and the half of the job that is between."""
        lines = self.drawn(call(0, 1, 1, 3.1), call(1, 1, 3, 3.1), call(0, 2, 4, 4), call(1, 2, 4, 4))
        strips = [line[12:] for line in lines if line.startswith("  rank")][:2]
        self.assertEqual([strip.count("#") for strip in strips], [of_time.CELLS // 2, 0])
        self.assertRegex(strips[0], r"^-{16,17}#{33}-{16,17}$")
        self.assertIn("  waited in all: rank 0 2.00 s, rank 1 0.00 s", lines)
        self.assertIn("  rank 0 waits in allreduce 1, 1.00 s to 3.00 s", lines)
        self.assertEqual(len([line for line in lines if "waits in allreduce" in line]), 1)

    def test_who_never_comes_is_told_and_who_calls_another_is_not_there(self):
        """Rank 1 left at 1 s; and in call 2 the ranks call different things."""
        lines = self.drawn(call(0, 1, 1, 0), ends=((1, 1), (0, 5)))
        self.assertIn("  rank 0 waits in allreduce 1, 1.00 s to 5.00 s; rank 1 did not come", lines)
        self.assertEqual(next(line for line in lines if line.startswith("  rank 1")).count("-"), 14)
        lines = self.drawn(call(0, 1, 1, 3, failed=1), call(1, 1, 1, 3, op="barrier", failed=1))
        self.assertIn("  rank 0 waits in allreduce 1, 1.00 s to 3.00 s; rank 1 did not come", lines)
        self.assertIn("  rank 1 waits in barrier 1, 1.00 s to 3.00 s; rank 0 did not come", lines)

    def test_of_a_job_that_stalls(self):
        """Case 5: all three ranks wait to the end, two of them for the one that has called something else."""
        said = "\n".join(game_of(5).opening()["lines"])
        self.assertRegex(said, r"(?s)rank [12] waits in broadcast 18, .*; rank 0\n?\s+did not come")
        self.assertRegex(said, r"  rank 0 +[-#]*#{40,}")


class Words(unittest.TestCase):
    def test_ranks(self):
        for words, wanted in (("", None), ("all", {0, 1, 2, 3}), ("0,2", {0, 2}), ("0 2", {0, 2}), ("0-2", {0, 1, 2}),
                              ("ranks 1 and 3", {1, 3}), ("rank 1", {1})):
            self.assertEqual(answer.ranks_of(words.split(), 4, "rank"), wanted)
        for words in ("4", "x", "0-9", "-1", "9" * 30):
            with self.assertRaises(answer.NotUnderstood):
                answer.ranks_of(words.split(), 4, "rank")

    def test_list(self):
        self.assertEqual({page.slug for page in answer.listed(PAGES, ["sharded"])},
                         {slug for slug, page in PAGES.items() if "sharded" in f"{page.lesson} {slug} {page.title}"})
        self.assertEqual(answer.listed(PAGES, []), list(PAGES.values()))


class Kept(Folder):
    def scores(self):
        with unittest.mock.patch.dict(os.environ, self.environment), \
                unittest.mock.patch("sys.stderr", io.StringIO()) as said:
            return scores.Scores(), said.getvalue()

    def add(self, name, points):
        with unittest.mock.patch.dict(os.environ, self.environment), unittest.mock.patch("sys.stderr", io.StringIO()):
            return scores.Scores().add(name, points)

    def test_the_best_is_kept(self):
        self.assertEqual([self.add("case 1", points) for points in (50, 40, 70)], [True, False, True])
        self.add("seed 7", 0)
        kept, said = self.scores()
        self.assertEqual((kept.best("case 1"), kept.best("seed 7"), kept.best("case 2"), said), (70, 0, None, ""))
        self.assertEqual(os.listdir(self.state.parent), [self.state.name])

    def test_a_file_that_is_none_is_put_aside(self):
        for content in ("{", "[]", '{"cases": {"case 1": 3}}', "\xff"):
            self.state.parent.mkdir(exist_ok=True)
            self.state.write_text(content, encoding="latin-1")
            kept, said = self.scores()
            self.assertEqual(kept.cases, {})
            self.assertIn("begun anew", said)
            self.assertTrue(self.add("case 1", 10))
            self.assertEqual(self.kept()["case 1"]["best"], 10)

    def listed(self):
        return subprocess.run([COURSE, "list"], capture_output=True, text=True, timeout=play.DEADLINE_S,
                              env=self.environment)

    def test_list_counts_what_is_solved(self):
        """./lockstep list reads the game's file, and does without where there is none, or no such file."""
        for cases_solved, words in ((0, None), (1, "and 1 case of ./lockstep detective solved."),
                                    (2, "and 2 cases of ./lockstep detective solved.")):
            if cases_solved:
                self.add(f"case {cases_solved}", 10)
            said = self.listed()
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertEqual(("detective" in said.stdout, words is None or words in said.stdout.splitlines()),
                             (words is not None, True))
        self.state.write_text("{", encoding="utf-8")
        said = self.listed()
        self.assertEqual((said.returncode, "detective" in said.stdout), (0, False))

    def test_a_newer_file_is_left_alone(self):
        self.state.parent.mkdir()
        self.state.write_text('{"schema_version": 2, "cases": {"case 1": {"best": 5, "day": ""}}}', encoding="utf-8")
        before = self.state.read_bytes()
        self.add("case 1", 10)
        self.assertEqual(self.state.read_bytes(), before)


if __name__ == "__main__":
    COURSE, PROGRAMS = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
