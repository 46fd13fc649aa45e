"""Files as all scripts here open them: what is read is a regular file of a bounded size, and nothing waits for a fifo; what
is written is a new file that takes its name when it is whole, and a link is never followed."""

import errno
import os
import stat
import tempfile

MOST = 1 << 28  # bytes
PAGE = b'<meta name="generator" content="Lockstep">'  # as templates/layout.html.j2 has it


def shown(text):
    """A path, or other text of somebody else's, for a terminal or a page: what is no UTF-8, or controls a terminal, is escaped."""
    whole = os.fspath(text).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in whole)


def read(path, most=MOST):
    """Its bytes. Throws OSError, also where it is no regular file, or larger."""
    found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
        with open(found, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(found)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", os.fspath(path))
    return content


def read_text(path, most=MOST):
    """Throws UnicodeDecodeError, a ValueError, too."""
    return read(path, most).decode("utf-8")


def beginning(path):
    with open(path, "rb") as file:
        return file.read(1024)


def require_place(path, holding=b""):
    """Throws OSError where something is at `path` that is no regular file: a link, a folder, a device; or a file without
    these letters near its beginning. An empty one may be there."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return
    what = None
    if not stat.S_ISREG(there.st_mode):
        what = "a link" if stat.S_ISLNK(there.st_mode) else "a folder" if stat.S_ISDIR(there.st_mode) else "no regular file"
    elif there.st_size > 0 and holding and holding not in beginning(path):
        what = "a file that is no page of Lockstep's"
    if what:
        raise OSError(errno.EEXIST, f"{what} is there; name another file", os.fspath(path))


def write(path, text, mode=0o644, over=b""):
    """Whole or not at all, with the folders it lies in. A regular file that is there, and has `over` near its beginning, is
    replaced, and nothing else is."""
    require_place(path, over)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=".lockstep-")
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
            os.fchmod(descriptor, mode)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
