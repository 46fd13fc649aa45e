"""Every command that a page shows is run, or names a lesson, pitfall or step that there is, or has a shape that
commands.json knows, with the reason why it is not run here; then its options are looked up in its --help. README's
transcript is what the command prints.

usage: docs_test.py BUILD      (the folder that ./lockstep has built)
"""

import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from page_commands import (  # noqa: E402
    FENCED, LISTED, ROOT, commands_of, named_by, of_the_course, pitfalls, programs, real, shapes_of, shown, wrong_with)

BUILD = None
DEADLINE_S = 120
SHOWN_BUILD = "build/clang-2.11.0"  # as the pages name it
SECONDS = re.compile(r" +\d+\.\d s")


def transcript():
    """(command, the lines that it prints) of README's block that begins with a prompt."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [body] = [body for _, body in FENCED.findall(text) if body.startswith("$ ")]
    first, *lines = body.splitlines()
    return first[2:], [line for line in lines if line.strip() != "..."]


def environment(state):
    """The settings that ./lockstep has built with; and nobody's own progress."""
    name = re.fullmatch(r"(clang|gcc)-(\d[\d.]*)(-strict)?(-single)?", BUILD.name)
    if not name or BUILD.parent != ROOT / "build":
        return None
    cmake = re.search(r"^CMAKE_COMMAND:INTERNAL=(.+)/", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    return {**os.environ, "PATH": f"{cmake}:{os.environ['PATH']}", "XDG_STATE_HOME": state, "COLUMNS": "80",
            "LOCKSTEP_COMPILER": name[1], "LOCKSTEP_TORCH": name[2], "LOCKSTEP_WERROR": "1" if name[3] else "0",
            "LOCKSTEP_UNITY": "OFF" if name[4] else "ON"}


# Slurm's and Open MPI's own help wants a cluster, or not to be root; the launchers' tests use their options.
WITHOUT_HELP = {"srun", "mpirun"}
# What the commands write into the tree: somebody's results, which are put back.
OVERWRITTEN = [ROOT / "reports" / "out" / name
               for name in ("05_set_epoch.json", "variants/05_set_epoch.json", "report.html")]


def asked_for_help(words):
    """The commands whose help has a command's options."""
    if words[0] == "./lockstep":
        # Further options of run are a lesson's (05 is built), those of test ctest's.
        more = {"run": [("./lockstep", "run", "05", "--help")], "test": [("ctest", "--help")]}.get(words[1], [])
        return [("./lockstep", words[1], "--help"), ("./lockstep", "--help"), *more]
    if words[0].endswith("torchrun"):
        return [(sys.executable, "-m", "torch.distributed.run", "--help")]
    if words[0].endswith("lockstep"):  # the Python package's
        return [("env", f"PYTHONPATH={BUILD / 'python'}", sys.executable, "-m", "lockstep_torch.command_line", words[1], "--help")]
    if words[0] == "pip":
        return [("pip", words[1], "--help")]
    if pathlib.PurePath(words[0]).name in ("python", "python3"):
        return [(sys.executable, words[1], "--help")]
    if words[1] in ("--build", "--install"):
        return [tuple(words[:2]), (words[0], "--help")]
    return [(words[0], "--help")]


@functools.cache
def printed_by(words):
    done = subprocess.run(words, cwd=ROOT, env=Run.environment, capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


def put_back(file, content):
    if content is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(content)


@functools.cache
def described(lesson):
    return json.loads((BUILD / "described" / f"{lesson}.json").read_text(encoding="utf-8"))


class Shown(unittest.TestCase):
    def test_every_command_is_known_and_every_entry_is_shown(self):
        there, course = shown(), of_the_course()
        self.assertGreater(len(there), 200)
        for command in there:
            known = (command in LISTED["run"] or command in course) + len(shapes_of(command))
            self.assertEqual(known, 1, f"{command}: fits {known} entries of commands.json, not one")
        used = {shape for command in there for shape in shapes_of(command)}
        self.assertEqual(sorted(set(LISTED["not_run"]) - used), [], "fits no command of a page")
        self.assertEqual(sorted(set(LISTED["run"]) - set(there)), [], "on no page")
        self.assertTrue(all(LISTED["not_run"].values()))

    def test_what_they_name_is_there(self):
        course = of_the_course()
        self.assertGreater(len(course), 80)
        for command in course:
            self.assertEqual(wrong_with(command, described), "", command)
        for command in ("./lockstep run 99", "./lockstep run 05 --variant no-sharding", "./lockstep start 6",
                        "./lockstep run 10 --variant rank-as-device-index --world-size 1", "./lockstep exercise start no-such",
                        "./lockstep run 05 --python --variant no-sharding", "./lockstep explain no-such --python"):
            self.assertNotEqual(wrong_with(command, described), "", command)

    def test_each_lesson_says_how_to_run_and_mend_it_in_python(self):
        for page in ROOT.glob("lessons/[0-9]*/lesson.md"):
            lesson, said = page.parent.name, commands_of(page)
            if pitfalls(lesson) & set(programs()):
                self.assertIn(f"./lockstep run {lesson} --python", said)
            if named_by(lesson) in programs():
                self.assertIn(f"./lockstep exercise start {lesson[:2]} --python", said)

    def test_a_shell_reads_them(self):
        for command in shown():
            done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)
            self.assertEqual((done.returncode, done.stderr), (0, ""), command)


class Run(unittest.TestCase):
    environment = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-docs-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.environment = environment(str(cls.folder / "state"))
        for report in OVERWRITTEN:
            before = report.read_bytes() if report.exists() else None
            cls.addClassCleanup(put_back, report, before)

    def real(self, command):
        """With real places for those that stand for any."""
        command = real(command).replace(SHOWN_BUILD, shlex.quote(str(BUILD)))
        return re.sub(r"\bDIR\b", lambda _: shlex.quote(str(self.folder / "recorded")), command)

    def call(self, command):
        return subprocess.run(["bash", "-c", self.real(command)], cwd=ROOT, env=self.environment, capture_output=True,
                              text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)

    def test_what_can_run_runs(self):
        for command, code in LISTED["run"].items():
            with self.subTest(command):
                done = self.call(command)
                self.assertEqual(done.returncode, code, done.stdout[-1500:] + done.stderr[-1500:])

    def test_the_options_of_what_is_not_run_exist(self):
        looked_up = 0
        for command in sorted(set(shown()) - set(LISTED["run"])):
            with self.subTest(command):
                words = [word for word in shlex.split(self.real(command)) if not re.match(r"[A-Z_]+=", word)]
                if words[0].endswith("lockstep") and "--" in words:  # what follows is another program's
                    words = words[:words.index("--")]
                if words[0].endswith("torchrun"):
                    words = [words[0], *itertools.takewhile(lambda word: "/" not in word, words[1:])]
                options = [word.split("=")[0] for word in words if re.match(r"-(-|[LRn]$)", word)]
                words = [word.replace("/path/to/the/clone/", "") for word in words]
                there = "lockstep" in words[0] or shutil.which(words[0], path=self.environment["PATH"])
                if words[0] in WITHOUT_HELP or not options or not there:  # not every machine has every tool
                    continue
                if words[1] == "bench":  # not built here: its source says which it takes
                    said = "".join(file.read_text() for folder in ("benchmarks", "evaluation/silence_cost")
                                   for file in (ROOT / folder).glob(f"{words[2]}.*"))
                else:
                    said = "".join(map(printed_by, asked_for_help(words)))
                for option in options:
                    self.assertRegex(said, rf"(?<![\w-]){re.escape(option)}(?![\w-])")
                    looked_up += 1
        self.assertGreater(looked_up, 100)

    def test_the_transcript_is_what_is_printed(self):
        command, lines = transcript()
        self.assertLessEqual(len(lines) + 1, 15)
        done = self.call(command)
        self.assertEqual(done.returncode, 0, done.stderr)
        printed = iter([SECONDS.sub("", line).strip() for line in done.stdout.splitlines()])
        for line in lines:
            self.assertTrue(any(SECONDS.sub("", line).strip() == other for other in printed),
                            f"not printed, or not in this order: {line}\n{done.stdout}")


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if not environment(""):
        print(f"skipped: {BUILD} was not built by ./lockstep, whose commands the pages show")
        sys.exit(77)
    unittest.main(verbosity=2)
