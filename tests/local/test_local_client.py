"""A real model in this process: structure is asserted, never prose, since so small a model may say anything."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from agentpipe import Agent, AgentSession, ChatOptions, OpenAIChatClient, TransportError, tool
from agentpipe.local import LocalChatClient, LocalModelError
from samples.weather import get_weather
from tests.conftest import ask

ROOT = Path(__file__).parents[2]
BRIEF = ChatOptions(temperature=0.0, max_output_tokens=60)
#: The model is not to end by itself: an answer that is long for sure.
ENDLESS = ChatOptions(temperature=0.0, max_output_tokens=3000, extra_body={"ignore_eos": True})


@pytest.fixture
async def client(gguf: Path) -> Any:
    async with LocalChatClient() as client:
        yield client


async def test_agent_calls_its_tool_on_a_real_model(client: LocalChatClient, streaming: bool) -> None:
    """The main job on a real model: it calls the tool that it has to, gets the result and answers."""
    weather = tool(get_weather)
    options = BRIEF.replace(tool_choice="required")
    agent = Agent(client, name="Ada", tools=[weather], options=options)
    session = AgentSession()
    response = await ask(agent, "What should I wear in Suzhou today?", streaming, session=session)
    assert [message.role for message in response.messages[:2]] == ["assistant", "tool"]
    assert response.messages[-1].role == "assistant"
    call, result = response.function_calls[0], response.function_results[0]
    assert call.name == "get_weather"
    assert call.call_id == result.call_id != ""
    if call.invalid is None:
        assert weather.bind(call.arguments)
        assert isinstance(result.result, str)
    assert response.stop_reason == "answer"
    assert response.model
    assert response.usage is not None
    assert response.usage.input_tokens
    assert response.usage.output_tokens
    assert [message.role for message in session.messages] == ["user", *[m.role for m in response.messages]]


async def test_text_streams_in_pieces(client: LocalChatClient) -> None:
    """Text comes piece by piece, and folds into the whole answer, with its usage."""
    async with client.stream("Tell me about the sea.", BRIEF.replace(max_output_tokens=20)) as stream:
        pieces = [piece async for piece in stream.text_deltas()]
    response = await stream.get_response()
    assert len(pieces) > 1
    assert "".join(pieces) == response.text
    assert response.usage is not None


async def test_it_is_an_openai_client(tmp_path: Path) -> None:
    """It can be found as the OpenAIChatClient that it is, shows its model, and no key."""
    client = LocalChatClient()
    assert client.find(OpenAIChatClient) is client
    assert repr(client) == str(client) == "LocalChatClient(model='SmolLM2-135M-Instruct')"
    await client.aclose()  # nothing was started, nothing is to be stopped


async def test_clients_share_a_server_that_the_last_one_stops(gguf: Path) -> None:
    """Clients with equal settings use one server, behind a key; the last one that is closed stops it."""
    first, second, third = LocalChatClient(), LocalChatClient(), LocalChatClient(context=2048)
    await asyncio.gather(first.start(), second.start(), third.start(), first.start())
    assert first.base_url == second.base_url != third.base_url
    url = f"{first.base_url}/models"
    with pytest.raises(HTTPError, match="401"):
        await asyncio.to_thread(urlopen, Request(url))
    await first.aclose()
    assert (await second.get_response("Hi.", BRIEF.replace(max_output_tokens=5))).text
    await second.aclose()
    await third.aclose()
    with pytest.raises(URLError, match="refused"):
        await asyncio.to_thread(urlopen, Request(url))


async def test_closing_breaks_off_what_is_being_answered(gguf: Path) -> None:
    """Closing while an answer is on its way ends that answer with an error; a later request starts anew."""
    client = LocalChatClient()
    stream = client.stream("Tell me a long story.", ENDLESS)
    await anext(stream)
    await client.aclose()
    with pytest.raises(TransportError):
        await stream.get_response()
    assert (await client.get_response("Hi.", BRIEF.replace(max_output_tokens=5))).text
    await client.aclose()


async def test_cancelled_request_leaves_the_model_free(client: LocalChatClient) -> None:
    """A request that is cancelled stops being computed: the next one is answered."""
    async with client.stream("Tell me a long story.", ENDLESS) as stream:
        await anext(stream)
    assert (await client.get_response("Hi.", BRIEF.replace(max_output_tokens=5))).text


@pytest.mark.parametrize("left", ["idle", "answering"])
def test_process_that_does_not_close_ends_in_order(gguf: Path, left: str) -> None:
    """A process that never closes the client, even while it answers, ends by itself, silently and with 0."""
    code = f"""
import asyncio, sys, threading
from agentpipe import ChatOptions
from agentpipe.local import LocalChatClient
client = LocalChatClient()
begun = threading.Event()
async def answer():
    options = ChatOptions(max_output_tokens=3000, extra_body={{"ignore_eos": True}})
    async for update in client.stream("Tell me a long story.", options):
        begun.set()
def answer_for_ever():
    try:
        asyncio.run(answer())
    except Exception:
        pass  # breaks off when the process ends
if {left == "answering"}:
    threading.Thread(target=answer_for_ever, daemon=True).start()
    begun.wait()
else:
    asyncio.run(client.start())
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


async def test_own_model(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENTPIPE_LOCAL_MODEL names a file of one's own, which is served with the template in it."""
    monkeypatch.setenv("AGENTPIPE_LOCAL_MODEL", str(gguf))
    async with LocalChatClient() as client:
        assert client.model == gguf.stem
        assert client.template is None
        assert (await client.get_response("Hi.", BRIEF.replace(max_output_tokens=5))).text


async def test_file_that_is_no_model(gguf: Path, tmp_path: Path) -> None:
    """A file that llama.cpp cannot read is an error that names it."""
    (tmp_path / "noise.gguf").write_bytes(b"noise")
    with pytest.raises(LocalModelError, match=r"noise\.gguf"):
        await LocalChatClient(tmp_path / "noise.gguf").get_response("Hi.")


async def test_llama_cpp_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error says what to install."""
    (tmp_path / "own.gguf").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(LocalModelError, match=r"pip install 'agentpipe-chat\[local\]'"):
        await LocalChatClient(tmp_path / "own.gguf").get_response("Hi.")


@pytest.mark.parametrize("name", ["threads", "context", "parallel", "max_output_tokens"])
def test_settings_are_checked(name: str) -> None:
    """A setting below 1 is refused when the client is made, by its name."""
    settings: Any = {name: 0}
    with pytest.raises(ValueError, match=name):
        LocalChatClient(**settings)


def test_model_that_is_not_there(tmp_path: Path) -> None:
    """A path at which there is nothing is refused when the client is made."""
    with pytest.raises(ValueError, match="there is no model at"):
        LocalChatClient(tmp_path / "nothing.gguf")
