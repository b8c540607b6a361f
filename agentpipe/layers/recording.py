"""Records real exchanges to a file, and answers from it: tests without a network."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from agentpipe._client import ChatClient
from agentpipe._layered import name_of
from agentpipe._request import ChatRequest
from agentpipe._responses import ChatResponse, ChatResponseUpdate, ResponseFolder
from agentpipe._waist import closing
from agentpipe.exceptions import AgentPipeError
from agentpipe.layers._exchange import again, canonical

Mode = Literal["auto", "record", "replay"]
_VERSION = 1


class RecordingChatClient(ChatClient):
    """Records what a client answers to a JSON file, and answers from the file what it was asked before.

    Right around an endpoint, below all that retries or caches, it replaces that endpoint in a test. Each exchange is
    given once, to a request that is the same in all that bears on the answer; equal requests get theirs in the order
    in which they were recorded. Neither headers nor ids of messages are written, and of ``extra_body`` nothing whose
    name looks secret. Errors are not recorded. The file is written anew, atomically, with each exchange.

    Args:
        inner: The client to ask; None where the file has all that will be asked.
        path: The file.
        mode: "record" asks always and begins a new file; "replay" never asks; "auto" asks what the file has not.
        redact: A function from text to text, applied to each text of an exchange before it is written, and to each
            request before it is looked up.

    Raises:
        ValueError: There is no such mode, nobody to ask though the mode needs it, or the file is no recording.
        FileNotFoundError: There is no file, and nobody to ask.
        AgentPipeError: While answering: the file has no such request; the message shows the nearest.
    """

    def __init__(
        self,
        inner: ChatClient | None,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "auto",
        redact: Callable[[str], str] | None = None,
    ) -> None:
        if inner is not None and not isinstance(inner, ChatClient):
            raise TypeError(f"inner must be a ChatClient or None, not {inner!r:.80}")
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        if mode == "record" and inner is None:
            raise ValueError("mode 'record' needs an inner client to ask")
        if redact is not None and not callable(redact):
            raise TypeError(f"redact must be a function from text to text, not {redact!r:.80}")
        self.inner = inner
        self.path = Path(path)
        self.mode: Mode = mode
        self.redact = redact
        must_exist = mode == "replay" or inner is None
        self._exchanges = [] if mode == "record" else _load(self.path, must_exist)
        self._given: set[int] = set()

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer from the file, or ask and record."""
        asked = self._redacted(canonical(request))
        found = None if self.mode == "record" else self._find(asked)
        if found is not None:
            for update in again(found, request.streaming):
                yield update
        elif self.inner is None or self.mode == "replay":
            raise AgentPipeError(f"{self.path} has no answer to this request; {self._nearest(asked)}")
        else:
            folder = ResponseFolder()
            async with closing(self.inner.respond(request)) as updates:
                async for update in updates:
                    folder.add(update)
                    yield update
            self._record(asked, folder.response())

    def _find(self, asked: Any) -> ChatResponse | None:
        for place, exchange in enumerate(self._exchanges):
            if place not in self._given and exchange["request"] == asked:
                self._given.add(place)
                return ChatResponse.model_validate(exchange["response"])
        return None

    def _record(self, asked: Any, response: ChatResponse) -> None:
        told = response.replace(created_at=None).model_dump()
        self._given.add(len(self._exchanges))
        self._exchanges.append({"request": asked, "response": self._redacted(told)})
        _save(self.path, self._exchanges)

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value) if self.redact is not None else value
        if isinstance(value, dict):
            return {key: self._redacted(item) for key, item in value.items()}
        return [self._redacted(item) for item in value] if isinstance(value, (list, tuple)) else value

    def _nearest(self, asked: Any) -> str:
        differences = [list(_differences(exchange["request"], asked, "")) for exchange in self._exchanges]
        if not differences:
            return "it has no exchanges at all"
        place = min(range(len(differences)), key=lambda place: len(differences[place]))
        if not differences[place]:
            return f"exchange {place} is the same, and was given already"
        more = f" (and {len(differences[place]) - 1} more)" if len(differences[place]) > 1 else ""
        return f"the nearest, exchange {place}, differs at {differences[place][0]}{more}"

    def _settings(self) -> dict[str, object]:
        told: dict[str, object] = {"path": str(self.path)}
        if self.mode != "auto":
            told["mode"] = self.mode
        return {**told, "redact": name_of(self.redact)} if self.redact is not None else told


def _load(path: Path, must_exist: bool) -> list[dict[str, Any]]:
    if not path.exists():
        if must_exist:
            raise FileNotFoundError(f"there is no recording at {path}; record one with mode='record'")
        return []
    try:
        data = json.loads(path.read_text("utf-8", "surrogatepass"))
        version, exchanges = data["version"], data["exchanges"]
        whole = [{"request": exchange["request"], "response": exchange["response"]} for exchange in exchanges]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recording of agentpipe: {type(error).__name__}: {error}") from None
    if version != _VERSION:
        raise ValueError(f"{path} is a recording of version {version!r:.20}; this agentpipe reads {_VERSION}")
    return whole


def _save(path: Path, exchanges: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps({"version": _VERSION, "exchanges": exchanges}, indent=2, ensure_ascii=False)
    beside.write_text(text + "\n", "utf-8", "surrogatepass")
    beside.replace(path)


def _differences(recorded: Any, asked: Any, where: str) -> Iterator[str]:
    """Where two JSON values differ, and how."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for key in [*recorded, *[key for key in asked if key not in recorded]]:
            path = f"{where}.{key}" if where else key
            yield from _differences(recorded.get(key), asked.get(key), path)
    elif isinstance(recorded, list) and isinstance(asked, list):
        for place in range(max(len(recorded), len(asked))):
            old, new = (side[place] if place < len(side) else None for side in (recorded, asked))
            yield from _differences(old, new, f"{where}[{place}]")
    elif recorded != asked:
        yield f"{where}: recorded {_short(recorded)}, asked {_short(asked)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if value is not None else "nothing"
    return text if len(text) <= 120 else f"{text[:117]}..."
