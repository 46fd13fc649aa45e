"""What tests of ./lockstep detective share: where the game is, a case's every word, and what would give it away."""

import ast
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
import tokenize
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "lessons" / "detective"
sys.path.insert(0, str(HERE))

import cases  # noqa: E402, F401
import evidence  # noqa: E402
import game  # noqa: E402
import of_state  # noqa: E402
import pages  # noqa: E402
import python_job  # noqa: E402

COLUMNS = 80
DEADLINE_S = 60
PAGES = pages.read_all()
IN_A_ROW = 5  # words of a comment, or of a title, that no evidence has by chance
PLACES = (r"/\w[\w.+-]*/", r"\w\.(?:py|cpp|h)\b", "lockstep-detective", "site-packages", r"\bfault\(", "TWIN_",
          "Traceback", r"\b(?:near-miss|correct)-\w", "lockstep::")


class NoScores:
    def add(self, *_):
        return False


def game_of(case, job, every=None):
    return game.Game(case, job, every or PAGES, NoScores(), lambda own: of_state.compared(own, own))


def asked(questions, own, hints=4):
    """The lines by which somebody sees all that a case says before it is solved. `own`: the slugs of its faults."""
    wrong = next(slug for slug in PAGES if slug not in own)
    return [*questions, *["hint"] * hints, "questions", "help", "nonsense", f"answer {wrong}"]


def everything(one):
    lines = asked([each.name for each in one.questions], [page.slug for page in one.case.pages])
    return [one.opening(), *(one.turn(line) for line in lines), one.stopped()]


def words_in(said):
    return re.findall(r"[a-z]+", said.lower())


def in_a_row(said, count=IN_A_ROW):
    words = words_in(said)
    return {tuple(words[at:at + count]) for at in range(len(words) - count + 1)}


def comments_of(case):
    """Of the program's source: Python's comments and docstrings, or those of the lesson's C++ files."""
    if case.kind == "python":
        source = python_job.programs()[case.page.slug].read_text(encoding="utf-8")
        said = [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)
                if token.type == tokenize.COMMENT]
        kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
        return [*said, *filter(None, map(ast.get_docstring, nodes))]
    folder = ROOT / "tests" / "mutants" if case.kind == "two" else ROOT / "lessons" / case.page.lesson
    return [part for file in folder.glob("*.cpp") for part in re.findall(r"//(.*)", file.read_text(encoding="utf-8"))]


def giving_away(page, outcome):
    """The words that name a fault, as patterns. A lesson whose name is a question's (metrics) may be spoken of."""
    asked_for = {question.name for question in evidence.PAID}
    name = page.lesson[3:]
    words = [page.slug, page.lesson, page.title, outcome.get("what", "")]
    words += [one["metric"] for one in outcome.get("oracles", [])]
    words += [] if {name, name + "s"} & asked_for or page.lesson == "no lesson" else [name]
    return [r"\b" + re.sub(r"[-_ \\]+", "[-_ ]", re.escape(word)) + r"\b" for word in words if word]


def complaints(case, said, outcome=None, logs=()):
    """What of all that a case has said gives the fault away, or does not fit. A comment may quote what torch says in
    the log."""
    found = [f"nothing is said: {each['event']}" for each in said if not each["lines"]]
    lines = [line for each in said for line in each["lines"]]
    found += [f"longer than {COLUMNS} columns: {line}" for line in lines if len(line) > COLUMNS]
    shown = " ".join(json.dumps(each) for each in said).replace('", "', " ").replace("\\n", " ")
    shown = " ".join(shown.split())
    own = {pattern for page in case.pages for pattern in giving_away(page, outcome or {})}
    for pattern in [*PLACES, *own, *(rf"(?<![\w-]){slug}(?![\w-])" for slug in PAGES if "-" in slug)]:
        if match := re.search(pattern, shown, re.IGNORECASE):
            found.append(f"gives away, by {pattern}: {shown[max(match.start() - 60, 0):match.end() + 40]}")
    known = in_a_row(" ".join(line for each in said if each["event"] in ("case", "evidence") for line in each["lines"]))
    known -= in_a_row(" ".join(text for _, text in logs))
    texts = [*comments_of(case), *(page.title for page in case.pages)]
    found += [f"words of the source, or a title: {' '.join(row)}" for text in texts for row in in_a_row(text) & known]
    return found


def complaints_of_job(case, job, every=None):
    return complaints(case, everything(game_of(case, job, every)), job.outcome, job.logs)


def command(*arguments):
    return [sys.executable, str(HERE / "detective.py"), *map(str, arguments)]


class Folder(unittest.TestCase):
    """With a state folder of its own, and a folder for temporary files that must be empty in the end."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-detective-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.environment = {**os.environ, "XDG_STATE_HOME": folder.name, "TMPDIR": str(self.temporary)}
        self.state = self.folder / "lockstep" / "detective.json"

    def play(self, said, *arguments, **environment):
        """`command` is the test's own."""
        result = subprocess.run(self.command(*arguments), input=said, capture_output=True, text=True,
                                timeout=DEADLINE_S, env={**self.environment, **environment})
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual(os.listdir(self.temporary), [])
        return result

    def kept(self):
        return json.loads(self.state.read_text(encoding="utf-8"))["cases"]

    def left(self):
        """Processes that work in this test's folder."""
        found = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += [file] if os.fsencode(self.temporary) in file.read_bytes() else []
            except OSError:
                pass
        return found

    def in_terminal(self, *dialogue, arguments=(), code=0):
        """What a terminal shows. `dialogue`: what is waited for, and what is typed then: a line, or keys as bytes."""
        child, terminal = pty.fork()
        if child == 0:
            own = self.command(*arguments)
            os.execve(own[0], own, self.environment)
        shown = ""
        try:
            for until, typed in dialogue:
                shown += self.read(terminal, until)
                if isinstance(typed, bytes):
                    self.until_it_reads(child)
                os.write(terminal, typed if isinstance(typed, bytes) else f"{typed}\n".encode() if typed else b"")
        finally:
            status = self.waited(child)
            os.close(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(status), code, shown)
        self.assertEqual((self.left(), os.listdir(self.temporary)), ([], []))
        return shown

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

    def until_it_reads(self, child):
        """Python misses a Ctrl-C that comes after its prompt and before it reads, and waits for the next."""
        end, state = time.monotonic() + DEADLINE_S, ""
        while state != "S" and time.monotonic() < end:
            time.sleep(0.01)
            state = pathlib.Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
        self.assertEqual(state, "S")

    def waited(self, child):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]
