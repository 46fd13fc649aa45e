"""Every command that README.md, CONTRIBUTING.md and docs/*.md show is run, or stands in commands.json with the reason
why not; then its options are looked up in its --help. README's transcript is what the command prints.

usage: docs_test.py BUILD      (the folder that ./lockstep has built)
"""

import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = None
DEADLINE_S = 120
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LISTED = json.loads((HERE / "commands.json").read_text(encoding="utf-8"))
SHOWN_BUILD = "build/clang-2.11.0"  # as the pages name it
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\./lockstep|python3|cmake|ctest|ninja|pre-commit|pip|\.?build/\S+|"
                     r"\.lockstep/\S+|~/\S+) \S")
SECONDS = re.compile(r" +\d+\.\d s")


def commands_of(page):
    """Those of its sh blocks, a line each, and those inside of a sentence."""
    text = page.read_text(encoding="utf-8")
    blocks = [body for language, body in FENCED.findall(text) if language == "sh"]
    lines = [" ".join(line.split()) for body in blocks for line in body.replace("\\\n", " ").splitlines()]
    inline = [" ".join(code.split()) for code in INLINE.findall(FENCED.sub("", text))]
    return [line for line in lines if line] + [code for code in inline if COMMAND.match(code)]


def shown():
    return {command for page in PAGES for command in commands_of(page)}


def transcript():
    """(command, the lines that it prints) of README's block that begins with a prompt."""
    text = PAGES[0].read_text(encoding="utf-8")
    [body] = [body for _, body in FENCED.findall(text) if body.startswith("$ ")]
    first, *lines = body.splitlines()
    return first[2:], [line for line in lines if line.strip() != "..."]


def environment(state):
    """The settings that ./lockstep has built with; and nobody's own progress."""
    name = re.fullmatch(r"(clang|gcc)-(\d[\d.]*)(-strict)?", BUILD.name)
    if not name or BUILD.parent != ROOT / "build":
        return None
    cmake = re.search(r"^CMAKE_COMMAND:INTERNAL=(.+)/", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    return {**os.environ, "PATH": f"{cmake}:{os.environ['PATH']}", "XDG_STATE_HOME": state, "COLUMNS": "80",
            "LOCKSTEP_COMPILER": name[1], "LOCKSTEP_TORCH": name[2], "LOCKSTEP_WERROR": "1" if name[3] else "0"}


# Slurm's and Open MPI's own help wants a cluster, or not to be root; the launchers' tests use their options.
WITHOUT_HELP = {"srun", "mpirun", "pre-commit"}  # pre-commit: only who contributes has it
# What the commands write into the tree: somebody's results, which are put back.
OVERWRITTEN = [ROOT / "reports" / "out" / name
               for name in ("05_set_epoch.json", "variants/05_set_epoch.json", "report.html")]


def asked_for_help(words):
    """The commands whose help has a command's options."""
    if words[0] == "./lockstep":
        # Further options of run are a lesson's (05 is built), those of test ctest's.
        more = {"run": [("./lockstep", "run", "05", "--help")], "test": [("ctest", "--help")]}.get(words[1], [])
        return [("./lockstep", words[1], "--help"), ("./lockstep", "--help"), *more]
    if words[0] == "lockstep":  # the Python package's
        return [(sys.executable, str(ROOT / "python" / "lockstep_torch" / "command_line.py"), words[1], "--help")]
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


class Shown(unittest.TestCase):
    def test_every_command_is_listed_and_every_listed_one_is_shown(self):
        listed = set(LISTED["run"]) | set(LISTED["not_run"])
        self.assertEqual(sorted(shown() - listed), [], "shown, and in neither list of commands.json")
        self.assertEqual(sorted(listed - shown()), [], "in commands.json, and on no page")
        self.assertEqual(sorted(set(LISTED["run"]) & set(LISTED["not_run"])), [])


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
        command = command.replace(SHOWN_BUILD, shlex.quote(str(BUILD))).replace("SLUG", "missing-set-epoch")
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
        for command, reason in LISTED["not_run"].items():
            with self.subTest(command):
                self.assertTrue(reason)
                words = [word for word in shlex.split(self.real(command)) if not re.match(r"[A-Z_]+=", word)]
                if words[0].endswith("lockstep") and "--" in words:  # what follows is another program's
                    words = words[:words.index("--")]
                options = [word.split("=")[0] for word in words if re.match(r"-(-|[LRn]$)", word)]
                if words[0] in WITHOUT_HELP or not options:
                    continue
                words = [word.replace("/path/to/the/clone/", "") for word in words]
                if words[1] == "bench":  # not built here: its source says which it takes
                    said = "".join(file.read_text() for file in (ROOT / "benchmarks").glob(f"{words[2]}.*"))
                else:
                    said = "".join(map(printed_by, asked_for_help(words)))
                for option in options:
                    self.assertRegex(said, rf"(?<![\w-]){re.escape(option)}(?![\w-])")
                    looked_up += 1
        self.assertGreater(looked_up, 5)

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
