"""What a test in Python may not leave behind: a process, a listening socket, shared memory, a temporary file. As
nothing_left.h for tests in C++. Standard library only.

Every process of a test, and whatever it starts, carries a mark in its environment, and has a TMPDIR of the test's own;
orphans among them become children of the test. After the test whoever still has the mark is ended by its id, and
the test fails if there was anybody or anything.
"""

import contextlib
import ctypes
import functools
import os
import pathlib
import shutil
import signal
import tempfile
import time
import unittest
import uuid

MARK = "LOCKSTEP_TEST_MARK"
POLL_S = 0.02
PATIENCE_S = 3  # a daemon's helpers need a moment to see that it is over
SEGMENTS = pathlib.Path("/dev/shm")
LIBC = ctypes.CDLL(None)
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 16384, 1 << 18


@functools.cache
def own_shared_memory():
    """Gives this process, and whatever it starts, a /dev/shm of its own, once: what lies there after a test is the
    test's, and what other programs keep in theirs is out of reach. False where that takes more rights (root, or user
    namespaces) than there are: then shared memory is not looked for, since whose a segment is cannot be told."""
    if not SEGMENTS.is_dir():
        return False
    # A namespace cannot be left again, and one may be made in which nothing is allowed: a child tries first.
    child = os.fork()
    if child == 0:
        made = False
        try:
            made = leave_shared_memory()
        finally:
            os._exit(0 if made else 1)
    return os.waitpid(child, 0)[1] == 0 and leave_shared_memory()


def leave_shared_memory():
    """Whether this process now has a /dev/shm of its own."""
    size, user, group = os.statvfs(SEGMENTS), os.geteuid(), os.getegid()
    if LIBC.unshare(CLONE_NEWNS) != 0:
        # Who is not root has the right in a user namespace only, in which all keep their names.
        if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
            return False
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            pathlib.Path("/proc/self", name).write_text(text)
    options = ctypes.c_char_p(f"size={size.f_blocks * size.f_frsize}".encode())
    return (LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0 and
            LIBC.mount(b"tmpfs", os.fsencode(SEGMENTS), b"tmpfs", MS_NOSUID | MS_NODEV, options) == 0)


class TestCase(unittest.TestCase):
    """Leaves nothing. What a test case of this kind cleans up, it does with addCleanup, before this looks."""

    def setUp(self):
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.mark = uuid.uuid4().hex
        self.own_temporary = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-test-"))
        before = {name: os.environ.get(name) for name in (MARK, "TMPDIR")}
        os.environ.update({MARK: self.mark, "TMPDIR": str(self.own_temporary)})
        tempfile.tempdir = None  # it is asked for again
        self.segments_before, self.sockets_before = segments(), own_listening_sockets()
        self.addCleanup(self.leave_nothing, before)

    def leave_nothing(self, before):
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        tempfile.tempdir = None
        limit = time.monotonic() + PATIENCE_S
        while (reap_orphans() or marked(self.mark)) and time.monotonic() < limit:
            time.sleep(POLL_S)
        processes = marked(self.mark)
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        while processes and reap_orphans() and time.monotonic() < limit + PATIENCE_S:
            time.sleep(POLL_S)
        files = sorted(str(path.relative_to(self.own_temporary)) for path in self.own_temporary.iterdir())
        shutil.rmtree(self.own_temporary)
        while (memory := segments() - self.segments_before) and time.monotonic() < limit:
            time.sleep(POLL_S)
        for name in memory:
            (SEGMENTS / name).unlink()
        left = {"processes": processes, "temporary files": files, "shared memory": memory,
                "listening sockets": own_listening_sockets() - self.sockets_before}
        self.assertEqual({what: which for what, which in left.items() if which}, {}, "the test leaves this behind")


def marked(mark):
    """{pid: what it is} of every process that has the mark, but for this one."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for pid in pids():
        if pid != os.getpid() and needle in read(pid, "environ").split(b"\0"):
            found[pid] = read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:120]
    return found


def pids():
    return [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]


def read(pid, name):
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has gone, or is another user's


def segments():
    return {path.name for path in SEGMENTS.iterdir()} if own_shared_memory() else set()


def own_listening_sockets():
    return listening_sockets("self")


def listening_sockets(pid):
    """Local addresses, as /proc writes them, of a process's sockets that listen."""
    own = set()
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # of the listing itself, or closed by now
                own.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
    except OSError:
        return set()  # it has gone, or is another user's
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1])
    return found


def reap_orphans():
    """Whether a child is left that runs."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
        return True
    except ChildProcessError:
        return False
