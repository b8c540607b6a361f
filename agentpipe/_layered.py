"""What both towers, chat clients and agents, share: looking through the layers, printing them, putting one around."""

from __future__ import annotations

import inspect
import re
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """One line of the printed tree, and what stands below it. ``loops`` marks the layer that asks again and again."""

    label: str
    children: Sequence[Node] = ()
    loops: bool = False


class Layered(ABC):
    """Something that answers, by itself or by asking what is inside it."""

    #: Settings that are shown even where they hold their default.
    shown: tuple[str, ...] = ()

    def _inside(self) -> Sequence[Layered]:
        """What this asks in its turn, first things first."""
        inner = getattr(self, "inner", None)
        return (inner,) if isinstance(inner, Layered) else ()

    def _settings(self) -> dict[str, object]:
        """The settings to show: those of the constructor that are kept under their name and differ from the default."""
        shown: dict[str, object] = {}
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            value = getattr(self, name, _ABSENT)
            if name in ("self", "inner") or value is _ABSENT or parameter.kind in _VARIADIC:
                continue
            if name in self.shown or not _same(value, parameter.default):
                shown[name] = value
        return shown

    def _node(self) -> Node:
        """This layer and what is below it, for the tree."""
        return Node(repr(self), [inside._node() for inside in self._inside()])

    def _walk(self) -> Iterator[Layered]:
        yield self
        for inside in self._inside():
            yield from inside._walk()

    async def _leave_loop(self) -> None:
        """Let go of what is bound to the running event loop, which is about to end."""

    def find(self, kind: type[T]) -> T | None:
        """The outermost layer that is a ``kind``, or None: "is there one of these among you?"."""
        for layer in self._walk():
            if isinstance(layer, kind):
                return layer
        return None

    def to_mermaid(self) -> str:
        """The tree as a Mermaid flowchart, with the loop drawn."""
        return _mermaid(self._node())

    def __repr__(self) -> str:
        told = [f"{name}={_told(name, value)}" for name, value in self._settings().items()]
        return f"{type(self).__name__}({', '.join(told)})"

    def __str__(self) -> str:
        return "\n".join(_tree_lines(self._node()))


_ABSENT = object()
#: Settings that are called like secrets; that they are set is shown, what they are is not.
_SECRET = re.compile(r"(?i)(^|_)(key|token|secret|password|credentials?|authorization|headers?)$")


def _told(name: str, value: object) -> str:
    return "..." if value is not None and _SECRET.search(name) else repr(value)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _same(value: object, default: object) -> bool:
    if default is inspect.Parameter.empty:
        return False
    return value is default or bool(value == default)


def is_function(layer: object) -> bool:
    """Whether a layer is a middleware function rather than a class."""
    while isinstance(layer, partial):
        layer = layer.func
    return callable(layer) and not isinstance(layer, type)


def is_live(function: Callable[..., object]) -> bool:
    """Whether a middleware function yields (sees every piece) rather than returns (sees the whole answer).

    Raises TypeError where it does neither.
    """
    called: object = function
    while isinstance(called, partial):
        called = called.func
    called = called if inspect.isroutine(called) else getattr(called, "__call__", called)  # noqa: B004
    if inspect.isasyncgenfunction(called):
        return True
    if inspect.iscoroutinefunction(called):
        return False
    raise TypeError(
        f"{name_of(function)} is no middleware: write it as 'async def {name_of(function)}(request, inner)' "
        "that yields updates or returns a response"
    )


def name_of(function: object) -> str:
    """What a function is called in the tree."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _tree_lines(node: Node) -> list[str]:
    lines = [node.label]
    for place, child in enumerate(node.children):
        last = place == len(node.children) - 1
        first, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
        below = _tree_lines(child)
        lines.append(first + below[0])
        lines.extend(rest + line for line in below[1:])
    return lines


def _mermaid(root: Node) -> str:
    lines, edges = ["flowchart TD"], list[str]()
    count = 0

    def draw(node: Node) -> str:
        nonlocal count
        name = f"n{count}"
        count += 1
        lines.append(f'    {name}["{_escape(node.label)}"]')
        if node.loops:
            edges.append(f'    {name} -- "calls tools, asks again" --> {name}')
        for child in node.children:
            place = len(edges)
            edges.insert(place, f"    {name} --> {draw(child)}")
        return name

    draw(root)
    return "\n".join(lines + edges)


def _escape(label: str) -> str:
    return label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
