"""The look at what a test in Python leaves behind (tests/support/nothing_left.py) sees what is left, and removes it.
The cases that leave something are run by a runner of their own: theirs fail, as they should.

usage: nothing_left_test.py
"""

import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import nothing_left  # noqa: E402

KEPT = []


class Leaves(nothing_left.TestCase):
    def nothing(self):
        with tempfile.TemporaryDirectory():
            subprocess.run(["true"], check=True)

    def a_process(self):
        KEPT.append(subprocess.Popen(["sleep", "600"]))

    def an_orphan(self):
        subprocess.run(["sh", "-c", "setsid sleep 600 & exit"], check=True)

    def a_file(self):
        tempfile.mkstemp(suffix="-left")

    def a_socket(self):
        server = socket.create_server(("127.0.0.1", 0))
        KEPT.append(server)

    def shared_memory(self):
        (nothing_left.SEGMENTS / f"lockstep-left-{self.mark}").touch()


class NothingLeft(unittest.TestCase):
    def failures(self, name):
        result = unittest.TestResult()
        Leaves(name).run(result)
        for kept in KEPT:
            (kept.wait if isinstance(kept, subprocess.Popen) else kept.close)()
        KEPT.clear()
        return [text for _, text in result.failures + result.errors]

    def test_nothing(self):
        self.assertEqual(self.failures("nothing"), [])

    def test_what_is_left_is_seen(self):
        for name, said in (("a_process", "'sleep 600 '"), ("an_orphan", "'sleep 600 '"), ("a_file", "-left'"),
                           ("a_socket", "'listening sockets': {'0100007F:"), ("shared_memory", "lockstep-left-")):
            with self.subTest(name):
                failures = self.failures(name)
                self.assertEqual(len(failures), 1)
                self.assertIn(said, failures[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
