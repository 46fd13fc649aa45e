"""The look at what a test in Python leaves behind (tests/support/nothing_left.py) sees what is left, and removes it.
The cases that leave something are run by a runner of their own: theirs fail, as they should.

usage: nothing_left_test.py
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import nothing_left  # noqa: E402

KEPT = []


class Other:
    """Another program of this machine, as the tests found it: its /dev/shm is not theirs."""

    def __init__(self):
        self.segment = nothing_left.SEGMENTS / f"lockstep-another-{os.getpid()}"
        self.process = subprocess.Popen(["sh", "-c", 'read _; : >"$0"; echo made; read _; rm "$0" && echo still there',
                                         self.segment], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def asked(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def make_segment(self):
        assert self.asked() == "made\n"

    def end(self):
        """What it said of its segment."""
        said = self.asked()
        self.process.communicate()
        return said


OTHER = None


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

    def nothing_beside_another(self):
        OTHER.make_segment()

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

    def test_the_shared_memory_of_others_is_left_alone(self):
        self.assertEqual(self.failures("nothing_beside_another"), [])
        self.assertEqual(OTHER.end(), "still there\n")

    def test_what_is_left_is_seen(self):
        for name, said in (("a_process", "'sleep 600 '"), ("an_orphan", "'sleep 600 '"), ("a_file", "-left'"),
                           ("a_socket", "'listening sockets': {'0100007F:")):
            with self.subTest(name):
                failures = self.failures(name)
                self.assertEqual(len(failures), 1)
                self.assertIn(said, failures[0])

    def test_shared_memory_is_seen(self):
        if not nothing_left.own_shared_memory():
            self.skipTest("no mount namespace can be made here")
        failures = self.failures("shared_memory")
        self.assertEqual(len(failures), 1)
        self.assertIn("lockstep-left-", failures[0])


if __name__ == "__main__":
    OTHER = Other()
    unittest.main(verbosity=2)
