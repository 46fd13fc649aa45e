"""./lockstep exercise VERB SLUG --python without a run: what is handed out, hints, progress, and what a check compares.

usage: exercise_in_python_test.py PROGRAM      (the one behind ./lockstep, which reads the same progress)
"""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "lessons" / "python"
sys.path.insert(0, str(SCRIPTS))
import check  # noqa: E402
import handed_out  # noqa: E402
import work  # noqa: E402
from programs import OF_TWO, Run, programs, programs_name  # noqa: E402
from prose import difference, section  # noqa: E402

PROGRAM = None
SLUG = "missing-set-epoch"
DEADLINE_S = 60
RIGHT = {"updates": 16, "draws of a sample": 128, "numbers sent": 3300}


class HandedOut(unittest.TestCase):
    def test_of_every_program_the_place_is_told_and_not_the_answer(self):
        self.assertGreaterEqual(len(programs()), 85)
        for slug, program in programs().items():
            with self.subTest(slug):
                text = handed_out.text(slug)
                compile(text, slug, "exec")
                self.assertEqual(text.count("# Begin here: what is wrong is in this "), 1)
                self.assertIn(f"#   ./lockstep exercise check {slug} --python\n", text)
                self.assertIn("note(", text)
                for word in ("fault(", "def oracle", "import oracles"):
                    self.assertNotIn(word, text)
                self.assertNotEqual(handed_out.broken(slug), handed_out.right(slug), program)

    def test_comments_on_the_fault_are_gone_and_others_stay(self):
        text = handed_out.text("rank-skips-init")
        self.assertNotIn("believes", text)
        self.assertRegex(text, r"this function\.\ndef main\(\):")
        self.assertIn("# once", handed_out.text("restart-without-resume"))

    def test_of_a_class_the_method_is_marked(self):
        self.assertRegex(handed_out.text("tail-never-seen"), r"\n    # Begin here: .* function\.\n    def __iter__\(self\):")


def trace(*records):
    """A file of these (kind, bytes of its fields)."""
    body = b""
    for kind, fields in records:
        fields += bytes(-len(fields) % 8)
        body += struct.pack("<IHHqq", 24 + len(fields), kind, 0, 0, 0) + fields
    head = bytearray(4096)
    struct.pack_into("<Q", head, 64, 4096 + len(body))
    return bytes(head) + body + b"behind the committed length"


def string(text):
    return struct.pack("<I", len(text)) + text.encode()


def collective(*sizes):
    return (18, struct.pack("<qqq", 9, 0, 1) + string("default") + string("allreduce") + string("sum") + struct.pack("<q", -1)
            + string("float") + struct.pack(f"<I{len(sizes)}q", len(sizes), *sizes))


