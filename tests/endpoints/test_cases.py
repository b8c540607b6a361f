"""What real endpoints send and refuse: each case is read, or sent for, right."""

from __future__ import annotations

from typing import Any

import pytest

import agentpipe
from agentpipe import ChatOptions, ChatResponse, EndpointProfile, OpenAIChatClient
from agentpipe.openai import load_messages, load_tools
from tests.endpoints.replay import CASES, Case, Replay

KINDS = {
    "transport": agentpipe.TransportError,
    "rate_limit": agentpipe.RateLimitError,
    "context_length": agentpipe.ContextLengthError,
    "content_filter": agentpipe.ContentFilterError,
    "bad_response": agentpipe.BadResponseError,
    "auth": agentpipe.AuthenticationError,
    "bad_request": agentpipe.BadRequestError,
}
MODES = {"stream": (True,), "response": (False,), "http_error": (False, True), "request_constraint": (False, True)}
RUNS = [
    pytest.param(case, streamed, id=f"{name}-{'streamed' if streamed else 'whole'}")
    for name, case in CASES.items()
    for streamed in MODES[case["kind"]]
]


def options_of(case: Case) -> ChatOptions:
    params = dict(case.get("request_params") or {})
    tools = case.get("tools") or params.get("tools") or []
    limit = params.get("max_tokens") or params.get("max_completion_tokens")
    for name in ("stream", "stream_options", "tools", "max_tokens", "max_completion_tokens"):
        params.pop(name, None)
    return ChatOptions(tools=load_tools(tools), max_output_tokens=limit, **params)


def client_of(case: Case, url: str) -> OpenAIChatClient:
    fields = dict(case.get("profile") or {})
    if case.get("opt_in"):
        fields[case["opt_in"]] = True
    return OpenAIChatClient(case["id"], base_url=url, api_key="secret-key", profile=EndpointProfile(**fields))


def told(response: ChatResponse) -> dict[str, Any]:
    """A response in the words of a case."""
    usage = response.usage
    return {
        "text": response.text,
        "reasoning": response.reasoning or None,
        "finish_reason": response.finish_reason,
        "tool_calls": [(call.name, None if call.invalid else dict(call.arguments)) for call in response.function_calls],
        "usage": usage
        and {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "cached_tokens": usage.cached_input_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
        },
    }


def expected(case: Case) -> dict[str, Any]:
    want = {key: case["expect"][key] for key in ("text", "reasoning", "finish_reason", "usage")}
    want["tool_calls"] = [(call["name"], call["arguments"]) for call in case["expect"]["tool_calls"]]
    return want


@pytest.mark.parametrize(("case", "streamed"), RUNS)
async def test_case(case: Case, streamed: bool) -> None:
    """A case is answered with the response, or the error, that a careful client makes of it."""
    want = case["expect"]["error"]
    async with Replay(case) as endpoint, client_of(case, endpoint.url) as client:
        messages = load_messages(case.get("request_messages") or [{"role": "user", "content": "please help"}])
        stream = client.stream(messages, options_of(case))
        answer = stream.get_response() if streamed else client.get_response(messages, options_of(case))
        if want is None:
            check_response(case, await answer, streamed)
            return
        with pytest.raises(KINDS[want["class"]]) as caught:
            await answer
    check_error(case, caught.value)
    if case["kind"] == "stream":
        assert stream.partial.text == case["expect"]["text"]
        assert stream.partial.incomplete


def check_response(case: Case, response: ChatResponse, streamed: bool) -> None:
    got, want = told(response), expected(case)
    if case["kind"] == "request_constraint" and not streamed and want["usage"] is None:
        del got["usage"], want["usage"]  # what the case says of usage, it says of the stream
    got["usage"] = got.get("usage") and {key: got["usage"][key] for key in want["usage"] or ()}
    want.setdefault("usage", got["usage"])
    assert got == want
    calls = response.function_calls
    assert len({call.call_id for call in calls}) == len(calls)
    assert all(call.call_id for call in calls)
    for call, told_of in zip(calls, case["expect"]["tool_calls"], strict=True):
        assert call.call_id == told_of.get("id", call.call_id)
        assert bool(call.invalid) is bool(told_of.get("invalid"))
        if extra := told_of.get("extra_content"):
            assert call.provider_data == {"extra_content": extra}


def check_error(case: Case, error: agentpipe.ChatClientError) -> None:
    want = case["expect"]["error"]
    if want["class"] == "bad_request":
        assert not isinstance(error, agentpipe.ContextLengthError)
    assert error.retryable is want["retryable"]
    if (after := want["retry_after_s"]) is not None:
        tolerance = want.get("tolerance_s", case["expect"].get("tolerance_s", 2))
        assert error.retry_after == pytest.approx(after, abs=tolerance)
    assert "secret-key" not in repr(error) + str(error)


def test_all_cases_are_here() -> None:
    """The cases of all four kinds are there: a wrong path would let every test above pass unseen."""
    kinds = [case["kind"] for case in CASES.values()]
    assert {kind: kinds.count(kind) > 10 for kind in MODES} == dict.fromkeys(MODES, True)
