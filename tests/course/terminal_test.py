"""The course in a real terminal (tmux), as a new user drives it: typed line by line, at 80x24 and at 200x50, wrong
input and Ctrl-C included. What is on the screen must fit it: a line that the terminal had to wrap is a failure.

usage: terminal_test.py PROGRAM
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = None
DEADLINE_S = 90  # for one command
PROMPT = re.compile(r"\[(\d+):(\d+)\]\$ ?(.*)")  # the command's number, and how the one before it ended
ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
# What ends what: 0 all, 22 bold, 39 the colour; a colour ends the one before.
COLOURS = set(range(30, 38))
OFF = {0: {1, *COLOURS}, 22: {1}, 39: COLOURS, 49: set()}
PAGE_SECTIONS = ["Broken code", "Symptom", "Why", "Fix", "In your own job", "Links", "More"]
SLUG = "missing-set-epoch"


def until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S} s: {what()}")


def has_ended(pid):
    """It may still wait for its parent, which is none of ours, to ask how it ended."""
    try:
        return "\nState:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


class Answer:
    """What one command left on the screen."""

    def __init__(self, code, shown, whole, coloured):
        self.code, self.lines, self.coloured = code, whole, coloured
        self.text = "\n".join(whole)
        # tmux marks lines that went on below; -J joins them.
        self.wrapped = [line for line in whole if line not in shown]

    def colours(self):
        """[(the codes of a line's visible text, that line)] of lines that have any."""
        found, on = [], set()
        for line in self.coloured:
            codes = set()
            for at, part in enumerate(ESCAPE.split(line)):
                if at % 2 == 0:
                    codes |= on if part.strip() else set()
                    continue
                for code in map(int, part.replace(";", " ").split() or [0]):
                    # Lasts from line to line: tmux tells of changes only.
                    on = (on - OFF.get(code, COLOURS if code in COLOURS else set())) | ({code} - set(OFF))
            if codes:
                found.append((codes, ESCAPE.sub("", line)))
        return found


class Terminal:
    """A shell in a tmux server of its own, which ends with it."""

    def __init__(self, folder, columns, rows):
        self.mark = f"LOCKSTEP_TERMINAL_TEST={folder}"
        rc = folder / "rc"
        rc.write_text("PS1='[\\#:$?]$ '\nunset HISTFILE\n")
        programs = folder / "bin"
        programs.mkdir()
        (programs / "lockstep").symlink_to(PROGRAM)
        self.environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "TMPDIR": str(folder),
                            "TMUX_TMPDIR": str(folder), "XDG_STATE_HOME": str(folder / "state"), "LC_ALL": "C.UTF-8",
                            "LOCKSTEP_TERMINAL_TEST": str(folder), "SHELL": "/bin/bash"}
        self.folder = folder
        self.tmux("set-option", "-g", "history-limit", "50000", ";", "set-option", "-g", "default-terminal", "screen",
                  ";", "set-option", "-g", "status", "off", ";", "new-session", "-d", "-x", str(columns), "-y", str(rows),
                  "-c", str(folder), f"exec bash --noprofile --rcfile '{rc}'", first=True)
        self.server, self.shell = map(int, self.tmux("display-message", "-p", "#{pid} #{pane_pid}").split())
        self.number = 0
        self.wait_for_prompt(1)

    def tmux(self, *arguments, first=False):
        start = ["start-server", ";"] if first else []
        result = subprocess.run(["tmux", "-L", "lockstep", "-f", "/dev/null", *start, *arguments], text=True,
                                env=self.environment, capture_output=True, timeout=DEADLINE_S, cwd=self.folder)
        if result.returncode != 0:
            raise AssertionError(f"tmux {arguments}: {result.stderr}")
        return result.stdout

    def screen(self, *options):
        """The lines of the pane and of what has scrolled out of it."""
        return [line.rstrip() for line in self.tmux("capture-pane", "-p", "-S", "-", *options).rstrip("\n").split("\n")]

    def prompts(self, lines):
        """{number of the command: (at which line, how the one before it ended)}"""
        found = {}
        for at, line in enumerate(lines):
            match = PROMPT.match(ESCAPE.sub("", line))
            if match:
                found[int(match[1])] = (at, int(match[2]))
        return found

    def wait_for_prompt(self, number):
        until(lambda: number in self.prompts(self.screen("-J")), lambda: "\n".join(self.screen()[-20:]))
        self.number = number

    def type(self, line):
        self.tmux("send-keys", "-l", line)
        self.tmux("send-keys", "Enter")

    def press(self, key):
        self.tmux("send-keys", key)

    def wait_for(self, text):
        until(lambda: text in "\n".join(self.screen()), lambda: f"{text!r} in\n" + "\n".join(self.screen()[-20:]))

    def answer(self):
        """Of the command that was typed last."""
        number = self.number
        self.wait_for_prompt(number + 1)
        parts = []
        for options in ((), ("-J",), ("-J", "-e")):
            lines = self.screen(*options)
            prompts = self.prompts(lines)
            parts.append(lines[prompts[number][0] + 1:prompts[number + 1][0]])
        return Answer(prompts[number + 1][1], *parts)

    def call(self, line):
        self.type(line)
        return self.answer()

    def started(self):
        """The processes that came of this terminal, and are neither its shell nor its server."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return sorted(set(found) - {self.server, self.shell})

    def close(self):
        self.tmux("kill-server")
        until(lambda: has_ended(self.server), lambda: "tmux ends")


class Small(unittest.TestCase):
    columns, rows = 80, 24

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-terminal-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.terminal = Terminal(self.folder, self.columns, self.rows)
        self.addCleanup(self.terminal.close)

    def call(self, line, code=0):
        answer = self.terminal.call(line)
        self.assertEqual(answer.code, code, answer.text)
        self.assertEqual(answer.wrapped, [], f"{line} does not fit {self.columns} columns")
        return answer

    def assert_has(self, answer, *texts):
        for text in texts:
            self.assertIn(text, answer.text)

    def test_list(self):
        answer = self.call("lockstep list")
        lessons = [line for line in answer.lines if re.match(r"\d\d_\w+ +\d+ min", line)]
        self.assertGreaterEqual(len(lessons), 17, answer.text)
        self.assertTrue(lessons[0].endswith(" next"), lessons[0])
        self.assert_has(answer, "Next: ./lockstep run 01, then ./lockstep exercise start 01")
        self.assertEqual(answer.colours(), [])
        self.assertEqual(self.call("lockstep list | cat").lines, answer.lines)

    def test_explain(self):
        answer = self.call(f"lockstep explain {SLUG}")
        # Bold is for headings, red and green for lines that begin with what they mean.
        self.assertEqual([text for codes, text in answer.colours() if codes == {1}][1:], PAGE_SECTIONS)
        for codes, sign in (({31}, "-"), ({32}, "+")):
            lines = [text for of_line, text in answer.colours() if of_line == codes]
            self.assertTrue(lines, answer.text)
            self.assertEqual([line for line in lines if not line.lstrip().startswith(sign)], [])
        self.assertEqual([codes for codes, _ in answer.colours() if codes not in ({1}, {31}, {32})], [])
        for plain in (f"NO_COLOR=1 lockstep explain {SLUG}", f"TERM=dumb lockstep explain {SLUG}",
                      f"lockstep explain {SLUG} | cat"):
            again = self.call(plain)
            self.assertEqual((again.colours(), again.lines), ([], answer.lines), plain)

    def test_explain_the_difference(self):
        answer = self.call(f"lockstep explain {SLUG} --diff")
        self.assertRegex(answer.text, r"(?m)^-.*Nothing: the sampler deals epoch 0")
        self.assertRegex(answer.text, r"(?m)^\+.*sampler\.set_epoch\(epoch\)")
        self.assertEqual([text.split()[0] for codes, text in answer.colours() if codes == {1}], ["---", "+++"])
        self.assertEqual({(*codes, text[0]) for codes, text in answer.colours() if codes != {1}},
                         {(36, "@"), (31, "-"), (32, "+")})
        plain = self.call(f"NO_COLOR=1 lockstep explain {SLUG} --diff")
        self.assertEqual((plain.colours(), plain.lines), ([], answer.lines))

    def test_every_page_fits(self):
        every = self.call("lockstep explain")
        slugs = re.findall(r"^  ([a-z0-9]+(?:-[a-z0-9]+)+)(?: |$)", every.text, re.MULTILINE)
        self.assertGreaterEqual(len(slugs), 102)
        (self.folder / "slugs").write_text("\n".join(slugs) + "\n")
        for option in ("", " --diff"):
            answer = self.terminal.call(f"while read s; do lockstep explain $s{option} || break; done <slugs")
            self.assertEqual(answer.code, 0, answer.text[-2000:])
            # A URL is not to be broken.
            self.assertEqual([line for line in answer.wrapped if "https://" not in line], [])

    def test_an_exercise(self):
        begun = self.call("lockstep exercise start 05 --folder ex")
        self.assert_has(begun, f"ex/{SLUG}.cpp", f"./lockstep exercise hint {SLUG} --folder ex")
        file = self.folder / "ex" / f"{SLUG}.cpp"
        self.assertNotIn("set_epoch(", file.read_text())
        for hint in (1, 2, 3):
            self.assert_has(self.call("lockstep exercise hint 05 --folder ex"), f"Hint {hint} of 3")
        again = self.call("lockstep exercise start 05 --folder ex", code=2)
        self.assert_has(again, "error: ", "reset")
        file.write_text("// mine\n")
        self.call("lockstep exercise reset 05 --folder ex")
        self.assertNotEqual(file.read_text(), "// mine\n")
        self.assertIn("// mine\n", [path.read_text() for path in (self.folder / "ex").iterdir()])

    def test_run_of_a_variant(self):
        answer = self.call(f"lockstep run 05 --variant {SLUG} --reports r")
        self.assert_has(answer, "The idea\n", "Why\n", "The fix\n", "expected 3, observed 1",
                        f"violation: {SLUG}, ranks 0 and 1", "Every variant ended as expected.")
        heads = [text for codes, text in answer.colours() if codes == {1}]
        self.assertIn("The idea", heads)
        self.assertTrue((self.folder / "r/variants/05_set_epoch.json").exists())
        self.assertEqual(self.terminal.started(), [])

    def test_wrong_input(self):
        for line, texts in (("lockstep", ["error: ", "--help"]), ("lockstep dance", ["error: ", '"dance"', "explain"]),
                            ("lockstep explain set-epoch", ['no pitfall "set-epoch"', "the nearest: ", SLUG]),
                            ("lockstep explain no-such --diff", ['no pitfall "no-such"']),
                            ("lockstep run 99", ["no lesson", "99", "18_elastic_restart"]),
                            (f"lockstep run {SLUG}", [f"./lockstep run 05 --variant {SLUG}"]),
                            (f"lockstep run 05 --variant {SLUG}s", [f'no variant "{SLUG}s"', f"the nearest: {SLUG},"]),
                            ("lockstep exercise", ["error: "]), ("lockstep exercise start", ["error: ", "exercise"]),
                            ("lockstep exercise start 99", ["no lesson", "99"]), ("lockstep exercise hint no-such", ['"no-such"']),
                            ("lockstep diagnose nowhere", ["nowhere"]), ("lockstep diagnose", ["error: "])):
            answer = self.terminal.call(line)
            self.assertIn(answer.code, (2, 3) if "nowhere" in line else (2,), (line, answer.text))
            self.assertEqual((answer.wrapped, answer.colours()), ([], []), line)
            for text in texts:
                self.assertIn(text, " ".join(answer.text.split()), line)

    def test_ctrl_c_in_a_run(self):
        self.terminal.type("lockstep run 05 --full --reports r")
        self.terminal.wait_for("accuracy by rank")  # of the first variant: the next is under way
        until(lambda: len(self.terminal.started()) >= 3, lambda: "a launcher and its ranks run")
        self.terminal.press("C-c")
        answer = self.terminal.answer()
        self.assertEqual(answer.code, 130, answer.text)
        self.assert_has(answer, "no rank is left")
        self.assertEqual(answer.wrapped, [])
        self.assertEqual(self.terminal.started(), [])
        self.assertEqual(self.call("echo as before").lines, ["as before"])


class Large(Small):
    columns, rows = 200, 50


if __name__ == "__main__":
    PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
    if shutil.which("tmux") is None:
        print("skipped: there is no tmux; Debian's package tmux has it")
        sys.exit(77)
    unittest.main()
