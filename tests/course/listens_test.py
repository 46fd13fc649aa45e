"""While a job of the course runs, its processes listen on this machine's loopback addresses only.

usage: listens_test.py PROGRAMS PACKAGE      (the folder of the built steps; the one that holds the built lockstep_torch)
"""

import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
sys.path.insert(0, str(ROOT / "lessons" / "loopback"))
import loopback  # noqa: E402
import nothing_left  # noqa: E402

PROGRAMS = PACKAGE = None
DEADLINE_S = 150
# 127.0.0.1, in both tables as /proc writes them, 127.0.0.2, which a lesson takes for another machine's, and ::1.
LOOPBACK = {"0100007F", "0200007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


class Listens(nothing_left.TestCase):
    def assert_on_loopback(self, *command, code=0):
        """Something is seen to listen while the command runs, and nothing elsewhere."""
        seen = {}
        folder = tempfile.mkdtemp(prefix="lockstep-listens-")  # torch leaves files in TMPDIR
        self.addCleanup(shutil.rmtree, folder)
        variables = {**os.environ, "PYTHONPATH": PACKAGE, "XDG_STATE_HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=variables) as job:
            until = time.monotonic() + DEADLINE_S
            while job.poll() is None and time.monotonic() < until:
                for pid, what in nothing_left.marked(self.mark).items():
                    seen |= {address.split(":")[0]: what for address in nothing_left.listening_sockets(pid)}
                time.sleep(0.05)
            job.kill()
            self.assertEqual(job.wait(), code, job.stderr.read()[-2000:])
        self.assertTrue(seen, "nothing was seen to listen")
        self.assertEqual({address: what for address, what in seen.items() if address not in LOOPBACK}, {})

    def test_a_store_that_cannot_listen_here_listens_nowhere(self):
        """Only where its port is taken the store is asked itself."""
        given = {"host_name": "localhost", "port": 1, "is_master": True}
        for code, raised in ((errno.EADDRINUSE, contextlib.nullcontext()), (errno.EACCES, self.assertRaises(OSError))):
            with mock.patch("socket.create_server", side_effect=OSError(code, "")), raised:
                self.assertEqual(loopback.served_here(dict(given)), given | {"host_name": "127.0.0.1"})

    def test_a_step_of_start(self):
        for language in ((), ("--python",)):
            with self.subTest(language=language):
                self.assert_on_loopback(sys.executable, ROOT / "lessons" / "start" / "run.py", "2", "--programs", PROGRAMS, *language)

    def test_programs_in_python(self):
        """One that torch's launcher would start, one that starts it itself, and those that serve a store of their own."""
        for slug in ("missing-set-epoch", "restart-expected-by-default", "group-never-destroyed", "spawn-under-launcher",
                     "fixed-port"):
            with self.subTest(slug):
                self.assert_on_loopback(sys.executable, ROOT / "lessons" / "python" / "run.py", "all", "--variant", slug)


if __name__ == "__main__":
    PROGRAMS, PACKAGE = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
