"""What several layers have in common."""

from __future__ import annotations

from collections.abc import Callable

from agentpipe._layered import name_of
from agentpipe._request import ChatRequest
from agentpipe._responses import UsageDetails

#: Which errors: of these types, or those that a function says yes to.
On = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


class OnErrors:
    """The errors that a layer acts on. Raises TypeError for what is neither a type of error nor a function."""

    def __init__(self, on: On) -> None:
        types = on if isinstance(on, tuple) else (on,) if isinstance(on, type) else ()
        if any(not (isinstance(kind, type) and issubclass(kind, Exception)) for kind in types):
            raise TypeError(f"on takes types of Exception, not {on!r}")
        if not types and not callable(on):
            raise TypeError(f"on must be a type of error, a tuple of these, or a function of the error, not {on!r}")
        self.types = types
        self._on = on

    def __call__(self, error: Exception) -> bool:
        if self.types:
            return isinstance(error, self.types)
        return bool(self._on(error))  # type: ignore[operator]  # with no types it is the function

    def __repr__(self) -> str:
        return " | ".join(kind.__name__ for kind in self.types) or name_of(self._on)


def check_number(name: str, value: float | None, *, above: float | None = None, least: float | None = None) -> None:
    """Raise ValueError, with the name of the setting, where a number is out of range. None is always allowed."""
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or (above is not None and not value > above) or (least is not None and not value >= least):
        bound = f"greater than {above}" if above is not None else f"at least {least}"
        raise ValueError(f"{name} must be a number {bound}, not {value!r}")


def check_whole(name: str, value: int | None, least: int) -> None:
    """Raise ValueError, with the name of the setting, for what is no whole number of at least ``least``, nor None."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def answered_late(request: ChatRequest) -> int:
    """How many updates with contents lie in ``request.late``: something was answered, though it was not passed on."""
    return sum(1 for update in request.late or () if update.contents)


def tokens_of(usage: UsageDetails) -> int:
    """All tokens of a usage."""
    return usage.total_tokens or (usage.input_tokens or 0) + (usage.output_tokens or 0)
