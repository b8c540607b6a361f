"""The tree of errors."""

from __future__ import annotations

import pickle
import re

import pytest

from agentpipe import ChatResponse, assistant, exceptions
from agentpipe.exceptions import (
    AgentPipeError,
    BadResponseError,
    ChatClientError,
    FatalToolError,
    RateLimitError,
    ToolLoopError,
    TransportError,
)

ERRORS = [error for error in vars(exceptions).values() if isinstance(error, type) and issubclass(error, AgentPipeError)]


def test_the_tree_is_as_it_is_drawn() -> None:
    """The tree in the docstring is the tree of the classes, with nothing left out."""
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for line in (exceptions.__doc__ or "").splitlines():
        if found := re.match(r"([│├└─ ]*)(\w+Error)\b", line):
            path[len(found[1]) // 4 :] = [found[2]]
            drawn[found[2]] = path[-2] if len(path) > 1 else None
    assert drawn.pop("AgentPipeError") is None
    assert drawn == {error.__name__: error.__base__.__name__ for error in ERRORS if error is not AgentPipeError}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors_survive_pickle(kind: type[AgentPipeError]) -> None:
    """Every error can be raised bare, and be pickled with what it carries."""
    assert str(kind()) == ""
    error = kind("what went wrong", response=ChatResponse((assistant("half"),)))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, "what went wrong", vars(error))


@pytest.mark.parametrize("kind", [e for e in ERRORS if issubclass(e, ChatClientError)], ids=lambda kind: kind.__name__)
def test_what_may_be_tried_again(kind: type[ChatClientError]) -> None:
    """Trouble of the endpoint or of the way may pass; whoever raises the error may know better."""
    assert kind("x").retryable is (kind in (TransportError, RateLimitError, BadResponseError))
    assert [kind("x", retryable=known).retryable for known in (True, False)] == [True, False]
    error = kind("x", status=429, code="quota", retry_after=1.5, request_id="r")
    assert (error.status, error.code, error.retry_after, error.request_id) == (429, "quota", 1.5, "r")


def test_the_errors_of_a_loop() -> None:
    """A loop's error has those of its tools; an error that stops the run is one that a tool may raise."""
    causes = [ValueError("a"), FatalToolError("b")]
    assert ToolLoopError("x", errors=causes).errors == tuple(causes)
    assert ToolLoopError("x").errors == ()
