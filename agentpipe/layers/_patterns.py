"""What RedactingChatClient looks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import cast

#: A name in `PATTERNS`, a compiled regular expression, or a function that returns the parts of a text to replace.
Pattern = str | re.Pattern[str] | Callable[[str], Iterable[str]]

#: Each takes time linear in the text. What looks like a phone number or a card may be something else.
PATTERNS: dict[str, re.Pattern[str]] = {
    "email": re.compile(r"(?<![\w.%+-])[\w.%+-]+@[\w-]+(?:\.[\w-]+)+"),
    "phone": re.compile(
        r"(?<![\w+.-])(?:(?:\+|00)[1-9](?:[ ()./-]{0,3}\d){6,14}"  # international
        r"|\(?0[1-9]\d{0,4}\)?[ /-]?\d(?:[ -]?\d){4,9}"  # with a national prefix
        r"|\(?[2-9]\d\d\)?[ .-]{1,2}\d{3}[ .-]\d{4})(?!\w)"  # North America
    ),
    "card": re.compile(r"(?<![\w-])(?:\d[ -]?){12,18}\d(?![\w-])"),
    "iban": re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)"),
    "ip": re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    "key": re.compile(r"(?<!\w)(?:sk-|pk-|ghp_|gho_|xox[abp]-|AKIA|hf_|glpat-)[\w-]{12,}"),
}

#: The name of a pattern, and what finds the places of its matches in a text.
Finder = tuple[str, Callable[[str], Iterator[tuple[int, int]]]]


def finder(pattern: object) -> Finder:
    """The name of a pattern, and what finds its matches in a text."""
    if isinstance(pattern, str):
        if pattern not in PATTERNS:
            raise ValueError(
                f"patterns has no {pattern!r}; there are {', '.join(PATTERNS)}, and re.compile({pattern!r}) is one too"
            )
        found = _passes_luhn if pattern == "card" else None
        return pattern, _of_regex(PATTERNS[pattern], found)
    if isinstance(pattern, re.Pattern):
        return "secret", _of_regex(pattern)
    if callable(pattern):
        name = re.sub(r"[^A-Za-z0-9]", "", getattr(pattern, "__name__", "")) or "secret"
        return name, _of_function(cast("Callable[[str], Iterable[str]]", pattern))
    raise TypeError(f"patterns takes names, compiled regular expressions and functions, not {type(pattern).__name__}")


def _of_regex(
    regex: re.Pattern[str], accepts: Callable[[str], bool] | None = None
) -> Callable[[str], Iterator[tuple[int, int]]]:
    def find(text: str) -> Iterator[tuple[int, int]]:
        for match in regex.finditer(text):
            if match.group() and (accepts is None or accepts(match.group())):
                yield match.span()

    return find


def _of_function(function: Callable[[str], Iterable[str]]) -> Callable[[str], Iterator[tuple[int, int]]]:
    def find(text: str) -> Iterator[tuple[int, int]]:
        parts = sorted({part for part in function(text) if part}, key=len, reverse=True)
        if parts:
            for match in re.finditer("|".join(map(re.escape, parts)), text):
                yield match.span()

    return find


def _passes_luhn(text: str) -> bool:
    digits = [int(char) for char in reversed(text) if char.isdigit()]
    return sum(digits[0::2]) % 10 == -sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2]) % 10
