"""Files as all scripts here open them: what is read is a regular file of a bounded size, and nothing waits for a fifo; what
is written is a new file that takes its name when it is whole, and a link is never followed."""

import contextlib
import errno
import os
import stat
import tempfile

MOST = 1 << 28  # bytes


def shown(text):
    """A path, or other text of somebody else's, for a terminal or a page: what is no UTF-8, or controls a terminal, is escaped."""
    whole = os.fspath(text).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in whole)


def read(path, most=MOST):
    """Its bytes. Throws OSError, also where it is no regular file, or larger."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", os.fspath(path))
    return content


def read_text(path, most=MOST):
    """Throws UnicodeDecodeError, a ValueError, too."""
    return read(path, most).decode("utf-8")


def require_place(path):
    """Throws OSError where something is at `path` that is no regular file: a link, a folder, a device."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise OSError(errno.EEXIST, f"{what} is there; name another file", os.fspath(path))


def write(path, text, mode=0o644):
    """Whole or not at all, with the folders it lies in. A regular file that is there is replaced, and nothing else is."""
    require_place(path)
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
