"""Row 18: a host name is looked up for no longer than the timeout, though no name server answers: left to itself the
system asks for twenty seconds. In a network namespace whose only name server is deaf.

usage: name_lookup_test.py GLOO_RANK      (as root)
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import nothing_left  # noqa: E402

GLOO_RANK = None
INSIDE = 'ip link set lo up && mount --bind "$0" /etc/resolv.conf && exec "$@"'
TIMEOUT_S = 1.0


def inside(folder, *command, **environment):
    """The command where no name server answers."""
    resolver = folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\n")
    return subprocess.run(["unshare", "--net", "--mount", "sh", "-c", INSIDE, str(resolver), *command], text=True,
                          capture_output=True, timeout=60, stdin=subprocess.DEVNULL, env={**os.environ, **environment})


def with_a_deaf_server(command):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 53))
        begin = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=50, check=False)
        print(f"took {time.monotonic() - begin:.3f}")
    return done.returncode


class NameLookup(nothing_left.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="lockstep-name-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        if not all(map(shutil.which, ("unshare", "ip"))):
            self.skipTest("unshare or ip is not installed")
        tried = inside(self.folder, "true")
        if tried.returncode != 0:
            self.skipTest(f"namespaces need root: {tried.stderr.strip()}")

    def test_ends_at_the_timeout(self):
        for rank in ("0", "1"):
            done = inside(self.folder, sys.executable, __file__, "--inside", GLOO_RANK, "init", RANK=rank,
                          WORLD_SIZE="2", MASTER_ADDR="no-such-host.example", MASTER_PORT="29500",
                          LOCKSTEP_ERROR_FILE=str(self.folder / "error.json"),
                          LOCKSTEP_FAULT_TIMEOUT_MS=str(int(TIMEOUT_S * 1000)))
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn('the host "no-such-host.example" has no address', done.stderr)
            took = float(done.stdout.split("took ")[1])
            self.assertGreater(took, TIMEOUT_S)
            self.assertLess(took, TIMEOUT_S + 2)


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        sys.exit(with_a_deaf_server(sys.argv[2:]))
    GLOO_RANK = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
