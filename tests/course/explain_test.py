"""explain, as a reader sees it: every pitfall, at 80 columns, with and without a terminal, at once.

usage: explain_test.py PROGRAM Explain|More
"""

import collections
import os
import pathlib
import pty
import re
import resource
import subprocess
import sys
import tempfile
import threading
import unittest

PROGRAM = None
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 90
COLUMNS = 80
PROMISED_S = 0.2  # of a processor: on a loaded machine a clock measures the load
CALLS = 5
SECTIONS = ["Broken code", "Symptom", "Why", "Fix", "In your own job", "Links", "More"]
sys.path.insert(0, str(ROOT / "lessons" / "python"))
sys.dont_write_bytecode = True
from fold import fold, programs  # noqa: E402

SLUGS = {slug: path.parent.name for path in sorted((ROOT / "lessons").glob("*/*.cpp"))
         for slug in re.findall(r'\bfault\(\s*"(?!near-miss-)([a-z0-9-]+)"\)', path.read_text(encoding="utf-8"))}


def call(*arguments, **environment):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment})


def on_a_terminal(*arguments, **environment):
    """What the program writes to a terminal. Its side stays open until all was read: where it is closed, what is still
    under way may be lost."""
    ours, theirs = pty.openpty()
    end, text = b"\0", b""
    with subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                          env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment}) as process:
        def wait():
            try:
                process.wait(DEADLINE_S)
            finally:
                process.kill()
                os.write(theirs, end)

        waits = threading.Thread(target=wait)
        waits.start()
        while not text.endswith(end):
            text += os.read(ours, 65536)
        waits.join()
    os.close(ours)
    os.close(theirs)
    return text.removesuffix(end).decode().replace("\r\n", "\n")


def processor_time_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def without_colours(text):
    return re.sub(r"\x1b\[\d+m", "", text)


class Base(unittest.TestCase):
    def assert_plain(self, text, blank=""):
        self.assertNotIn("\x1b", text)
        for line in text.splitlines():
            # A URL cannot be broken.
            if "https://" not in line:
                self.assertLessEqual(len(line), COLUMNS, line)
            self.assertTrue(line == line.rstrip() or line == blank, line)


