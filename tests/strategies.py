"""Hypothesis strategies for every type of data."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from agentpipe import (
    ApprovalRequestContent,
    ApprovalResponseContent,
    ChatResponse,
    ChatResponseUpdate,
    DataContent,
    FunctionCallContent,
    FunctionResultContent,
    InputRequestContent,
    InputResponseContent,
    Message,
    ProgressContent,
    ReasoningContent,
    RefusalContent,
    TextContent,
    ThoughtContent,
    UnknownContent,
    UriContent,
    UsageDetails,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, json_values, max_size=3)
data = st.none() | objects.filter(bool)
extras = st.none() | st.dictionaries(st.sampled_from(["future", "x_field"]), json_values, min_size=1, max_size=2)
calls = st.builds(
    FunctionCallContent, texts, texts, objects, st.none() | texts, st.none() | texts.filter(bool), data, extras
)
simple = st.one_of(
    st.builds(TextContent, texts, data, extras),
    st.builds(ReasoningContent, texts, data, extras),
    st.builds(RefusalContent, texts, data, extras),
    st.builds(UriContent, texts, st.just("image/png"), st.none() | texts, data, extras),
    st.builds(DataContent, st.binary(max_size=20), st.just("image/png"), st.none() | texts, data, extras),
    st.builds(ProgressContent, texts, texts, texts, extras),
    st.builds(ThoughtContent, extras),
    st.builds(UnknownContent, objects.map(lambda known: {**known, "type": "from the future"})),
)
contents = st.one_of(
    simple,
    calls,
    st.builds(
        FunctionResultContent,
        texts,
        st.none() | texts,
        json_values,
        st.booleans(),
        st.lists(simple, max_size=2).map(tuple),
        extra=extras,
    ),
    st.builds(ApprovalRequestContent, texts, calls, st.none() | calls, json_values, extras),
    st.builds(
        ApprovalResponseContent,
        texts,
        st.booleans(),
        st.none() | objects,
        st.none() | texts,
        st.none() | st.just("tool"),
        extras,
    ),
    st.builds(InputRequestContent, texts, calls, json_values, json_values, st.none() | calls, extras),
    st.builds(InputResponseContent, texts, json_values, extras),
)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.lists(contents, max_size=3).map(tuple),
    st.none() | texts,
    st.none() | texts,
    data,
    extra=extras,
)
counts = st.none() | st.integers(0, 10**6)
usages = st.builds(UsageDetails, counts, counts, counts, counts, counts, extra=st.none() | st.just({"cost": 1}))
times = st.datetimes(timezones=st.sampled_from([None, timezone.utc, timezone(timedelta(hours=5, minutes=30))]))
responses = st.builds(
    ChatResponse,
    st.lists(messages, max_size=2).map(tuple),
    st.none() | usages,
    st.none() | st.sampled_from(["stop", "length", "tool_calls"]),
    st.none() | st.sampled_from(["answer", "limit"]),
    st.none() | texts,
    created_at=st.none() | times,
    incomplete=st.booleans(),
    metadata=data,
    extra=extras,
)
updates = st.builds(
    ChatResponseUpdate,
    st.lists(contents, max_size=3).map(tuple),
    st.none() | st.sampled_from(["user", "assistant", "tool"]),
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | st.sampled_from(["stop", "length", "tool_calls"]),
    st.none() | st.sampled_from(["answer", "limit"]),
    st.none() | usages,
    st.none() | texts,
    data,
    extra=extras,
)
records: Any = st.one_of(contents, messages, usages, responses, updates)
