"""A pytest fixture that records what an endpoint answers, and replays it: tests without a network.

``def test(recording): client = recording(OpenAIChatClient(...))`` asks the endpoint the first time and writes
``recordings/<file>/<test>.json`` beside the test; after that the test needs no endpoint. ``pytest --agentpipe-record``
asks again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentpipe._client import ChatClient
    from agentpipe.layers.recording import RecordingChatClient


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--agentpipe-record``."""
    parser.addoption("--agentpipe-record", action="store_true", help="record the exchanges of agentpipe tests anew")


@pytest.fixture
def recording(request: pytest.FixtureRequest) -> Callable[..., RecordingChatClient]:
    """Put a recording around a client: ``recording(client, redact=...)``; a second one in a test gets a second file."""
    # Imported here: the plugin is loaded in every run of pytest, also where there is no agentpipe test.
    from agentpipe.layers.recording import RecordingChatClient

    test = re.sub(r"[^\w.-]+", "_", request.node.name).strip("_")
    folder = request.path.parent / "recordings" / request.path.stem
    made = 0

    def around(client: ChatClient | None = None, *, redact: Callable[[str], str] | None = None) -> RecordingChatClient:
        nonlocal made
        made += 1
        path = folder / (f"{test}.json" if made == 1 else f"{test}-{made}.json")
        anew = request.config.getoption("--agentpipe-record") or not path.exists()
        return RecordingChatClient(
            client, path, mode="record" if anew and client is not None else "replay", redact=redact
        )

    return around
