"""SQLite files that several processes open at once."""

from __future__ import annotations

import sqlite3
import time


def open_wal(path: str, *, timeout: float) -> sqlite3.Connection:
    """A connection, without implicit transactions, to the file at ``path`` in WAL mode; the file is made if need be.

    Each statement waits up to ``timeout`` seconds for the locks of others. Raises sqlite3.Error.
    """
    # check_same_thread: a connection that nobody closed is dropped on any thread.
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        _switch_to_wal(connection, time.monotonic() + timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Turn the file to WAL mode, however many others do so at this moment."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        # The switch turns a read into a write, for which SQLite never waits. For this lock it does wait, until nobody
        # else uses the file; by then it is in WAL mode, most likely.
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
