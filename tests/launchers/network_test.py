"""A lesson on two machines: two network namespaces joined by a veth pair, one rank in each, and tc to make the
network slow, lossy, or deaf. (With a token bucket and a filter of a few words: not every kernel has netem.) A
namespace lives as long as the process that holds it, and goes with it.

usage: network_test.py BIN      (as root)
"""

import os
import struct
import subprocess
import time

import jobs

ADDRESSES = ("10.73.0.1", "10.73.0.2")  # nobody else is in these namespaces
LEFT = 88  # in the head of a trace: how many collectives are over (common/lockstep/trace/trace.md)


def dropping(share):
    """A classic BPF program: load a random word; greater than the limit: accept (0), else drop (2)."""
    if share == 1:
        return "1,6 0 0 2"
    return f"4,32 0 0 {2**32 - 0x1000 + 56},37 0 1 {int(share * 2**32)},6 0 0 0,6 0 0 2"


class TwoMachines(jobs.Job):
    def setUp(self):
        super().setUp()
        # Each waits for the end of its input, which is the end of this process at the latest.
        self.holders = [subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, env=self.environment()) for _ in range(2)]
        self.addCleanup(self.let_go)
        for holder in self.holders:
            self.assertEqual(holder.stdout.readline(), b"\n")
        self.namespaces = [os.stat(self.namespace(machine)).st_ino for machine in range(2)]
        # Made inside: the machine's own interfaces are never touched.
        self.on(0, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns",
                str(self.holders[1].pid))
        for machine, address in enumerate(ADDRESSES):
            self.on(machine, "ip", "address", "add", f"{address}/30", "dev", "veth0")
            self.on(machine, "ip", "link", "set", "lo", "up")
            self.on(machine, "ip", "link", "set", "veth0", "up")

    def namespace(self, machine):
        return f"/proc/{self.holders[machine].pid}/ns/net"

    def inside(self, machine, *command):
        return ["nsenter", f"--net={self.namespace(machine)}", *command]

    def on(self, machine, *command):
        done = subprocess.run(self.inside(machine, *command), text=True, capture_output=True, timeout=self.left_s(),
                              env=self.environment(), stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stderr}")

    def slow_down(self, rate):
        """Packets wait for their turn, at most 100 ms; those that would wait longer are dropped."""
        for machine in range(2):
            self.on(machine, "tc", "qdisc", "add", "dev", "veth0", "root", "tbf", "rate", rate, "burst", "3kb",
                    "latency", "100ms")

    def lose(self, share):
        """This share of the packets that arrive are dropped, by chance, in both directions."""
        for machine in range(2):
            self.on(machine, "tc", "qdisc", "add", "dev", "veth0", "clsact")
            self.on(machine, "tc", "filter", "add", "dev", "veth0", "ingress", "bpf", "direct-action", "bytecode",
                    dropping(share))

    def sent_again(self):
        """Segments that TCP sent once more, on both machines."""
        count = 0
        for holder in self.holders:
            with open(f"/proc/{holder.pid}/net/snmp") as file:
                names, values = [line.split() for line in file if line.startswith("Tcp:")]
            count += int(values[names.index("RetransSegs")])
        return count

    def let_go(self):
        self.end_all()
        for holder in self.holders:
            holder.stdin.close()
            holder.wait(5)
            holder.stdout.close()
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    inode = os.stat(f"{entry.path}/ns/net").st_ino
                except OSError:
                    continue
                self.assertNotIn(inode, getattr(self, "namespaces", []), f"process {entry.name} is still in there")

    def ranks(self, name, *arguments):
        port = str(self.port())
        return [self.start(self.inside(rank, jobs.BIN / name, *arguments, "--folder", self.folder / "run",
                                       "--json", self.folder / "report.json"), f"rank{rank}",
                           RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1",
                           MASTER_ADDR=ADDRESSES[0], MASTER_PORT=port, GLOO_SOCKET_IFNAME="veth0")
                for rank in range(2)]

    def head(self, rank, offset):
        """A number of a rank's trace, while it writes it; 0 where there is no trace yet."""
        try:
            with open(self.folder / "run" / f"rank_{rank}.trace", "rb") as file:
                return struct.unpack_from("<Q", file.read(4096), offset)[0]
        except (OSError, struct.error):
            return 0

    def test_a_slow_and_lossy_network_changes_nothing(self):
        self.slow_down("20mbit")
        self.lose(0.01)
        ranks = self.ranks("05_set_epoch", "--variant", "epoch-differs-by-rank")
        ends = [self.finish(rank) for rank in ranks]
        self.assertEqual(ends[1].code, 0, ends[1].text)
        self.assert_names(ends[0], self.folder / "report.json", "epoch-differs-by-rank")
        self.assertGreater(self.sent_again(), 0, "nothing was lost")
        # Many machines were asked for, and rank 0, which serves the store, says what that means.
        self.assertEqual([end.text.count("no authentication") for end in ends], [1, 0], ends[0].text)

    def test_a_partition_without_a_word_is_named_in_time(self):
        """Row 27: packets are dropped, and no connection is reset."""
        operation_timeout_s = 3.0
        self.slow_down("20mbit")
        ranks = self.ranks("05_set_epoch", "--variant", "correct", "--full",
                           "--timeout", str(2 * operation_timeout_s))
        self.wait_until(lambda: min(self.head(rank, LEFT) for rank in range(2)) >= 40,
                        "both ranks are in the middle of training", *ranks)
        self.lose(1)
        cut = time.monotonic()
        ends = [self.finish(rank) for rank in ranks]
        code, found = self.diagnose(self.folder / "run")
        took = time.monotonic() - cut
        for end in ends:
            self.assertNotEqual(end.code, 0, end.text)
        self.assertLess(took, operation_timeout_s + 2)
        self.assertGreater(took, operation_timeout_s / 2)  # they waited: nothing told them
        # Every rank has entered the collective: neither is at fault, and both are named.
        self.assertEqual(code, 1)
        self.assertEqual([(finding["pitfall"], finding["ranks"]) for finding in found], [("no-progress", [0, 1])], found)
        self.assertIn("wait in", found[0]["evidence"])


def require_namespaces():
    jobs.require("unshare", "nsenter", "ip", "tc")
    tried = subprocess.run(["unshare", "--net", "sh", "-c", "tc qdisc add dev lo root tbf rate 1mbit burst 3kb latency "
                            "9ms && tc qdisc add dev lo clsact && tc filter add dev lo ingress bpf direct-action "
                            f"bytecode '{dropping(0.5)}'"],
                           text=True, capture_output=True, timeout=10, stdin=subprocess.DEVNULL)
    if tried.returncode != 0:
        jobs.skip(f"network namespaces and tc need root and a kernel that has them: {tried.stderr.strip()}")


if __name__ == "__main__":
    require_namespaces()
    jobs.main()
