"""Everything that agentpipe raises on purpose.

AgentPipeError
├── ChatClientError          the endpoint could not answer
│   ├── TransportError           unreachable, cut off, 5xx, timeout
│   ├── RateLimitError           429 and its disguises
│   ├── AuthenticationError      401, 403
│   ├── BadRequestError          the request is wrong; sending it again will not help
│   │   └── ContextLengthError       ... because it is too long for the model
│   ├── ContentFilterError       the endpoint refuses the content
│   └── BadResponseError         a 200 that is no answer
├── ToolError                raise it in a tool: the text goes to the model
│   └── FatalToolError           raise it in a tool: the run stops and this is what the caller gets
├── ToolLoopError            the loop had to stop
├── UsageLimitError          a budget was spent
├── ApprovalError            an answer to a question nobody asked
├── OutputError              the text is not what response_format promised
└── HistoryError             the store failed

Wrong settings and wrong arguments raise ``TypeError`` and ``ValueError``, where they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentpipe._responses import ChatResponse


class AgentPipeError(Exception):
    """The root of what agentpipe raises on purpose.

    ``response`` is what there is of the answer when a run failed: every message up to the failure, each call with its
    result, so that it can be sent or stored as it is. It is None where nothing had been answered yet.
    """

    def __init__(self, message: str = "", *, response: ChatResponse | None = None) -> None:
        super().__init__(message)
        self.response = response


class ChatClientError(AgentPipeError):
    """The endpoint could not answer.

    ``status`` is the HTTP status (None when there was no answer at all), ``code`` the endpoint's own word for it,
    ``retryable`` whether the same request may succeed later, ``retry_after`` the seconds that the endpoint asks to
    wait, ``request_id`` what to quote to its operator. The error of the openai package, if any, is ``__cause__``.
    """

    default_retryable = False

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        code: str | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        response: ChatResponse | None = None,
    ) -> None:
        super().__init__(message, response=response)
        self.status = status
        self.code = code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.retry_after = retry_after
        self.request_id = request_id


class TransportError(ChatClientError):
    """The endpoint was not reached, broke off, timed out or had trouble of its own (5xx)."""

    default_retryable = True


class RateLimitError(ChatClientError):
    """Too many requests or tokens; an empty account is one too, but not retryable."""

    default_retryable = True


class AuthenticationError(ChatClientError):
    """The endpoint does not accept the key, or the key may not do this."""


class BadRequestError(ChatClientError):
    """The endpoint refuses the request as it is."""


class ContextLengthError(BadRequestError):
    """The messages are too long for the model."""


class ContentFilterError(ChatClientError):
    """The endpoint refuses the content of the request or of its own answer."""


class BadResponseError(ChatClientError):
    """The endpoint said 200, but what it sent is no answer."""

    default_retryable = True


class ToolError(AgentPipeError):
    """Raise it in a tool to tell the model, in your own words, what went wrong."""


class FatalToolError(ToolError):
    """Raise it in a tool to stop the run: the caller gets this very error, with the transcript in ``response``."""


class ToolLoopError(AgentPipeError):
    """The tool loop had to stop.

    ``response`` is the transcript so far, closed and usable; ``errors`` are the exceptions of the tools that failed
    last (also ``__cause__``: the one there is, or an ExceptionGroup of several).
    """

    def __init__(
        self, message: str = "", *, response: ChatResponse | None = None, errors: Sequence[BaseException] = ()
    ) -> None:
        super().__init__(message, response=response)
        self.errors = tuple(errors)


class UsageLimitError(AgentPipeError):
    """A budget of tokens, requests or money is spent; raised before the call that would break it."""


class ApprovalError(AgentPipeError):
    """An answer to a question that nobody asked, or that was already answered otherwise. Nothing was run."""


class OutputError(AgentPipeError):
    """The model's text is not what ``response_format`` promised; ``response`` holds the text."""


class HistoryError(AgentPipeError):
    """The history store failed; ``response`` still holds the answer that was paid for."""
