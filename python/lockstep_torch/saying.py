"""What a command of Lockstep says, on standard error. That may be closed, full, or a pipe that nobody reads any more:
the job goes on, and ends, as without it. In a program's process inside.py has its words said."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys

STDERR = 2
WAITS_S = 5  # for room, where standard error does not block
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a file's name may have them; a tab and a line's end stay


def shown(text: str) -> bytes:
    """Whole lines."""
    lines = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.rstrip("\n")) + "\n"
    return lines.encode("utf-8", "backslashreplace")


def say(text: str) -> None:
    """In the background of a terminal it stops nobody (stty tostop)."""
    if sys.stderr is None:
        return
    left = shown(text)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with contextlib.suppress(OSError):
            while left:
                try:
                    left = left[os.write(STDERR, left):]
                except BlockingIOError:
                    if not select.select([], [STDERR], [], WAITS_S)[1]:
                        break
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
