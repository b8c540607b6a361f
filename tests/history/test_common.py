"""What the stores share: ids as keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentpipe.history._common import key_of

# Lone surrogates, NUL, backslashes and long texts turn up far more often than by chance.
ids = st.one_of(
    st.text(st.characters(), max_size=8),
    st.text(st.sampled_from('a\\u0d8\0\ud800\udfff"ä{} '), max_size=8),
    st.integers(80, 510).flatmap(lambda n: st.sampled_from(["a", "\\", "\ud800"]).map(lambda c: c * n)),
)


@given(ids)
def test_keys_can_be_held(text: str) -> None:
    """A key is short, and has neither NUL nor lone surrogates; a plain id is its own key."""
    key = key_of(text)
    assert "\0" not in key
    assert len(key.encode()) <= 500
    if text.isalnum() and len(text.encode()) <= 500:
        assert key == text


@given(ids, ids)
def test_unlike_ids_stay_unlike(one: str, other: str) -> None:
    """Two ids have the same key only if they are the same."""
    assert (key_of(one) == key_of(other)) == (one == other)
