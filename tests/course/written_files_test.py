"""What the course writes, where a link, a fifo or another user's folder lies in its way: no link is followed, nothing waits
for a fifo, and nothing but a regular file is replaced. SECURITY.md has the list.

usage: written_files_test.py PROGRAM
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
IN_PYTHON = ROOT / "lessons" / "python" / "exercise.py"
SITE = ROOT / "docs" / "site" / "build.py"
SCORE = "import sys; sys.path.insert(0, sys.argv[1]); import scores; scores.Scores().add('a case', 50)"
PROGRAM = None
SLUG = "missing-set-epoch"
NOBODY = 65534
DEADLINE_S = 60


def state_of(file):
    """But for when it was looked at last."""
    now = file.lstat()
    return now.st_mode, now.st_ino, now.st_size, now.st_mtime_ns


class Written(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-written-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.other = self.folder / "somebody's"
        self.other.write_text("somebody's")

    def call(self, *command, **more):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=DEADLINE_S,
                              stdin=subprocess.DEVNULL, env={**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}, **more)

    def in_the_way(self, file):
        """Puts there, one after another, what nothing may be written into; and looks at it afterwards."""
        file.parent.mkdir(parents=True, exist_ok=True)
        for what, put in (("a link", lambda: file.symlink_to(self.other)), ("a fifo", lambda: os.mkfifo(file)),
                          ("a link to nothing", lambda: file.symlink_to(self.folder / "none"))):
            put()
            with self.subTest(file=file.name, there=what):
                yield what
                self.assertEqual(self.other.read_text(), "somebody's")
                self.assertFalse((self.folder / "none").exists())
            if os.path.lexists(file):
                file.unlink()

    def assert_refused(self, result, *codes):
        self.assertIn(result.returncode, codes, result.stdout + result.stderr)
        self.assertIn("error:", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_progress_is_a_convenience(self):
        for name in ("progress.json", "progress.json.lock", "detective.json"):
            shutil.rmtree(self.folder / "state", ignore_errors=True)
            for _ in self.in_the_way(self.folder / "state" / "lockstep" / name):
                exercises = self.folder / "exercises"
                for command in ([PROGRAM, "list"], [PROGRAM, "explain", SLUG],
                                [PROGRAM, "exercise", "start", SLUG, "--folder", exercises],
                                [PROGRAM, "exercise", "hint", SLUG, "--folder", exercises],
                                [sys.executable, IN_PYTHON, "start", SLUG, "--folder", exercises],
                                [sys.executable, IN_PYTHON, "hint", SLUG, "--folder", exercises],
                                [sys.executable, "-c", SCORE, ROOT / "lessons" / "detective"]):
                    result = self.call(*command)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertNotIn("error: ", result.stderr)
                shutil.rmtree(exercises)

    def test_what_is_in_the_place_of_an_exercise_stays(self):
        for call, ending in (([PROGRAM, "exercise"], "cpp"), ([sys.executable, IN_PYTHON], "py")):
            file = self.folder / "exercises" / f"{SLUG}.{ending}"
            for what in self.in_the_way(file):
                before = state_of(file)
                self.assert_refused(self.call(*call, "start", SLUG, "--folder", file.parent), 2, 3)
                if what != "a link":
                    self.assert_refused(self.call(*call, "check", SLUG, "--folder", file.parent), 2, 3)
                if what == "a fifo":
                    self.assert_refused(self.call(*call, "reset", SLUG, "--folder", file.parent), 3)
                self.assertEqual(state_of(file), before)

    def test_a_run_s_report_and_traces(self):
        run = [PROGRAM, "run", "05", "--variant", "correct"]
        for _ in self.in_the_way(self.folder / "report.json"):
            self.assert_refused(self.call(*run, "--json", self.folder / "report.json"), 3)
        for _ in self.in_the_way(self.folder / "reports" / "variants" / "05_set_epoch.json"):
            self.assert_refused(self.call(*run, "--reports", self.folder / "reports"), 3)
        for name in ("rank_0.trace", "rank_0.err"):
            for _ in self.in_the_way(self.folder / "traces" / "05_set_epoch" / "correct" / name):
                self.assertNotEqual(self.call(*run, "--reports", self.folder, "--trace", self.folder / "traces").returncode, 0)

    def test_the_site(self):
        for name in ("html", "source", ".made-by-lockstep-docs"):
            for _ in self.in_the_way(self.folder / "site" / name):
                self.assert_refused(self.call(sys.executable, SITE, "--build-only", "--out", self.folder / "site"), 2, 3)

    @unittest.skipIf(os.geteuid() != 0, "only root can call as another user")
    def test_another_user_is_answered(self):
        """Who cannot write where the program was built, has no home, and was given traces to read."""
        traces = self.folder / "traces"
        self.call(PROGRAM, "run", "05", "--variant", SLUG, "--reports", self.folder, "--trace", traces)
        for path in (self.folder, *self.folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for arguments, code in (("list", 0), (f"explain {SLUG}", 0), (f"diagnose {traces}/05_set_epoch/{SLUG}", 1)):
            try:
                result = self.call(PROGRAM, *arguments.split(), user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
            except PermissionError:
                self.skipTest("another user cannot reach the program, whose folder is private")
            self.assertEqual((result.returncode, result.stderr), (code, ""), result.stdout)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
