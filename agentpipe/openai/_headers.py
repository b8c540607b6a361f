"""Headers and keys, checked before they are sent: HTTP libraries take a wrong one for trouble with the connection."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


def checked_headers(argument: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of ``headers``; TypeError or ValueError that names the argument and the header, never the value."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"{argument} must be a mapping of names to values, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"{argument}: the value of {name!r} must be text, not {type(value).__name__}")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{argument}: {name!r} cannot be the name of a header")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"{argument}: the value of {name!r} {_WHY}")
    return dict(headers)


def checked_key(key: object) -> str:
    """A key without the line end that it may have been read with; TypeError or ValueError, not with the key in it."""
    if not isinstance(key, str):
        raise TypeError(f"api_key must be text, not {type(key).__name__}")
    key = key.strip()
    if not _VALUE.fullmatch(key):
        raise ValueError(f"the API key {_WHY}")
    return key


_WHY = "holds a character that no HTTP header can, like a letter with an accent, a bullet, or a line end"
