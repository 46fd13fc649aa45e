"""./lockstep detective: played to right and wrong answers, by pipe, JSON and terminal; nothing gives a case away.

usage: detective_test.py LOCKSTEP_COURSE PROGRAMS      (the folder of the lessons' programs)
"""

import functools
import io
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parents[2] / "lessons" / "detective"
sys.path.insert(0, str(HERE))

import answer  # noqa: E402
import cases  # noqa: E402
import evidence  # noqa: E402
import game  # noqa: E402
import job as jobs  # noqa: E402
import of_state  # noqa: E402
import pages  # noqa: E402
import scores  # noqa: E402

COURSE = PROGRAMS = None
DEADLINE_S = 60
COLUMNS = 80
PAGES = pages.read_all()
NUMBERS = range(1, len(cases.TEN) + 1)


class NoScores:
    def add(self, *_):
        return False


@functools.cache
def job_of(number):
    """A case's run, once for all tests."""
    case = cases.numbered(number, PAGES)
    return jobs.run(case.page.lesson, case.page.slug, case.world_size, PROGRAMS, COURSE)


def game_of(number):
    case = cases.numbered(number, PAGES)
    return game.Game(case, job_of(number), PAGES, NoScores(), lambda job: of_state.compared(job, job))


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-detective-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "tmp").mkdir()
        self.environment = {**os.environ, "XDG_STATE_HOME": folder.name, "TMPDIR": str(self.folder / "tmp")}
        self.state = self.folder / "lockstep" / "detective.json"

    def command(self, *arguments):
        return [sys.executable, HERE / "detective.py", "--course", COURSE, "--programs", PROGRAMS, *arguments]

    def play(self, said, *arguments):
        result = subprocess.run(self.command(*arguments), input=said, capture_output=True, text=True,
                                timeout=DEADLINE_S, env=self.environment)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual(os.listdir(self.folder / "tmp"), [])
        return result

    def kept(self):
        return json.loads(self.state.read_text(encoding="utf-8"))["cases"]


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
        self.assertEqual((lines[4]["how"], lines[4]["ranks"], lines[4]["path"]), ("solved", [0], ["modes"]))
        self.assertEqual(self.kept()["case 8"]["best"], 45)
        listed = self.play("", "--list", "--json")
        best = {line["case"]: line["best"] for line in map(json.loads, listed.stdout.splitlines())}
        self.assertEqual((best["case 8"], best["case 1"]), (45, None))

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
        self.assertEqual(lines[1]["pitfall"], cases.seeded(0, PAGES).page.slug)

    def test_wrong_use(self):
        for arguments in (["--case", "0"], ["--case", "11"], ["--case", "x"], ["--seed", "-1"], ["--seed", "1.5"],
                          ["--case", "1", "--seed", "1"], ["more"]):
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
    def left(self):
        """Processes that work in this test's folder."""
        found = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += [file] if os.fsencode(self.folder / "tmp") in file.read_bytes() else []
            except OSError:
                pass
        return found

    def test_ctrl_c_while_the_job_runs(self):
        with subprocess.Popen(self.command("--case", "5"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE, start_new_session=True, env=self.environment) as program:
            end = time.monotonic() + DEADLINE_S
            while not list(self.folder.rglob("rank_0.trace")) and time.monotonic() < end and program.poll() is None:
                time.sleep(0.05)
            self.assertTrue(self.left())
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=DEADLINE_S)
        self.assertEqual((program.returncode, errors), (130, "\nEnded. Nothing is left running.\n"))
        self.assertEqual((self.left(), os.listdir(self.folder / "tmp")), ([], []))

    def test_in_a_terminal_with_ctrl_c_and_ctrl_d(self):
        for key, code, last in ((b"\x03", 130, "Nothing is left running."), (b"\x04", 0, "Not solved.")):
            child, terminal = pty.fork()
            if child == 0:
                os.execve(sys.executable, [str(each) for each in self.command("--case", "1")], self.environment)
            try:
                shown = self.read(terminal, "[100 points] > ")
                os.write(terminal, b"dataset\n")
                shown += self.read(terminal, "[95 points] > ")
                os.write(terminal, key)
                shown += self.read(terminal, last)
            finally:
                status = self.waited(child)
                os.close(terminal)
            self.assertEqual(os.waitstatus_to_exitcode(status), code, shown)
            self.assertTrue(all(len(line) <= COLUMNS for line in shown.replace("\r", "").splitlines()), shown)
            self.assertEqual((self.left(), os.listdir(self.folder / "tmp")), ([], []))

    def read(self, terminal, until):
        shown, end = "", time.monotonic() + DEADLINE_S
        while until not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    shown += os.read(terminal, 65536).decode()
                except OSError:  # its last process has closed it
                    break
        self.assertIn(until, shown)
        return shown

    def waited(self, child):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]


