"""The commands of the course that pages show, run as a reader would: each ends as its page lets expect, and prints what
the lesson's page quotes of it. Of the full tier: it takes three quarters of an hour.

usage: lesson_pages_test.py BUILD      (the folder that ./lockstep has built)
"""

import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import docs_test  # noqa: E402
from page_commands import ROOT, commands_of, lesson_of, of_the_course, real  # noqa: E402

BUILD = None
DEADLINE_S, LONG_DEADLINE_S = 600, 1800
SKIPPED = 77
LESSONS = sorted(path.parent.name for path in ROOT.glob("lessons/[0-9][0-9]_*/lesson.md"))
# What a run has to show: a figure of an oracle, and what follows these words.
FIGURE = re.compile(r"(?:expected|observed) -?\d")
SHOWS = re.compile(r"\b(?:shows|finding says|and says)\b")
CODE = re.compile(r'`([^`]+)`|"([^"]+)"')
RANKS = re.compile(r"\b(\d+|two|three|four) (?:ranks|devices)\b")
NUMBERS = {"two": "2", "three": "3", "four": "4"}


def environment():
    return docs_test.environment(Run.folder.name)


@functools.cache
def ran(command):
    """(exit code, output, errors) of a command; nobody's reports are replaced."""
    if command.startswith("./lockstep run ") and "--python" not in command:
        command += f" --reports {shlex.quote(str(pathlib.Path(Run.folder.name, 'reports')))}"
    deadline = LONG_DEADLINE_S if re.search("--full|--python", command) else DEADLINE_S
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=deadline,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def one_name(command):
    """Lessons by their whole name, so that what several pages show is run once."""
    return re.sub(r"^(\./lockstep run )(\S+)", lambda found: found[1] + lesson_of(found[2]), real(command))


def joined(text):
    return " ".join(text.split())


def variants_of(lesson):
    told = json.loads((BUILD / "described" / f"{lesson}.json").read_text(encoding="utf-8"))
    return {one["name"] for one in told["variants"]}


def quotes(lesson):
    """(what is quoted, the commands of which one must print it) of a lesson's page."""
    text = (ROOT / "lessons" / lesson / "lesson.md").read_text(encoding="utf-8")
    known = variants_of(lesson)
    after = text.split("## Run it\n")[1].split("## Exercise\n")[0]
    paragraphs = re.split(r"\n\n+|\n(?=- |\d\. |##)", after)
    for paragraph in paragraphs:
        if paragraph.startswith("    "):
            continue
        named = [name for name in re.findall(r"`([a-z0-9-]+)`", paragraph) if name in known]
        for sentence in re.split(r"(?<=[.?!])\s+(?=[A-Z\"(`])", joined(paragraph)):
            variants = [name for name in re.findall(r"`([a-z0-9-]+)`", sentence) if name in known] or named[:1]
            ranks = {NUMBERS.get(number, number) for number in RANKS.findall(sentence)}
            shows = SHOWS.search(sentence)
            for code in CODE.finditer(sentence):
                said = code[1] or code[2]
                if not (FIGURE.match(said) or (shows and code.start() > shows.start() and re.search(r"[ \d]", said) and said not in known)):
                    continue
                where = [f" --variant {variant}" for variant in variants] or [""]
                where += [" --variant correct"] if variants and "correct variant" in sentence else []
                sizes = [f" --world-size {number}" for number in sorted(ranks)] or [""]
                yield said, [f"./lockstep run {lesson}{which}{size}" for size in sizes for which in where]


def of_the_runs(text):
    """Without the page itself, which is printed around the runs."""
    return re.split(r"^(?:The answer|Why)$", re.split(r"^The runs$", text, flags=re.MULTILINE)[1], flags=re.MULTILINE)[0]


def is_said(quote, text):
    parts = map(re.escape, joined(quote).split("..."))
    return re.search(rf"(?<![\d.]){'.*?'.join(parts)}(?!\.?\d)", joined(text)) is not None


class Run(unittest.TestCase):
    folder = None

    @classmethod
    def setUpClass(cls):
        if Run.folder is None:
            Run.folder = tempfile.TemporaryDirectory(prefix="lockstep-lesson-pages-test-")
            unittest.addModuleCleanup(Run.folder.cleanup)

    def expect(self, command, *codes):
        code, out, err = ran(command)
        self.assertIn(code, codes, f"{command}\n{out[-1500:]}{err[-1500:]}")
        return out

    def folder_for(self, command):
        return pathlib.Path(self.folder.name, re.sub(r"\W+", "_", command))


class Commands(Run):
    def test_every_command_of_the_course(self):
        commands = {one_name(command) for command in of_the_course() if "exercise" not in command and "--help" not in command}
        self.assertGreater(len(commands), 60)
        for command in sorted(commands):
            with self.subTest(command):
                there = re.sub(r"\bDIR\b", lambda _: shlex.quote(str(self.folder_for(command))), command)
                out = self.expect(there, 0, *([SKIPPED] if "17_nccl" in command else []))
                self.assertTrue(out.strip())

    def test_every_exercise(self):
        commands = sorted(real(command) for command in of_the_course() if "exercise" in command)
        self.assertGreater(len(commands), 20)
        for command in commands:
            with self.subTest(command):
                in_it = f" --folder {shlex.quote(str(self.folder_for(command)))}"
                start = re.sub("exercise (?:hint|check|prove|reset)", "exercise start", command)
                self.expect(start + in_it, 0)
                if start != command:  # what was handed out is not yet right
                    self.expect(command + in_it, 1 if "check" in command else 0)

    def test_the_lesson_under_torchrun(self):
        [command] = [command for command in commands_of(ROOT / "lessons/18_elastic_restart/lesson.md") if "torchrun" in command]
        there = command.replace("build/clang-2.11.0", shlex.quote(str(BUILD)))
        there = there.replace("/tmp/a-new-folder", shlex.quote(str(self.folder_for("torchrun"))))
        self.assertNotIn("/tmp/a-new", there)
        self.expect(there.replace("--nproc-per-node", "--standalone --nproc-per-node"), 0)  # no port of its own


class Quotes(Run):
    def check(self, lesson):
        for quote, commands in quotes(lesson):
            with self.subTest(quote):
                outputs = []
                for command in commands:
                    outputs.append(of_the_runs(self.expect(command, 0, *([SKIPPED] if "17_nccl" in lesson else []))))
                    if is_said(quote, outputs[-1]):
                        break
                else:
                    self.fail(f"{lesson}: `{quote}` is printed by none of {commands}:\n" + "\n".join(outputs)[-4000:])

    def test_every_lesson_quotes_its_run(self):
        self.assertEqual([lesson for lesson in LESSONS if not list(quotes(lesson))], [])

    def test_the_steps_losses(self):
        text = (ROOT / "lessons" / "start" / "start.md").read_text(encoding="utf-8")
        lines = re.findall(r"^    ((?:rank \d, )?epoch \d: loss .*)$", text, re.MULTILINE)
        self.assertEqual(len(lines), 5)
        for command in ("./lockstep start", "./lockstep start --python"):
            out = self.expect(command, 0)
            for line in lines:
                self.assertIn(f"{line}\n", out, command)


def test_of(lesson):
    return lambda self: self.check(lesson)


for _lesson in LESSONS:
    setattr(Quotes, f"test_{_lesson}", test_of(_lesson))

if __name__ == "__main__":
    BUILD = docs_test.BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if not docs_test.environment(""):
        print(f"skipped: {BUILD} was not built by ./lockstep, whose commands the pages show")
        sys.exit(77)
    unittest.main(verbosity=2)
