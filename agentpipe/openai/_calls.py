"""Putting calls together from the fragments in which endpoints send them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentpipe._arguments import read_arguments
from agentpipe._messages import FunctionCallContent
from agentpipe._records import new_id


class Call:
    """A call while its fragments arrive."""

    __slots__ = ("_braces", "_read", "_value", "echo", "id", "index", "name", "pieces", "whole")

    def __init__(self, index: object) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.pieces: list[str] = []
        self.whole: Any = None  # arguments that came as an object
        self.echo: dict[str, Any] = {}
        self._braces = _Braces()
        self._read = 0  # how many pieces made the value
        self._value: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def value(self) -> dict[str, Any] | None:
        """The object that the arguments so far are all of; None where they are not, or not yet."""
        if self.whole is not None:
            return self.whole if isinstance(self.whole, dict) else {}
        # Read only where all braces are closed; a text that is wrong then will not come right any more.
        if self._read != len(self.pieces) and self._braces.closed(self.pieces):
            self._read = len(self.pieces)
            self._value = _object_of(self.text)
            self._braces.wrong = self._value is None
        return self._value if self._read == len(self.pieces) else None

    @property
    def complete(self) -> bool:
        return self.value is not None


_MARKS = re.compile(r'\\.|["{}]', re.S)


class _Braces:
    """Follows the braces of a JSON text piece by piece; each character is looked at once."""

    __slots__ = ("_carried", "_depth", "_in_text", "_taken", "wrong")

    def __init__(self) -> None:
        self.wrong = False
        self._taken = 0
        self._depth = 0
        self._in_text = False
        self._carried = ""

    def closed(self, pieces: Sequence[str]) -> bool:
        """Whether all the braces are closed at the end of ``pieces``."""
        for place in range(self._taken, len(pieces)):
            self._take(self._carried + pieces[place])
        self._taken = len(pieces)
        return self._depth == 0 and not self._in_text and not self.wrong

    def _take(self, piece: str) -> None:
        cut = (len(piece) - len(piece.rstrip("\\"))) % 2
        self._carried = piece[len(piece) - cut :]
        for mark in _MARKS.findall(piece[: len(piece) - cut]):
            if mark == '"':
                self._in_text = not self._in_text
            elif not self._in_text and len(mark) == 1:
                self._depth += 1 if mark == "{" else -1


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class Calls:
    """The calls of one answer, told apart by index *and* id, never by their position."""

    def __init__(self, offered: Mapping[str, Mapping[str, Any]]) -> None:
        self._offered = offered
        self._calls: list[Call] = []
        self._ids: dict[str, list[Call]] = {}
        self._indexes: dict[object, Call] = {}

    @property
    def any(self) -> bool:
        return bool(self._calls)

    def add(self, fragments: object) -> None:
        if isinstance(fragments, dict):
            fragments = [fragments]
        if not isinstance(fragments, list):
            return
        for place, fragment in enumerate(fragments):
            if isinstance(fragment, dict) and not self._goes_on(fragment):
                self._add(fragment, place)

    def _goes_on(self, fragment: dict[str, Any]) -> bool:
        """Take a fragment that is no more than a piece of the arguments of a known call, as nearly all are; a short
        cut."""
        function, index = fragment.get("function"), fragment.get("index")
        if len(fragment) != 2 or type(index) is not int or type(function) is not dict or len(function) != 1:
            return False
        call, piece = self._indexes.get(index), function.get("arguments")
        if call is None or type(piece) is not str:
            return False
        if piece:
            call.pieces.append(piece)
        return True

    def add_legacy(self, function: object) -> None:
        if isinstance(function, dict):
            self._add({"index": "function_call", "function": function}, 0)

    def _add(self, fragment: Mapping[str, Any], place: int) -> None:
        function = fragment.get("function")
        if not isinstance(function, dict):
            function = fragment if "name" in fragment or "arguments" in fragment else {}
        name = function.get("name") or ""
        arguments = function.get("arguments")
        call_id = fragment.get("id")
        call_id = str(call_id) if call_id not in (None, "") else None
        index = _index_of(fragment)
        call = self._find(index, call_id, str(name), arguments, place)
        if call is None:
            if not name and not arguments and call_id is None:
                return
            call = self._begin(index)
        self._extend(call, call_id, str(name), arguments)
        for key, value in fragment.items():
            if key not in ("index", "id", "type", "function", "name", "arguments") and value is not None:
                call.echo[key] = value

    def _begin(self, index: object) -> Call:
        call = Call(index)
        self._calls.append(call)
        self._indexes[index] = call
        return call

    def _find(self, index: object, call_id: str | None, name: str, arguments: object, place: int) -> Call | None:
        """The call that a fragment goes on with; None where it begins one."""
        if call_id is not None and (known := self._by_id(call_id, index)) is not None:
            return None if self._is_another(known, index, name, arguments) else known
        candidate = self._indexes.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if candidate is None or self._is_other_tool(candidate, name):
            return None
        if call_id is not None and candidate.id is not None:
            # The id changed: a new call, unless this can only be more of the arguments.
            return candidate if _only_goes_on(candidate, index, name, arguments) else None
        if call_id is not None and name and candidate.name and candidate.complete:
            return None  # an id that comes late comes before the call is whole
        if name and candidate.name and candidate.complete and not self._repeats(candidate, name, arguments):
            return None
        if name and place > 0 and index is None and call_id is None:
            return None  # beside each other in one piece, each with its name
        return candidate

    def _by_id(self, call_id: str, index: object) -> Call | None:
        found = self._ids.get(call_id, [])
        same_index = [call for call in found if index is None or call.index is None or call.index == index]
        return same_index[-1] if same_index else None

    def _is_other_tool(self, call: Call, name: str) -> bool:
        """Whether a name can only be that of another call: both are offered, and they are no two halves of one."""
        offered = self._offered
        both = name in offered and call.name in offered
        return both and name != call.name and call.name + name not in offered

    def _is_another(self, known: Call, index: object, name: str, arguments: object) -> bool:
        """Whether a fragment with the id of a whole call begins another one all the same."""
        if not name or not arguments or not known.complete:
            return False
        return not self._repeats(known, name, arguments)

    def _repeats(self, call: Call, name: str, arguments: object) -> bool:
        """Whether a fragment says again what is known of a call."""
        if name != call.name:
            return not arguments and not call.pieces
        if not arguments:
            return True
        said = arguments if isinstance(arguments, dict) else _object_of(str(arguments))
        return said is None or said == call.value or call.value == {}

    def _extend(self, call: Call, call_id: str | None, name: str, arguments: object) -> None:
        if call.id is None and call_id is not None:
            call.id = call_id
            self._ids.setdefault(call_id, []).append(call)
        if name:
            call.name = self._joined_name(call.name, name)
        if arguments is None or arguments == "":
            return
        if isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments or not call.whole:
            call.whole = arguments

    def _joined_name(self, known: str, piece: str) -> str:
        joined = known + piece
        if joined in self._offered and known not in self._offered:
            return joined
        if not known or piece == known:
            return piece
        if joined in self._offered:
            return joined
        if known in self._offered:
            return known
        if piece in self._offered or piece.startswith(known):
            return piece
        return joined

    def finished(self, cut_off: bool) -> list[FunctionCallContent]:
        """The calls, whole. ``cut_off`` says whether the answer ended at the limit of output tokens."""
        calls = self._merged()
        contents: list[FunctionCallContent] = []
        seen: set[str] = set()
        for place, call in enumerate(calls):
            call_id = call.id if call.id and call.id not in seen else new_id("call")
            seen.add(call_id)
            contents.append(self._content(call, call_id, cut_off and place == len(calls) - 1))
        return contents

    def _content(self, call: Call, call_id: str, cut_off: bool) -> FunctionCallContent:
        name = self._clean_name(call.name)
        arguments, raw, invalid = read_arguments(_settled(call), self._offered.get(name))
        if cut_off and not raw.strip():
            invalid = "the arguments were cut off at the limit of output tokens"
        if not name:
            invalid = invalid or "the call has no name"
        return FunctionCallContent(call_id, name, arguments, raw, invalid, call.echo or None)

    def _clean_name(self, name: str) -> str:
        """The name without the markers of the model's own format."""
        if name in self._offered:
            return name
        name = re.split(r"<\||\s|\(", name.strip(), maxsplit=1)[0] or name.strip()
        if name not in self._offered:
            for prefix in ("functions.", "tools.", "to=functions."):
                if name.startswith(prefix) and name[len(prefix) :] in self._offered:
                    return name[len(prefix) :]
        return name

    def _merged(self) -> list[Call]:
        """The calls without those that were sent again under another index."""
        kept: list[Call] = []
        by_id: dict[str | None, list[Call]] = {}
        for call in self._calls:
            same = by_id.setdefault(call.id, []) if call.id else []
            twin = next((known for known in same if _same_name(known, call) and _nested(known, call)), None)
            if twin is None:
                kept.append(call)
                same.append(call)
            elif len(call.text) > len(twin.text) or (call.whole is not None and twin.whole is None):
                twin.pieces, twin.whole = call.pieces, call.whole
                twin.name = twin.name or call.name
        return [call for call in kept if call.name or call.pieces or call.whole is not None]