class Explain(Base):
    def test_every_pitfall_is_explained(self):
        self.assertGreaterEqual(len(SLUGS), 100)
        for slug, lesson in SLUGS.items():
            with self.subTest(slug):
                result = call("explain", slug)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assert_plain(result.stdout)
                lines = result.stdout.splitlines()
                self.assertTrue(lines[0].startswith(f"{slug}: "), lines[0])
                places = [lines.index(name) for name in SECTIONS]
                self.assertEqual(places, sorted(places))
                for begin, end in zip(places, places[1:] + [len(lines)]):
                    self.assertTrue(any(line.strip() for line in lines[begin + 1:end]), lines[begin])
                place = lines[places[0] + 1].strip()
                file, number = place.rsplit(":", 1)
                switch = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
                self.assertIn(f'fault("{slug}")', switch)
                self.assertTrue(file.startswith(f"lessons/{lesson}/"), file)
                # The code tells the variants apart.
                code = [lines[begin:end] for begin, end in ((places[0], places[1]), (places[3], places[4]))]
                signs = [any(line.startswith(f"   {sign}| ") for line in part) for sign, part in zip("-+", code)]
                self.assertTrue(any(signs), code)
                for sign, part in zip("-+", code):
                    self.assert_whole_statements_are_marked([line for line in part if line[4:5] == "|"], sign)
                self.assertNotIn('fault("', result.stdout)
                self.assertIn(f"./lockstep run {lesson[:2]} --variant {slug}", result.stdout)

    def assert_whole_statements_are_marked(self, lines, sign):
        """A line that goes on with the statement of the one above has its sign: a `+` of C++ is behind the bar."""
        for above, line in zip(lines, lines[1:]):
            self.assertRegex(line, rf"^   [ {sign}]\|(?: |$)")
            code = re.sub(r'"(?:\\.|[^"\\])*"', '""', above[6:]).split("//")[0].rstrip()
            if code and code[-1] not in ";{}:" and line[6:].strip():
                self.assertEqual(line[3], above[3], (above, line))

    def test_a_symptom_is_found_by_its_words(self):
        titles = re.findall(r"^## (.*)$", (ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertGreater(len(titles), 20)
        asked = {title: title for title in titles} | {
            "loss is nan": "The loss is NaN, swings or explodes", "stuck after validation": "It hangs at the end of an epoch",
            "EADDRINUSE": "It stops before the first step", "unexpected keys module.": "The checkpoint cannot be loaded",
            "not reproducible": "Two runs with one seed differ", "it is hanging at the start": "It hangs at the start",
            "crashes": "A process is killed by a signal", "SIGTERM": "A process is killed by a signal",
            "the loss is higher than on one gpu": "It is worse on more GPUs", "weights not equal": "The loss differs between ranks",
            "it's worse when resuming from a checkpoint": "After a resume the loss jumps", "loss plateaus": "The loss does not fall"}
        for words, title in asked.items():
            result = call("explain", "--symptom", words)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assert_plain(result.stdout)
            self.assertEqual(result.stdout.splitlines()[0], title, words)
            self.assertIn("\nWhat decides: ", result.stdout.replace("\n  What", "\nWhat"))
        self.assertEqual(call("explain", "--symptom", "not", "reproducible").stdout.splitlines()[0], asked["not reproducible"])
        result = call("explain", "--symptom", "qwertyuiop")
        self.assertIn("No symptom has any of these words", result.stdout)
        self.assertEqual(re.findall(r"^  - (.*)$", result.stdout, re.MULTILINE), titles)

    def test_a_generic_finding_is_explained_too(self):
        result = call("explain", "optimizer-differs")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("No pitfall has a name for what is wrong: an option of an optimizer, such as\n", result.stdout)
        self.assertIn("\n  - scheduler-or-rng-state-missing: after a resume the schedule begins anew\n", result.stdout)
        misspelt = call("explain", "outside-paramters-differ")
        self.assertEqual(misspelt.returncode, 2)
        self.assertIn("the nearest:\n  outside-parameters-differ", misspelt.stderr)

    def test_all_are_listed_by_lesson(self):
        result = call("explain")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assert_plain(result.stdout)
        listed = {}
        for line in result.stdout.splitlines():
            if re.match(r"\d\d_", line):
                lesson = line
            elif found := re.match(r"  ([a-z0-9-]+) +\S", line):
                listed[found.group(1)] = lesson
        self.assertEqual(listed, SLUGS)

    def test_wrong_use(self):
        for arguments, text in ((("no-such",), "no-such"), (("mising-set-epoch", "--diff"), "missing-set-epoch"),
                                (("--diff",), "slug"), (("missing-set-epoch", "other"), "other"), (("--code", "right"), "slug"),
                                (("missing-set-epoch", "--code", "wrong"), "wrong"),
                                (("missing-set-epoch", "--code", "right", "--diff"), "--diff"),
                                (("missing-set-epoch", "--code", "right", "--python"), "--python")):
            result = call("explain", *arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertEqual(result.stderr.count("error:"), 1)
            self.assertIn(text, result.stderr)

    def test_colours_are_for_terminals_and_say_nothing_more(self):
        for arguments in (("explain",), ("explain", "missing-set-epoch"), ("explain", "missing-set-epoch", "--diff")):
            plain = call(*arguments).stdout
            colours = on_a_terminal(*arguments)
            self.assertIn("\x1b[1m", colours)
            self.assertEqual(without_colours(colours), plain)
            for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
                self.assertEqual(on_a_terminal(*arguments, **environment), plain)
        self.assertRegex(on_a_terminal("explain", "missing-set-epoch", "--diff"), "\x1b\\[31m-.*\x1b\\[0m\n\x1b\\[32m\\+")

    def test_it_answers_at_once(self):
        for arguments in (("explain",), ("explain", "missing-set-epoch"), ("explain", "missing-set-epoch", "--diff"),
                          ("list",)):
            start = processor_time_of_children()
            for _ in range(CALLS):
                self.assertEqual(call(*arguments).returncode, 0)
            each = (processor_time_of_children() - start) / CALLS
            print(" ".join(arguments), f"{each:.3f} s")
            self.assertLess(each, PROMISED_S, arguments)

    def test_it_loads_no_torch(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
        self.assertNotRegex(libraries, r"lib(torch|c10)")  # not in an address


class More(Base):
    """Of every pitfall: the full tier's."""

    def test_every_difference_is_a_patch(self):
        for slug in SLUGS:
            with self.subTest(slug), tempfile.TemporaryDirectory() as folder:
                patch, broken, right = (call("explain", slug, *how) for how in (
                    ("--diff",), ("--code", "broken"), ("--code", "right")))
                for result in (patch, broken, right):
                    self.assertEqual((result.returncode, result.stderr), (0, ""))
                    self.assertNotIn("\x1b", result.stdout)
                lines = patch.stdout.splitlines()
                self.assertEqual(lines[:2], [f"--- a/{slug}.cpp", f"+++ b/{slug}.cpp"])
                self.assertRegex(lines[2], r"^@@ -\d+,\d+ \+\d+,\d+ @@$")
                self.assertTrue(any(line[:1] in ("-", "+") for line in lines[3:]))
                file = pathlib.Path(folder, f"{slug}.cpp")
                file.write_text(broken.stdout, encoding="utf-8")
                # No fuzz: every line of context is the file's own.
                patched = subprocess.run(["patch", "-p1", "-F0"], cwd=folder, input=patch.stdout, capture_output=True,
                                         text=True, timeout=DEADLINE_S)
                self.assertEqual((patched.returncode, patched.stdout), (0, f"patching file {slug}.cpp\n"), patched)
                self.assertEqual(file.read_text(encoding="utf-8"), right.stdout)

    def test_the_same_in_python(self):
        """Of every pitfall that has a Python program; of the others, that there is none."""
        there = programs()
        self.assertGreater(len(there), 80)
        for slug, lesson in SLUGS.items():
            with self.subTest(slug):
                result = call("explain", slug, "--python")
                if slug not in there:
                    self.assertEqual((result.returncode, result.stdout), (2, ""))
                    self.assertIn("no program in Python", result.stderr)
                    continue
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                # A line of Python code stays whole.
                self.assert_plain(re.sub(r"^   [ +-]\|.*", "", result.stdout, flags=re.MULTILINE))
                self.assertIn(f"  {there[slug].relative_to(ROOT)}\n", result.stdout)
                marked = {sign: [line.strip() for line in re.findall(rf"^   {re.escape(sign)}\| +(.*)$", result.stdout, re.MULTILINE)]
                          for sign in "-+"}
                self.assertTrue(marked["-"] or marked["+"])
                source = there[slug].read_text(encoding="utf-8")
                plain = [" ".join(fold(source, which).split()) for which in (slug, "")]
                for sign, text in zip("-+", plain):
                    for line in marked[sign]:
                        self.assertIn(" ".join(line.split()), text)
                self.assertNotIn('fault("', result.stdout)
                self.assertIn(f"./lockstep run {lesson[:2]} --python", result.stdout)
        marked = re.findall(r"^   ([-+])\| +(.*)$", call("explain", "missing-set-epoch", "--python").stdout, re.MULTILINE)
        self.assertEqual(marked, [("+", "if sampler is not None:"), ("+", "sampler.set_epoch(epoch)")])

    def test_on_a_terminal_a_difference_is_folded(self):
        narrower = 0
        for slug in SLUGS:
            with self.subTest(slug):
                patch = call("explain", slug, "--diff").stdout.splitlines()
                shown = on_a_terminal("explain", slug, "--diff", NO_COLOR="1")
                self.assert_plain(shown, blank=" ")
                # What is not folded is as in the patch; what is has the same words, those after a `>` too.
                words = collections.Counter(re.sub(r"[>\s+-]+|//", " ", "\n".join(patch)).split())
                seen = collections.Counter(re.sub(r"[>\s+-]+|//", " ", shown).split())
                self.assertEqual(words, seen)
                lines = shown.splitlines()
                self.assertEqual([line for line in patch if len(line) <= COLUMNS],
                                 [line for line in lines if line in set(patch)])
                folded = [line for line in lines if line.startswith(">")]
                self.assertEqual(bool(folded), any(len(line) > COLUMNS for line in patch))
                narrower += bool(folded)
                self.assertEqual([line for line in lines[3:] if line[:1] not in ("", " ", "-", "+", "@", ">")], [])
        self.assertGreater(narrower, 20)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
