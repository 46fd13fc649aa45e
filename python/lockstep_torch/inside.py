"""In the program's process: what goes wrong here stays here."""

from __future__ import annotations

import functools
import signal
import sys
from types import TracebackType
from typing import Any

from lockstep_torch import saying
from lockstep_torch.extension import DoesNotFit, extension


def code_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def is_of_a_signal(trace: TracebackType | None) -> bool:
    """Python calls the program's handler of a signal in whatever it happens to be at."""
    handlers = {code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def say(*parts: object) -> None:
    """To the program's standard error, which may be closed, or an object of its own that raises, as may an exception's
    text. Nothing stays in a buffer: Python would end with another exit code where that cannot be written."""
    try:
        text = "".join(map(str, parts))
        stream: Any = sys.stderr
        if stream is None:
            return  # print() would take standard output
        is_replaced = stream is not sys.__stderr__
        if is_replaced:
            print(text, file=stream, flush=True)
        elif not stream.closed:
            try:
                write = extension().say
            except (DoesNotFit, ImportError):  # it is said before the program does anything: nothing is recorded
                return saying.say(text)
            write(saying.shown(text))
    except Exception as error:
        if is_of_a_signal(error.__traceback__):
            raise