def _index_of(fragment: Mapping[str, Any]) -> object:
    """The index, where it is one."""
    index = fragment.get("index")
    if isinstance(index, str):
        return int(index) if index.isdecimal() else index or None
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _only_goes_on(call: Call, index: object, name: str, arguments: object) -> bool:
    """Whether a fragment with another id can be nothing but more of the arguments of ``call``."""
    if call.complete or not isinstance(arguments, str) or not arguments:
        return False
    begins = arguments.lstrip().startswith("{")
    if name:
        return index is not None and name == call.name and bool(call.pieces) and not begins
    return not (begins and call.pieces)


def _same_name(one: Call, other: Call) -> bool:
    return not one.name or not other.name or one.name == other.name


def _nested(one: Call, other: Call) -> bool:
    if one.whole is not None or other.whole is not None:
        return one.whole == other.whole or not (one.text if one.whole is None else other.text)
    a, b = one.text, other.text
    return a.startswith(b) or b.startswith(a)


def _settled(call: Call) -> object:
    """The arguments of a call whose fragments are all there.

    Taken as they are; only where that is no JSON, a "{}" before the real ones or all of them once more at the end is
    left out.
    """
    if call.whole is not None:
        return call.whole
    text = call.text
    if len(call.pieces) < 2 or _object_of(text) is not None:
        return text
    before, last = "".join(call.pieces[:-1]), call.pieces[-1]
    if call.pieces[0].strip() == "{}" and _object_of(rest := "".join(call.pieces[1:])) is not None:
        return rest
    whole = _object_of(last)
    if whole is not None and (_object_of(before) == whole or all(last.startswith(piece) for piece in call.pieces)):
        return last
    return text
