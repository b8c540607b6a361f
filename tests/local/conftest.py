from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.weights import real_weights


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The weights of the embedded model, in the user's cache."""
    return real_weights()