class Checked(unittest.TestCase):
    def test_work_is_read_from_a_trace(self):
        did = work.of_trace(trace((7, string("train") + struct.pack("<I3q", 3, 5, 6, 7)), collective(10, 32),
                                  (16, struct.pack("<Id", 1, 0.1)), collective(5), (10, bytes(8))))
        self.assertEqual({name: count for name, count in did.items() if count},
                         {"updates": 1, "draws of a sample": 3, "numbers sent": 47})

    def test_attempts_are_added_up(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-exercise-in-python-") as folder:
            for attempt in (0, 1):
                own = pathlib.Path(folder, f"attempt_{attempt}")
                own.mkdir()
                (own / "rank_0.trace").write_bytes(trace((16, struct.pack("<I", 0)), (16, struct.pack("<I", 0))))
            self.assertEqual([rank["updates"] for rank in work.of_job(pathlib.Path(folder), 2)], [4, 0])

    def run_of(self, seen=True, found=(), detector="clean", **did):
        job = subprocess.CompletedProcess([], 0, "", "the last words")
        return Run(job, {"ended": True, "parameters": seen}, list(found), {}, {SLUG: detector}, [{**RIGHT, "reports of a metric": 0,
                                                                                              **did}] * 2)

    def test_what_is_wrong(self):
        right = self.run_of()
        found = {"pitfall": "slow-rank", "ranks": [1], "evidence": "it is late"}
        for mended, words in ((self.run_of(seen=False), "not as it must be: parameters"),
                              (self.run_of(found=[found]), "found: slow-rank, ranks 1: it is late"),
                              (self.run_of(detector="not-triggered"), f"{SLUG} can no longer be seen"),
                              (self.run_of(**{"updates": 15}), "rank 0 made 15 updates, and 16 are to be made"),
                              (self.run_of(**{"draws of a sample": 100}), "made 100 draws of a sample, and 128 are"),
                              (self.run_of(**{"numbers sent": 2900}), "sends 2900 numbers through collectives, and 3300 are")):
            self.assertIn(words, " ".join(check.differences(SLUG, mended, right)))
        for mended, other in ((right, right), (self.run_of(found=[found]), self.run_of(found=[found])),
                              (self.run_of(**{"numbers sent": 3000, "updates": 20}), right)):
            self.assertEqual(check.differences(SLUG, mended, other), [])

    def test_seeds_are_drawn_anew_and_ranks_fit_the_program(self):
        for program in programs().values():
            settings = [check.drawn(program, ranks) for _ in range(20) for ranks in (2, 3)]
            self.assertEqual({setting.ranks for setting in settings}, {2} if programs_name(program) in OF_TWO else {2, 3})
            self.assertGreater(len({setting.seed for setting in settings}), 20)
            self.assertGreater(min(setting.seed for setting in settings), 0)


class Home(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-exercise-in-python-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / f"{SLUG}.py"
        self.progress = self.folder / "lockstep" / "progress.json"

    def call(self, verb, wanted=SLUG):
        return self.run_it([sys.executable, SCRIPTS / "exercise.py", verb, wanted, "--python", "--folder", self.folder])

    def run_it(self, command):
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
                              env={**os.environ, "XDG_STATE_HOME": str(self.folder)})

    def of_lesson(self):
        return json.loads(self.progress.read_text())["lessons"]["05_set_epoch"]


class Verbs(Home):
    def test_what_was_done_is_kept(self):
        self.assertEqual(self.call("start", "05").returncode, 0)  # the pitfall that the lesson's page names
        self.file.write_text("# mine\n")
        again = self.call("start")
        self.assertEqual((again.returncode, self.file.read_text()), (2, "# mine\n"))
        self.assertIn(f"exercise reset {SLUG} --python --folder", again.stderr)
        self.assertEqual(self.call("reset").returncode, 0)
        self.assertEqual(self.file.with_suffix(".py.old-1").read_text(), "# mine\n")
        self.assertIn("range(EPOCHS)", self.file.read_text())

    def test_what_is_no_program_is_not_run(self):
        self.file.write_text("def main(:\n")
        result = self.call("check")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.assertIn("Not yet right.\n  it is no Python program: invalid syntax, line 1\n", result.stdout)
        self.assertFalse(self.progress.exists())

    def test_hints_come_one_by_one_and_count_for_both_languages(self):
        self.assertEqual(self.call("hint").returncode, 2)
        self.call("start")
        self.assertEqual(self.run_it([PROGRAM, "exercise", "start", SLUG, "--folder", self.folder]).returncode, 0)
        in_cpp = [PROGRAM, "exercise", "hint", SLUG, "--folder", self.folder]
        for number, told in enumerate((self.call("hint"), self.run_it(in_cpp), self.call("hint"), self.call("hint")), 1):
            self.assertEqual(re.findall(r"^Hint (\d) of 3$", told.stdout, re.MULTILINE), [str(n + 1) for n in range(min(number, 3))])
        self.assertIn(f"./lockstep explain {SLUG} --python", told.stdout)
        self.assertEqual(self.of_lesson()["hints"], {SLUG: 3})

    def test_a_pitfall_without_a_program_is_refused(self):
        for wanted, words in (("load-without-map-location", "of 07_checkpoint these have: "), ("02", "of 02_data_parallel none has"),
                              ("no-such-thing", 'there is no pitfall "no-such-thing"')):
            result = self.call("start", wanted)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(words, result.stderr)

    def test_what_a_lesson_has_not_is_refused(self):
        for arguments, words in ((["99"], 'no lesson "99"'), (["02"], "02_data_parallel has no programs in Python; in C++"),
                                 (["05", "--variant", "no-sharding"], "there are: epoch-differs-by-rank, epoch-set-after-prefetch"),
                                 ([SLUG], f"./lockstep run 05 --python --variant {SLUG}"),
                                 (["all", "--variant", "mising-set-epoch"], f"the nearest: {SLUG}"),
                                 (["05", "--world-size", "9"], "invalid choice")):
            result = self.run_it([sys.executable, SCRIPTS / "run.py", *arguments, "--python"])
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(words, " ".join(result.stderr.split()))


class Progress(Home):
    def change(self, what):
        code = f"import progress, programs; progress.change(programs.lesson_of('05'), lambda done: {what})"
        return self.run_it([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); {code}"])

    def listed(self):
        return self.run_it([PROGRAM, "list"]).stdout

    def test_list_counts_it(self):
        self.change("done.update(ran='2026-11-24')")
        self.assertRegex(self.listed(), r"(?m)^05_set_epoch +run ")
        self.change("(done['mended'].update({'set-epoch-on-copy': '2026-11-24'}), done.update(passed='2026-11-24'))")
        self.assertRegex(self.listed(), r"(?m)^05_set_epoch +done ")
        self.assertIn("1 of 18 exercises done, and 1 other pitfalls mended.", self.listed())
        before = self.progress.read_bytes()
        self.run_it([PROGRAM, "exercise", "start", SLUG, "--folder", self.folder])
        self.run_it([PROGRAM, "exercise", "hint", SLUG, "--folder", self.folder])
        self.change("done['hints'].clear()")
        self.assertEqual(self.progress.read_bytes(), before)  # both write one form

    def test_what_others_write_meanwhile_is_kept(self):
        code = ("import sys, progress, programs\n"
                "def more(done): done['hints'][sys.argv[1]] = done['hints'].get(sys.argv[1], 0) + 1\n"
                "for _ in range(20): progress.change(programs.lesson_of('05'), more)")
        jobs = [subprocess.Popen([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n{code}", name],
                                 env={**os.environ, "XDG_STATE_HOME": str(self.folder)}) for name in ("one", "other")]
        self.assertEqual([job.wait(DEADLINE_S) for job in jobs], [0, 0])
        self.assertEqual(self.of_lesson()["hints"], {"one": 20, "other": 20})
        self.assertEqual(sorted(file.name for file in self.progress.parent.iterdir()), ["progress.json", "progress.json.lock"])

    def test_a_file_that_cannot_be_read_is_put_aside_and_a_newer_one_left_alone(self):
        self.progress.parent.mkdir()
        self.progress.write_text("no progress")
        self.assertIn("could not be read", self.change("done.update(ran='2026-11-24')").stderr)
        self.assertEqual(self.progress.with_name("progress.json.unreadable-1").read_text(), "no progress")
        self.assertEqual(self.of_lesson()["ran"], "2026-11-24")
        newer = '{"schema_version": 2}'
        self.progress.write_text(newer)
        self.assertIn("of a newer Lockstep", self.change("done.update(ran='2026-11-25')").stderr)
        self.assertEqual(self.progress.read_text(), newer)

    def test_where_nothing_can_be_kept_the_rest_goes_on(self):
        self.progress.parent.write_text("no folder")
        self.call("start")
        told = self.call("hint")
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertTrue(told.stdout.startswith("Hint 1 of 3\n"))
        self.assertIn("your progress is not kept", told.stderr)

    def test_other_sources_count_anew(self):
        self.change("done.update(ran='2026-11-24', hints={'x': 1})")
        content = json.loads(self.progress.read_text())
        content["lessons"]["05_set_epoch"]["sources"] = "0123456789abcdef"
        self.progress.write_text(json.dumps(content))
        self.change("done.update(passed='2026-11-25')")
        self.assertEqual((self.of_lesson()["ran"], self.of_lesson()["hints"], self.of_lesson()["passed"]), ("", {}, "2026-11-25"))


class Prose(unittest.TestCase):
    def test_every_program_s_difference_is_on_its_page(self):
        for slug in programs():
            page = next((SCRIPTS.parent).glob(f"*/pitfalls/{slug}.md")).read_text(encoding="utf-8")
            self.assertTrue(any(line[:1] in "+-" for line in difference(page)), slug)

    def test_a_section_ends_where_the_next_begins(self):
        page = "# slug: title\n\n## Why\n\nOne.\n\n    code\n\n## Why not\nOther.\n"
        self.assertEqual((section(page, "Why"), section(page, "Why not"), section(page, "Fix")), ("One.\n\n    code", "Other.", ""))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
