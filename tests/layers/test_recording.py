"""RecordingChatClient and the pytest fixture around it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentpipe import (
    Agent,
    AgentPipeError,
    ChatOptions,
    RecordingChatClient,
    RetryingChatClient,
    TransportError,
    UsageDetails,
    assistant,
    pipeline,
    user,
)
from agentpipe.testing import ScriptedChatClient, call
from tests.conftest import ask

ROOT = Path(__file__).parent.parent.parent
USAGE = UsageDetails(input_tokens=3, output_tokens=4, total_tokens=7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recordings" / "one.json"


def work(place: str) -> str:
    """Work."""
    return f"done in {place}"


@pytest.mark.parametrize("second", [False, True], ids=["replayed whole", "replayed streamed"])
async def test_a_run_is_replayed_without_anybody_to_ask(path: Path, streaming: bool, second: bool) -> None:
    """What was recorded whole or streamed is replayed whole or streamed: the same response, usage too."""
    endpoint = ScriptedChatClient(call("work", place="Suzhou"), "It is done, and well done it is. " * 3, usage=USAGE)
    recorded = await ask(Agent(RecordingChatClient(endpoint, path), tools=[work]), "Work", streaming)
    replayed = await ask(Agent(RecordingChatClient(None, path), tools=[work]), "Work", second)
    assert [m.contents for m in replayed.messages] == [m.contents for m in recorded.messages]
    assert (replayed.usage, replayed.finish_reason, replayed.model) == (recorded.usage, "stop", "scripted")
    assert endpoint.open == 0


async def test_auto_asks_what_the_file_has_not(path: Path, streaming: bool) -> None:
    """What is in the file is not asked again; what is new is asked and added."""
    first = ScriptedChatClient("one")
    await ask(RecordingChatClient(first, path), "a", streaming)
    second = ScriptedChatClient("two")
    client = RecordingChatClient(second, path)
    assert [(await ask(client, text, streaming)).text for text in ("b", "a")] == ["two", "one"]
    assert len(second.requests) == 1
    assert len(json.loads(path.read_text("utf-8"))["exchanges"]) == 2


async def test_equal_requests_are_asked_and_recorded_each(path: Path, streaming: bool) -> None:
    """What was recorded a moment ago is no answer to the next request: the endpoint may say something else."""
    client = RecordingChatClient(ScriptedChatClient("one", "two"), path)
    assert [(await ask(client, "Hi", streaming)).text for _ in range(2)] == ["one", "two"]
    replay = RecordingChatClient(None, path)
    assert [(await ask(replay, "Hi", streaming)).text for _ in range(2)] == ["one", "two"]


async def test_record_begins_anew(path: Path) -> None:
    """mode="record" asks always, and what was in the file is gone."""
    await RecordingChatClient(ScriptedChatClient("old"), path).get_response("Hi")
    client = RecordingChatClient(ScriptedChatClient("new", "newer"), path, mode="record")
    await client.get_response("Hi")
    await client.get_response("Hi")
    replay = RecordingChatClient(None, path, mode="replay")
    assert [(await replay.get_response("Hi")).text for _ in range(2)] == ["new", "newer"]


async def test_exchanges_are_found_in_any_order(path: Path) -> None:
    """Concurrent requests find their own answers, in whatever order they come."""
    client = RecordingChatClient(ScriptedChatClient(*[lambda request: f"to {request.messages[0].text}"] * 5), path)
    for i in range(5):
        await client.get_response(str(i))
    replay = RecordingChatClient(None, path)
    answers = await asyncio.gather(*[replay.get_response(str(i)) for i in (3, 1, 4, 0, 2)])
    assert [answer.text for answer in answers] == ["to 3", "to 1", "to 4", "to 0", "to 2"]


@pytest.mark.parametrize(
    ("asked", "options", "told"),
    [
        (user("Bye"), None, "differs at messages[0].contents[0].text: recorded \"Hi\", asked \"Bye\""),
        ([user("Hi"), assistant("Yes?")], None, "differs at messages[1]: recorded nothing, asked {"),
        (user("Hi"), ChatOptions(model="b", seed=1), "differs at model: recorded nothing, asked \"b\" (and 1 more)"),
    ],
)  # fmt: skip
async def test_a_mismatch_shows_the_nearest_difference(
    path: Path, asked: Any, options: Any, told: str, streaming: bool
) -> None:
    """A request that was not recorded fails, and the message says where the nearest one differs."""
    client = RecordingChatClient(ScriptedChatClient("one", "two"), path)
    await client.get_response("Hi")
    await client.get_response("Something else entirely", ChatOptions(model="z", seed=9, top_p=0.5))
    replay = RecordingChatClient(ScriptedChatClient(), path, mode="replay")
    with pytest.raises(AgentPipeError, match=re.escape(f"{path} has no answer to this request; the nearest")) as caught:
        await ask(replay, asked, streaming, options=options)
    assert told in str(caught.value)


async def test_an_exchange_is_given_once(path: Path) -> None:
    """The third of two equal requests has no answer left, and is told so."""
    await RecordingChatClient(ScriptedChatClient("one"), path).get_response("Hi")
    replay = RecordingChatClient(None, path)
    await replay.get_response("Hi")
    with pytest.raises(AgentPipeError, match="exchange 0 is the same, and was given already"):
        await replay.get_response("Hi")


async def test_secrets_stay_out_of_the_file(path: Path, streaming: bool) -> None:
    """Headers, what looks like a key, and what redact replaces are not in the file, and do not matter in a replay."""

    def redact(text: str) -> str:
        return re.sub(r"\S+@\S+", "<email>", text)

    client = RecordingChatClient(ScriptedChatClient("Written to ann@example.com"), path, redact=redact)
    options = ChatOptions(
        extra_headers={"authorization": "Bearer s3cret"}, extra_body={"api_key": "s3cret", "deep": [{"password": "s3cret"}]}
    )  # fmt: skip
    response = await ask(client, "Write to ann@example.com", streaming, options=options)
    assert response.text == "Written to ann@example.com"
    text = path.read_text("utf-8")
    assert "s3cret" not in text
    assert "example.com" not in text
    replay = RecordingChatClient(None, path, redact=redact)
    other = ChatOptions(extra_body={"api_key": "another", "deep": [{"password": "one"}]})
    assert (await ask(replay, "Write to bob@example.com", streaming, options=other)).text == "Written to <email>"


async def test_errors_and_what_was_left_are_not_recorded(path: Path, streaming: bool) -> None:
    """A failure goes through and leaves no exchange; a retry above records the answer."""
    endpoint = ScriptedChatClient(TransportError("down"), "Hello.")
    client = pipeline(
        partial(RetryingChatClient, wait_initial=0, jitter=0), partial(RecordingChatClient, path=path), endpoint
    )
    assert (await ask(client, "Hi", streaming)).text == "Hello."
    async with RecordingChatClient(ScriptedChatClient("left"), path).stream("Left") as stream:
        await stream.__anext__()
    assert len(json.loads(path.read_text("utf-8"))["exchanges"]) == 1
    assert [file.name for file in path.parent.iterdir()] == ["one.json"]


async def test_the_file_can_be_read(path: Path) -> None:
    """The file is indented JSON with the characters that were said."""
    await RecordingChatClient(ScriptedChatClient("Grüße aus 苏州"), path).get_response("Hi")
    text = path.read_text("utf-8")
    assert "Grüße aus 苏州" in text
    assert text.count("\n") > 10


async def test_two_of_them(path: Path, streaming: bool) -> None:
    """A recording around a recording: the outer file has what the inner one gave."""
    await ask(RecordingChatClient(ScriptedChatClient("one"), path), "Hi", streaming)
    outer = path.with_name("two.json")
    await ask(RecordingChatClient(RecordingChatClient(None, path), outer), "Hi", streaming)
    assert (await ask(RecordingChatClient(None, outer), "Hi", streaming)).text == "one"


async def test_it_prints_its_settings_and_is_found(path: Path) -> None:
    """The tree shows the file and the mode; what is inside is shown, found and closed."""
    closed: list[bool] = []

    class Closing(ScriptedChatClient):
        async def aclose(self) -> None:
            closed.append(True)

    async with RecordingChatClient(Closing(), "a.json", mode="record", redact=str.strip) as client:
        assert str(client).split("\n") == [
            "RecordingChatClient(path='a.json', mode='record', redact='strip')",
            "└─ Closing()",
        ]
        assert client.find(RecordingChatClient) is client
    assert closed == [True]


def test_bad_settings_are_refused(path: Path) -> None:
    """A bad setting, and a file that is no recording, raise where the layer is made."""
    inner: Any = ScriptedChatClient()
    bad: Any = "other"
    with pytest.raises(ValueError, match="^mode must be one of auto, record, replay"):
        RecordingChatClient(inner, path, mode=bad)
    with pytest.raises(ValueError, match="^mode 'record' needs an inner"):
        RecordingChatClient(None, path, mode="record")
    with pytest.raises(TypeError, match="^inner "):
        RecordingChatClient(bad, path)
    with pytest.raises(TypeError, match="^redact "):
        RecordingChatClient(inner, path, redact=bad)
    for settings in ({"inner": None}, {"inner": inner, "mode": "replay"}):
        with pytest.raises(FileNotFoundError, match=r"one\.json; record one"):
            RecordingChatClient(path=path, **settings)
    path.parent.mkdir()
    for text in ("{", "[]", '{"version": 1}', '{"version": 9, "exchanges": []}', '{"version": 1, "exchanges": [1]}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"one\.json is "):
            RecordingChatClient(inner, path)


USERS_TEST = """
from agentpipe.testing import ScriptedChatClient

async def answer(client):
    return (await client.get_response("Hi")).text

def test_it(recording):
    import asyncio
    client = recording(ScriptedChatClient("ANSWER"))
    assert asyncio.run(answer(client)) == "one"
    assert asyncio.run(answer(recording(ScriptedChatClient("other")))) == "other"
"""


def test_users_have_a_fixture(tmp_path: Path) -> None:
    """The first run of a test records, later ones replay; --agentpipe-record records anew."""

    def run(answer: str, *arguments: str) -> int:
        (tmp_path / "test_mine.py").write_text(USERS_TEST.replace("ANSWER", answer))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "agentpipe.pytest_plugin", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *arguments, "test_mine.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode

    assert run("one") == 0
    assert sorted(file.name for file in (tmp_path / "recordings" / "test_mine").iterdir()) == [
        "test_it-2.json",
        "test_it.json",
    ]
    assert run("two") == 0
    assert run("two", "--agentpipe-record") == 1