class Cases(unittest.TestCase):
    def test_no_two_of_one_lesson(self):
        self.assertEqual(len({PAGES[slug].lesson for slug, _, _ in cases.TEN}), len(cases.TEN))

    def forbidden(self, number):
        """What would give a case away, as patterns. A lesson whose name is a question's (metrics) may be spoken of."""
        page, variant = cases.numbered(number, PAGES).page, job_of(number).variant
        asked = {question.name for question in evidence.PAID}
        name = page.lesson[3:]
        words = [page.slug, page.lesson, page.title, variant["what"], *(one["metric"] for one in variant["oracles"])]
        words += [] if {name, name + "s"} & asked else [name]
        return [r"\b" + re.sub(r"[-_ \\]+", "[-_ ]", re.escape(word)) + r"\b" for word in words if word]

    def test_nothing_gives_a_case_away(self):
        for number in NUMBERS:
            with self.subTest(case=number):
                one = game_of(number)
                wrong = next(slug for slug in PAGES if slug != one.case.page.slug)
                said = [one.opening(), *(one.turn(each.name) for each in one.questions)]
                said += [one.turn(line) for line in ("hint", "hint", "hint", "hint", "questions", "help", "nonsense")]
                said += [one.turn(f"answer {wrong}"), one.stopped()]
                shown = " ".join(json.dumps(each) for each in said)
                shown = " ".join(shown.replace('", "', " ").split())
                self.assertNotIn("lockstep-detective-", shown)
                for pattern in self.forbidden(number):
                    self.assertIsNone(re.search(pattern, shown, re.IGNORECASE), pattern)
                self.assertEqual([line for each in said for line in each["lines"] if len(line) > COLUMNS], [])
                self.assertTrue(all(each["lines"] for each in said))

    def test_the_shortest_path_is_offered_and_the_answer_ends_the_case(self):
        for number in NUMBERS:
            with self.subTest(case=number):
                one = game_of(number)
                self.assertTrue(one.path)
                for question in one.path:
                    self.assertIn(question, one.questions)
                    one.turn(question.name)
                over = one.turn(f"answer {one.case.page.slug} {','.join(map(str, one.ranks))}")
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
            self.assertIsNotNone(evidence.path(page, everything), page.slug)
        for seed in range(300):
            self.assertIn(cases.seeded(seed, PAGES).world_size, (2, 3, 4))

    def test_a_question_costs_once_and_points_do_not_fall_below_0(self):
        one = game_of(1)
        self.assertEqual([one.turn("samples")["points"] for _ in range(2)], [90, 90])
        for _ in range(6):
            last = one.turn("answer sum-not-mean")
        self.assertEqual((last["points"], one.over), (0, False))


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

    def test_a_newer_file_is_left_alone(self):
        self.state.parent.mkdir()
        self.state.write_text('{"schema_version": 2, "cases": {"case 1": {"best": 5, "day": ""}}}', encoding="utf-8")
        before = self.state.read_bytes()
        self.add("case 1", 10)
        self.assertEqual(self.state.read_bytes(), before)


if __name__ == "__main__":
    COURSE, PROGRAMS = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
