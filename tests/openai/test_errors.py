"""What a refusal means: its class, whether to try again and when, by status and body."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import pytest

import agentpipe
from agentpipe.openai._errors import error_of


def E(message: str, type: str | None = None, code: Any = None, **more: Any) -> dict[str, Any]:
    """OpenAI's form of an error."""
    return {"error": {"message": message, "type": type, "code": code, **more}}


#: Status, headers, body; class (several where the body leaves it open), retryable (None: either), retry_after.
REFUSALS: list[tuple[int, dict[str, str], Any, str, bool | None, float | None]] = [
    (401,{},E("Incorrect API key provided: sk-abc. You can find your API key at https://platform.openai.com/account/api-keys.","invalid_request_error","invalid_api_key"),"AuthenticationError",False,None),
    (403,{},E("Country, region, or territory not supported","request_forbidden","unsupported_country_region_territory"),"AuthenticationError",False,None),
    (404,{},E("The model `gpt-9` does not exist or you do not have access to it.","invalid_request_error","model_not_found"),"BadRequestError",False,None),
    (404,{},"404 page not found","BadRequestError",False,None),
    (405,{},{"detail":"Method Not Allowed"},"BadRequestError",False,None),
    (400,{},E("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","invalid_request_error","unsupported_parameter"),"BadRequestError",False,None),
    (400,{},E("max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.","invalid_request_error","invalid_value"),"BadRequestError",False,None),
    (400,{},E("Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string with length 70 instead.","invalid_request_error","string_above_max_length",param="tools[0].function.name"),"BadRequestError",False,None),
    (400,{},E("Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length 64 instead.","invalid_request_error","string_above_max_length"),"BadRequestError",False,None),
    (400,{},E("Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576, but got a string with length 2000000 instead.","invalid_request_error","string_above_max_length",param="messages[0].content"),"ContextLengthError",False,None),
    (400,{},E("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please reduce the length of the messages.","invalid_request_error","context_length_exceeded"),"ContextLengthError",False,None),
    (400,{},{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":None,"code":400},"ContextLengthError",False,None),
    (400,{},E("'max_tokens' or 'max_completion_tokens' is too large: 30000. This model's maximum context length is 32768 tokens and your request has 5000 input tokens (30000 > 32768 - 5000).","BadRequestError",400),"ContextLengthError",False,None),
    (400,{},{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 208310 tokens > 200000 maximum"}},"ContextLengthError",False,None),
    (400,{},{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again"}},"ContextLengthError",False,None),
    (400,{},[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}],"ContextLengthError",False,None),
    (500,{},{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"server_error"}},"ContextLengthError",False,None),
    (400,{},E("Range of input length should be [1, 30720]","invalid_request_error","InvalidParameter"),"ContextLengthError",False,None),
    (400,{},E("Requested token count exceeds the model's maximum context length of 65536 tokens.","BadRequest",400),"ContextLengthError",False,None),
    (400,{},E("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192","invalid_request_error","context_length_exceeded"),"ContextLengthError",False,None),
    (400,{},E("The prompt is too long: 132000, model maximum context length: 131071","invalid_request_error"),"ContextLengthError",False,None),
    (400,{},E("litellm.ContextWindowExceededError: AnthropicException - prompt is too long",None,"400"),"ContextLengthError",False,None),
    (400,{},E("Your request exceeded model token limit: 8192","invalid_request_error"),"ContextLengthError",False,None),
    (400,{},E("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`","validation"),"ContextLengthError",False,None),
    (400,{},E("ValidationException: Input is too long for requested model."),"ContextLengthError",False,None),
    (413,{},E("Request too large for model `llama` in organization `org` on tokens per minute (TPM): Limit 6000, Requested 9000, please reduce your message size and try again.","tokens","rate_limit_exceeded"),"ContextLengthError|RateLimitError",False,None),
    (413,{},"<html><head><title>413 Request Entity Too Large</title></head></html>","ContextLengthError",False,None),
    (429,{},E("Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s. Visit https://platform.openai.com/account/rate-limits to learn more.","tokens","rate_limit_exceeded"),"RateLimitError",True,2.0),
    (429,{},E("Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 50000. The input or output tokens must be reduced in order to run successfully.","tokens","rate_limit_exceeded"),"RateLimitError",False,None),
    (429,{},E("You exceeded your current quota, please check your plan and billing details.","insufficient_quota","insufficient_quota"),"RateLimitError",False,None),
    (429,{},E("Please try again in 6m0s","requests","rate_limit_exceeded"),"RateLimitError",True,360.0),
    (429,{},E("Rate limit reached ... Please try again in 1h2m3.5s.","tokens","rate_limit_exceeded"),"RateLimitError",False,3723.5),
    (429,{},E("Please try again in 7.66s","tokens","rate_limit_exceeded"),"RateLimitError",True,7.66),
    (429,{},E("Please try again in 120ms.","tokens","rate_limit_exceeded"),"RateLimitError",True,0.12),
    (429,{},E("Requests to the ChatCompletions_Create Operation have exceeded call rate limit of your current pricing tier. Please retry after 9 seconds.",None,"429"),"RateLimitError",True,9.0),
    (429,{},[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details. For more information on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits. * Quota exceeded for metric: generate_content_free_tier_requests, limit: 10\nPlease retry in 37.6s.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"37s"}]}}],"RateLimitError",True,37.0),
    (429,{"retry-after":"12"},"Too Many Requests","RateLimitError",True,12.0),
    (429,{"x-ratelimit-reset-requests":"1s"},E("slow down"),"RateLimitError",True,None),
    (429,{},{"type":"error","error":{"type":"rate_limit_error","message":"Number of request tokens has exceeded your per-minute rate limit"}},"RateLimitError",True,None),
    (429,{},E("The engine is currently overloaded, please try again later","engine_overloaded_error"),"RateLimitError|TransportError",True,None),
    (529,{},{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}},"TransportError",True,None),
    (402,{},E("Insufficient Balance","unknown_error","invalid_request_error"),"RateLimitError",False,None),
    (402,{},E("This request requires more credits, or fewer max_tokens. You requested up to 4096 tokens, but can only afford 100.",None,402),"RateLimitError",False,None),
    (403,{},E("Key limit exceeded (daily limit)",None,403),"RateLimitError|AuthenticationError",False,None),
    (403,{},E("input flagged by moderation",None,403,metadata={"reasons":["violence"],"flagged_input":"x"}),"ContentFilterError",False,None),
    (400,{},E("The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",None,"content_filter",innererror={"code":"ResponsibleAIPolicyViolation"}),"ContentFilterError",False,None),
    (400,{},E("Output data may contain inappropriate content.","data_inspection_failed","data_inspection_failed"),"ContentFilterError",False,None),
    (400,{},E("Content Exists Risk","invalid_request_error","invalid_request_error"),"ContentFilterError",False,None),
    (400,{},E("系统检测到输入或生成内容可能包含不安全或敏感内容",None,"1301"),"ContentFilterError",False,None),
    (400,{},E("Invalid schema for function 'f': parameter contains sensitive field","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("Invalid value for 'content': expected a string, got null.","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("Missing required parameter: 'messages[0].content'.","invalid_request_error","missing_required_parameter"),"BadRequestError",False,None),
    (400,{},E("API key not valid. Please pass a valid API key.",None,400,status="INVALID_ARGUMENT"),"AuthenticationError",False,None),
    (400,{},E("Incorrect API key provided: AA***BB.","Client specified an invalid argument"),"AuthenticationError|BadRequestError",False,None),
    (400,{},E("invalid stop token","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("no token limit given for tool call not found","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.","invalid_request_error","tool_use_failed",failed_generation="<function=x>"),"BadResponseError",True,None),
    (400,{},E("Tool call validation failed: tool call validation failed: attempted to call tool 'x' which was not in request.tools","invalid_request_error","tool_use_failed"),"BadResponseError",True,None),
    (400,{},E("tool_calls: invalid tool call id format","invalid_request_error"),"BadRequestError",False,None),
    (422,{},{"detail":[{"loc":["body","messages",0,"role"],"msg":"Input should be 'system'","type":"literal_error"}]},"BadRequestError",False,None),
    (422,{},{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","foo"],"msg":"Extra inputs are not permitted"}]},"type":"invalid_request_error"},"BadRequestError",False,None),
    (500,{},E("The server had an error while processing your request. Sorry about that!","server_error"),"TransportError",True,None),
    (500,{},"Internal Server Error","TransportError",True,None),
    (502,{},"<html><head><title>502 Bad Gateway</title></head></html>","TransportError",True,None),
    (503,{"retry-after":"5"},{"message":"Loading model","error":{"code":503,"message":"Loading model","type":"unavailable_error"}},"TransportError",True,5.0),
    (504,{},"upstream request timeout","TransportError",True,None),
    (408,{},E("Request timeout"),"TransportError",True,None),
    (409,{},E("conflict"),"TransportError",True,None),
    (425,{},"","TransportError",True,None),
    (500,{},E("Internal server error: authentication backend down"),"TransportError",True,None),
    (502,{},{"error":{"message":"Provider returned error","code":502,"metadata":{"raw":"{\"error\":{\"message\":\"rate limit\",\"code\":429}}","provider_name":"X"}}},"RateLimitError",True,None),
    (400,{},{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 1 tokens > 2 maximum\"}}"}}},"ContextLengthError",False,None),
    (200,{},{"error":{"message":"Rate limit exceeded: free-models-per-min","code":429,"metadata":{"headers":{"X-RateLimit-Reset":"1741305600000"}}}},"RateLimitError",True,None),
    (200,{},{"error":{"message":"Internal error","code":500}},"TransportError",True,None),
    (200,{},{"error":"model 'x' not found"},"BadRequestError",False,None),
    (200,{},{"error":{"message":"Incorrect API key","code":401}},"AuthenticationError",False,None),
    (200,{},{"code":20012,"message":"Model does not exist. Please check it carefully.","data":None},"BadRequestError",False,None),
    (200,{},{"base_resp":{"status_code":1004,"status_msg":"login fail: Please carry the API secret key in the 'Authorization' field"}},"AuthenticationError",False,None),
    (200,{},{"base_resp":{"status_code":1002,"status_msg":"rate limit"}},"RateLimitError",True,None),
    (400,{"x-should-retry":"true"},E("weird"),"BadRequestError",True,None),
    (418,{},"","BadRequestError",False,None),
    (307,{},"","BadRequestError|TransportError|BadResponseError",None,None),
    (429,{"retry-after":"-5"},E("x"),"RateLimitError",True,None),
    (429,{"retry-after":"abc"},E("x"),"RateLimitError",True,None),
    (429,{"retry-after":"nan"},E("x"),"RateLimitError",True,None),
    (429,{"retry-after-ms":"1500","retry-after":"99"},E("x"),"RateLimitError",True,1.5),
    (429,{"retry-after":"0"},E("x"),"RateLimitError",True,0.0),
    (429,{},{"error":{"message":"x","code":"429","retry_after":3}},"RateLimitError",True,3.0),
    (429,{},{"error":{"message":"Rate limit; retry_after_ms","retry_after_ms":1500}},"RateLimitError",True,1.5),
    (429,{},{"error":{"message":"Too many requests. Please wait 30 seconds."}},"RateLimitError",True,30.0),
    (429,{},{"error":{"message":"Too many requests. Try again in 2 minutes."}},"RateLimitError",True,120.0),
    (429,{},{"error":{"message":"limit resets in 1 minute 30 seconds"}},"RateLimitError",True,90.0),
    (503,{},{"error":{"message":"Model is loading","estimated_time":20.0}},"TransportError",True,20.0),
    (500,{},{"error":{"message":"CUDA out of memory","type":"InternalServerError"}},"TransportError",True,None),
    (500,{},{"detail":{"error":{"message":"max_tokens must be positive"}}},"TransportError",True,None),
    (400,{},E("messages: text content blocks must be non-empty","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("Request timed out waiting for tool","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("conversation roles must alternate user/assistant/user/assistant/...",), "BadRequestError",False,None),
    (400,{},E("The input messages do not contain elements with the role of user"),"BadRequestError",False,None),
    (400,{},E("Image is too large: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes","invalid_request_error"),"BadRequestError",False,None),
    (400,{},E("request body too large","invalid_request_error"),"BadRequestError|ContextLengthError",False,None),
    (400,{},E("`temperature` is too large; maximum is 2","invalid_request_error"),"BadRequestError",False,None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "headers", "body", "kinds", "retryable", "after"), REFUSALS)
def test_refusals(
    status: int, headers: dict[str, str], body: Any, kinds: str, retryable: bool | None, after: float | None
) -> None:
    """The words of real servers are understood, whatever status they come with."""
    error = error_of(status, headers, body)
    assert type(error).__name__ in kinds.split("|")
    assert retryable is None or error.retryable is retryable
    assert error.retry_after == (None if after is None else pytest.approx(after))


def test_what_an_error_tells() -> None:
    """Status, code, request id and the endpoint's own words are there."""
    error = error_of(
        429, {"x-request-id": "req-1", "retry-after": "3"}, E("slow down", "requests", "rate_limit_exceeded")
    )
    assert isinstance(error, agentpipe.RateLimitError)
    assert (error.status, error.code, error.request_id, error.retry_after) == (429, "rate_limit_exceeded", "req-1", 3.0)
    assert "slow down" in str(error)


def test_a_date_is_a_delay() -> None:
    """Retry-After as an HTTP date is the time until then, and no less than none."""
    later = error_of(503, {"retry-after": formatdate(time.time() + 30, usegmt=True)}, "")
    assert later.retry_after == pytest.approx(30, abs=2)
    assert error_of(503, {"retry-after": formatdate(time.time() - 30, usegmt=True)}, "").retry_after == 0.0


def test_a_long_wait_is_no_reason_to_wait() -> None:
    """A delay of hours is told, but the error is not retryable."""
    error = error_of(429, {"retry-after": "86400"}, "")
    assert (error.retryable, error.retry_after) == (False, 86400.0)


def test_an_error_of_any_shape_is_an_error_with_a_message() -> None:
    """Empty, deep, odd and huge bodies make an error that can be read."""
    deep: Any = "the cause"
    for _ in range(40):
        deep = {"error": deep}
    bodies: list[Any] = [
        "",
        None,
        [],
        {},
        deep,
        {"error": None},
        {"error": [1, 2]},
        "x" * 10**6,
        b"\xff\xfe",
        {"detail": [{"loc": None}]},
    ]
    for body in bodies:
        error = error_of(500, {}, body)
        assert isinstance(error, agentpipe.TransportError)
        assert 0 < len(str(error)) < 700
