"""Imported first: Ctrl-C ends a page's script without a stack trace while it still imports the rest."""

import signal

TAKEN = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody wants it ignored
if TAKEN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
