"""Imported first: Ctrl-C ends a page's script without a stack trace while it still imports the rest."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
