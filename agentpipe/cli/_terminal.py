"""Lines that somebody types at a terminal."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys


def until_typed() -> None:
    """Wait, at a terminal, until there is a line to read, or raise KeyboardInterrupt.

    Python notices a Ctrl-C that comes just before it begins to read only once it has read something. This wait is woken
    by it.
    """
    if os.name == "nt" or not sys.stdin.isatty():
        return  # there a console is read in another way; and lines that do not come from a terminal may be here already
    heard, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    try:
        select.select([sys.stdin, heard], [], [])
    finally:
        signal.set_wakeup_fd(before)
        heard.close()
        told.close()
