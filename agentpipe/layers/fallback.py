"""Asks the next client when one cannot answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from weakref import WeakKeyDictionary

from agentpipe._client import ChatClient
from agentpipe._request import ChatRequest, Run
from agentpipe._responses import ChatResponseUpdate
from agentpipe._waist import closing
from agentpipe.exceptions import BadRequestError, ChatClientError, ContextLengthError
from agentpipe.layers._common import On, OnErrors, answered_late

#: Where the metadata of a response says who gave the last answer: ``{"client": 0, "name": "OpenAIChatClient(...)"}``.
ANSWERED_BY = "answered_by"


class FallbackChatClient(ChatClient):
    """Asks the first client, and the next one when it cannot answer.

    It stands where the client stands: ``pipeline(FunctionInvokingChatClient, FallbackChatClient(big, small))``. Within
    a run it stays with the client that answered last. The next one is asked only before the first update was passed
    on. When all have failed the last error is raised, with notes about the others. ``response.metadata["answered_by"]``
    says who answered.

    With retries inside, where people want them (``FallbackChatClient(a.wrap(RetryingChatClient), b)``), a short
    trouble is waited for and only an outage moves on. With retries outside, any trouble moves on at once, and waiting
    begins when all have failed.

    Args:
        client: The client to ask first.
        others: The clients to ask then, in order.
        on: Which errors move on: types, or a function of the error. By default every ChatClientError but a
            BadRequestError, which the next one would refuse as well; a ContextLengthError moves on, since the next
            model may take more.

    Raises:
        TypeError: One of them is no client, or ``on`` is neither types of errors nor a function.
    """

    def __init__(self, client: ChatClient, *others: ChatClient, on: On | None = None) -> None:
        for one in (client, *others):
            if not isinstance(one, ChatClient):
                raise TypeError(f"FallbackChatClient takes chat clients, not {one!r:.80}")
        self.clients = (client, *others)
        self.on = None if on is None else OnErrors(on)
        self._last: WeakKeyDictionary[Run, int] = WeakKeyDictionary()

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Answer as the first client does that can."""
        failed: list[tuple[int, Exception]] = []
        order, late = self._order(request.run), answered_late(request)
        for place in order:
            passed_on = False
            try:
                async with closing(self.clients[place].respond(request)) as updates:
                    async for update in updates:
                        signed = update if passed_on else self._signed(update, place, request.run)
                        passed_on = True
                        yield signed
                return
            except Exception as error:
                answered = passed_on or answered_late(request) > late
                if answered or not self._moves_on(error) or place == order[-1]:
                    self._note(error, failed)
                    raise
                failed.append((place, error))

    def _order(self, run: Run | None) -> list[int]:
        last = self._last.get(run, 0) if run is not None else 0
        return [last, *[place for place in range(len(self.clients)) if place != last]]

    def _moves_on(self, error: Exception) -> bool:
        if self.on is not None:
            return self.on(error)
        hopeless = isinstance(error, BadRequestError) and not isinstance(error, ContextLengthError)
        return isinstance(error, ChatClientError) and not hopeless

    def _signed(self, update: ChatResponseUpdate, place: int, run: Run | None) -> ChatResponseUpdate:
        """The first update of an answer, saying who gave it; and remember that."""
        if run is not None:
            self._last[run] = place
        by = {"client": place, "name": self._name(place)}
        return update.replace(metadata={ANSWERED_BY: by, **(update.metadata or {})})

    def _note(self, error: Exception, failed: Sequence[tuple[int, Exception]]) -> None:
        for place, earlier in failed:
            error.add_note(f"before that, {self._name(place)} failed: {type(earlier).__name__}: {earlier}")

    def _name(self, place: int) -> str:
        return repr(list(self.clients[place]._walk())[-1])

    def _inside(self) -> Sequence[ChatClient]:
        return self.clients
