"""A container with a small /dev/shm: namespaces of this process and of those that it starts."""

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 16384, 1 << 18
NOT_HERE = 77  # which CTest counts as skipped
LIBC = ctypes.CDLL(None, use_errno=True)


def expect(result, what):
    if result != 0:
        why = os.strerror(ctypes.get_errno())
        print(f"a small /dev/shm takes root or user namespaces: {what}: {why}", file=sys.stderr)
        sys.exit(NOT_HERE)


def mount(source, target, kind, flags, options=None):
    expect(LIBC.mount(source, target, kind, ctypes.c_ulong(flags), options), "mount")


def enter_container(shared_memory):
    """Of so many bytes. It is to be called before the process has threads."""
    user, group = os.geteuid(), os.getegid()
    if LIBC.unshare(CLONE_NEWNS) != 0:
        expect(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w", encoding="ascii") as out:
                out.write(text)
    mount(b"none", b"/", None, MS_REC | MS_PRIVATE)  # these mounts are not seen outside
    mount(b"tmpfs", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={shared_memory}".encode())
