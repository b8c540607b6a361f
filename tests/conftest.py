from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from agentpipe import BaseAgent, ChatClient, ChatResponse
from agentpipe._messages import Message


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streaming(request: pytest.FixtureRequest) -> bool:
    """Every scenario that can be streamed runs whole and streamed, from one body."""
    return bool(request.param)


@pytest.fixture(scope="session")
def local_weights() -> None:
    """The weights of the local model, in the cache."""
    pytest.importorskip("xllamacpp") if not in_ci() else None
    from agentpipe.local import LocalModelError, weights

    try:
        weights()
    except LocalModelError as error:
        cannot_be_had(str(error))


@pytest.fixture(autouse=True)
def _no_endpoint_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "AGENTPIPE_LOCAL_MODEL"):
        monkeypatch.delenv(name, raising=False)


async def ask(target: ChatClient | BaseAgent, given: Any, streaming: bool, **settings: Any) -> ChatResponse:
    """Ask whole or streamed; the response is the same."""
    if not streaming:
        call: Callable[..., Any] = target.get_response if isinstance(target, ChatClient) else target.run
        return await call(given, **settings)
    async with target.stream(given, **settings) as stream:
        async for _ in stream:
            pass
    return await stream.get_response()


def shape(messages: Any) -> list[Any]:
    """A transcript without what differs from run to run: roles, kinds and what was said."""
    shaped = []
    for message in messages:
        assert isinstance(message, Message)
        parts = []
        for content in message.contents:
            dumped = content.model_dump()
            for volatile in ("id", "call_id", "request_id", "raw_arguments"):
                dumped.pop(volatile, None)
            parts.append(dumped)
        shaped.append((message.role, parts))
    return shaped


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


def cannot_be_had(what: str) -> None:
    """A real part is missing: a failure in CI, where it has to be there, and a skipped test elsewhere."""
    if in_ci():
        pytest.fail(f"{what} is needed in CI")
    pytest.skip(f"{what} is not here")
