"""Headers and keys that cannot be sent are told of at once, by their names."""

from __future__ import annotations

from typing import Any

import pytest

from agentpipe import ChatOptions, OpenAIChatClient
from tests.strict_endpoint import StrictEndpoint

WRONG = [
    ({"X-Team": "bl\u00fce"}, ValueError, "'X-Team' holds a character"),
    ({"X-Team": "blue\r\nX-Other: red"}, ValueError, "'X-Team' holds a character"),
    ({"X-Team": "blue\n"}, ValueError, "'X-Team' holds a character"),
    ({"X Team": "blue"}, ValueError, "'X Team' cannot be the name"),
    ({"": "blue"}, ValueError, "'' cannot be the name"),
    ({"X-Team": 5}, TypeError, "'X-Team' must be text, not int"),
    ({"X-Team": None}, TypeError, "'X-Team' must be text, not NoneType"),
    (["X-Team"], TypeError, "mapping of names to values, not list"),
]


@pytest.mark.parametrize(("headers", "kind", "told"), WRONG)
async def test_wrong_headers(headers: Any, kind: type[Exception], told: str) -> None:
    """A header that cannot be sent is told of by its name, before anything is sent, and never with its value."""
    with pytest.raises(kind, match=f"default_headers.*{told}") as caught:
        OpenAIChatClient("m", base_url="http://127.0.0.1:9/v1", default_headers=headers)
    assert "blue" not in str(caught.value)
    client = OpenAIChatClient("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(kind, match=f"extra_headers.*{told}"):
        await client.get_response("hi", ChatOptions(extra_headers=headers))


@pytest.mark.parametrize(
    "key", ["sk-s\u00e9cret-key", "\u2022\u2022\u2022\u2022", "sk-secret\nkey", "\u201csk-secret-key\u201d"]
)
def test_wrong_keys(key: str) -> None:
    """A key that was copied wrong is told of at once, and not shown."""
    with pytest.raises(ValueError, match="the API key holds a character that no HTTP header can") as caught:
        OpenAIChatClient("m", api_key=key)
    assert "secret" not in str(caught.value)


async def test_line_ends_of_keys() -> None:
    """A key that was read from a file with its line end works; one of nothing else is none."""
    async with (
        StrictEndpoint("hello") as endpoint,
        OpenAIChatClient("m", base_url=endpoint.url, api_key="k\n") as client,
    ):
        await client.get_response("hi")
        assert endpoint.requests[0].headers["authorization"] == "Bearer k"
    with pytest.raises(ValueError, match="no key and no endpoint"):
        OpenAIChatClient("m", api_key=" \n")
