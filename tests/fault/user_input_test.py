"""Row 33: what a user gets wrong, or the machine has no room for, is a usage error (2) or a clear error (3), and nothing
half-written is left.

usage: user_input_test.py LESSON COURSE      (a built lesson, and the program behind ./lockstep)
"""

import gzip
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import nothing_left  # noqa: E402

LESSON = COURSE = None
DEADLINE_S = 50


class UserInput(nothing_left.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="lockstep-input-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def call(self, *command, **environment):
        return subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=DEADLINE_S,
                              env={**os.environ, **environment}, stdin=subprocess.DEVNULL, cwd=self.folder)

    def assert_refused(self, code, said, *command, **environment):
        before = self.files()
        done = self.call(*command, **environment)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)
        self.assertIn(said, " ".join(done.stderr.split()))  # lines of 80 columns may break a path at a space
        self.assertEqual(self.files(), before)

    def files(self):
        return {str(path.relative_to(self.folder)): path.stat().st_size for path in self.folder.rglob("*")}

    def test_command_lines(self):
        for arguments, said in ((("--variant", "no-such-form"), "no-such-form"), (("--world-size", "x"), "x"),
                                (("--timeout", "-1"), "--timeout"), (("--no-such-option",), "--no-such-option"),
                                (("--json", self.folder / "none" / "r.json"), str(self.folder / "none")),
                                (("--json", self.folder), str(self.folder))):
            with self.subTest(arguments):
                self.assert_refused(2, said, LESSON, *arguments)
        self.assert_refused(2, "no-such-lesson", COURSE, "run", "no-such-lesson")

    def test_files_that_are_not_what_they_should_be(self):
        for name, content, said in (("rank_0.json", b'{"entries": [', "rank_0.json"),
                                    ("rank_0.trace", b"no trace", "rank_0.trace")):
            place = self.folder / name.replace(".", "_")
            place.mkdir()
            (place / name).write_bytes(content)
            self.assert_refused(3, said, COURSE, "diagnose", place)
        self.assert_refused(3, "nowhere", COURSE, "diagnose", self.folder / "nowhere")

    def test_data_sets(self):
        data = self.folder / "data"
        data.mkdir()
        self.assert_refused(3, str(data), LESSON, "--variant", "correct", LOCKSTEP_DATA=str(data))
        for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
            (data / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03 and no more"))
        self.assert_refused(3, str(data), LESSON, "--variant", "correct", LOCKSTEP_DATA=str(data))

    def test_paths_with_spaces_and_quotes(self):
        place = self.folder / "it's a \"place\" $HOME"
        place.mkdir()
        done = self.call(LESSON, "--variant", "missing-set-epoch", "--json", place / "a 'report'.json", "--trace",
                         place / "the traces")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(path.name for path in place.iterdir()), ["a 'report'.json", "the traces"])
        self.assertIn("missing-set-epoch", self.call(COURSE, "diagnose", next((place / "the traces").glob("*/*"))).stdout)

    def on_a_disk(self, options, command):
        """Runs it in the folder disk/, a file system of its own, gone with the process; (result, files there)."""
        disk = self.folder / "disk"
        disk.mkdir()
        listing = self.folder / "listing"
        inside = (f'mount -t tmpfs -o size=1m none "$0" && cd "$0" && {options} && "$@"; code=$?; '
                  f'find . -type f >"{listing}"; exit $code')
        done = self.call("unshare", "--mount", "sh", "-c", inside, disk, *command)
        return done, sorted(listing.read_text().split()) if listing.exists() else None

    def require_mounts(self):
        tried = self.call("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0"', self.folder)
        if tried.returncode != 0:
            self.skipTest(f"a file system of its own needs root: {tried.stderr.strip()}")

    def test_a_read_only_folder(self):
        self.require_mounts()
        done, files = self.on_a_disk("mount -o remount,ro .", [LESSON, "--variant", "correct", "--json", "report.json"])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--json", done.stderr)
        self.assertEqual(files, [])

    def test_a_full_disk(self):
        self.require_mounts()
        fill = "head -c 2000000 /dev/zero >fill 2>/dev/null || true"
        done, files = self.on_a_disk(fill, [LESSON, "--variant", "correct", "--json", "report.json"])
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("report.json", done.stderr)
        self.assertIn("No space left", done.stderr)
        self.assertEqual(files, ["./fill"])


if __name__ == "__main__":
    LESSON, COURSE = (str(pathlib.Path(path).resolve()) for path in (sys.argv.pop(1), sys.argv.pop(1)))
    unittest.main(verbosity=2)
