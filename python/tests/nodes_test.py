"""A job on two nodes, each with its own agent, `watch` and folder: one node's traces, and all that were gathered.

usage: python3 nodes_test.py PACKAGE      the folder that holds lockstep_torch, for PYTHONPATH
"""

import json
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

from package import LOCKSTEP, environment, run

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 90
STARTED_UNIX_AT = 56  # of a trace (common/lockstep/trace/trace.md)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Nodes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.disks = [self.folder / f"node {node}" for node in range(2)]

    def job(self, *arguments):
        """What the `watch` of each node says."""
        port = str(free_port())
        nodes = [subprocess.Popen(
            [*LOCKSTEP, "watch", "--into", disk, "--", sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
             "--node-rank", str(node), "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port,
             HERE / "job.py", *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for node, disk in enumerate(self.disks)]
        try:
            said = [node.communicate(timeout=DEADLINE_S)[1] for node in nodes]
        finally:
            for node in nodes:
                node.kill()
        self.assertEqual([node.returncode for node in nodes], [0, 0], said)
        return said

    def found(self, folder):
        done = run([*LOCKSTEP, "diagnose", "--json", folder], DEADLINE_S)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        said = json.loads(done.stdout)
        return said["recorded_ranks"], [(one["pitfall"], one["ranks"]) for one in said["findings"]]

    def test_a_part_says_so_and_the_whole_is_diagnosed_whatever_the_clocks_say(self):
        for of_node in self.job("another-dropout"):
            self.assertIn("2 of 4 ranks recorded", of_node)
            self.assertNotIn("BROKEN", of_node)
        part = run([*LOCKSTEP, "diagnose", self.disks[1]], DEADLINE_S)
        self.assertIn("2 of 4 ranks recorded", part.stdout)
        whole, other = self.disks
        subprocess.run(["cp", "-r", f"{other}/.", whole], check=True)  # as docs/python.md says
        named = (4, [("configuration-differs", [1])])
        self.assertEqual(self.found(whole), named)
        for skew_s in (-3600, 0.4, 7):
            for rank in (2, 3):
                head = bytearray((other / f"rank_{rank}.trace").read_bytes())
                started, = struct.unpack_from("<q", head, STARTED_UNIX_AT)
                struct.pack_into("<q", head, STARTED_UNIX_AT, started + int(skew_s * 1e9))
                (whole / f"rank_{rank}.trace").write_bytes(head)
            with self.subTest(skew_s=skew_s):
                self.assertEqual(self.found(whole), named)


if __name__ == "__main__":
    unittest.main()
