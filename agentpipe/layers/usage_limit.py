"""Stops asking when a budget is spent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

from agentpipe._client import ChatClient, DelegatingChatClient
from agentpipe._request import ChatRequest, Run
from agentpipe._responses import ChatResponseUpdate, UsageDetails
from agentpipe._waist import closing
from agentpipe.exceptions import UsageLimitError
from agentpipe.layers._common import check_number, check_whole, tokens_of

Per = Literal["client", "session", "run"]
#: What was used so far: "tokens", "requests" and "cost". JSON values, since a session keeps them.
Account = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """What a million tokens cost, in any currency; ``cached_input`` costs as much as ``input`` if it is not given.

    Raises ValueError for a price below 0.
    """

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(field.name, getattr(self, field.name), least=0)

    def cost(self, usage: UsageDetails) -> float:
        """What was used, in money. Tokens that the endpoint did not tell cost nothing."""
        cached = usage.cached_input_tokens or 0
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = max((usage.input_tokens or 0) - cached, 0)
        return (fresh * self.input + cached * cached_price + (usage.output_tokens or 0) * self.output) / 1_000_000


class UsageLimitChatClient(DelegatingChatClient):
    """Raises UsageLimitError instead of asking, when a budget is spent.

    What a call will use is known afterwards: the call that passes a limit is answered, and the next one is not made.
    An answer for which the endpoint tells no usage counts as a request only.

    Below the FunctionInvokingChatClient, where people want it, it looks before each model call, and the error's
    ``response`` has what the run did so far. Above it, it looks before each run, which may then use any amount.

    Args:
        inner: The client to ask.
        tokens: Tokens of input and output together; at least 1.
        requests: Requests; at least 1.
        cost: Money, in the currency of ``prices``.
        prices: What a million tokens cost; goes with ``cost``.
        per: What the limits are for: this "client" as long as it lives, each "session" (which keeps the account in its
            ``state``, so that it survives), or each "run".
        state_key: Where a session keeps the account. Two layers that both count per session need two.

    Attributes:
        spent: What was used through this client, whatever ``per`` says.

    Raises:
        ValueError: No limit is given, a number is out of range, or one of ``cost`` and ``prices`` is missing. While
            answering: ``per="session"``, and there is none.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        tokens: int | None = None,
        requests: int | None = None,
        cost: float | None = None,
        prices: TokenPrices | None = None,
        per: Per = "client",
        state_key: str = "usage_limit",
    ) -> None:
        super().__init__(inner)
        check_whole("tokens", tokens, 1)
        check_whole("requests", requests, 1)
        check_number("cost", cost, above=0)
        if (tokens, requests, cost) == (None, None, None):
            raise ValueError("a usage limit needs at least one of tokens, requests, cost")
        if (cost is None) != (prices is None):
            raise ValueError("cost and prices go together: cost=5.0, prices=TokenPrices(input=2.5, output=10.0)")
        if prices is not None and not isinstance(prices, TokenPrices):
            raise TypeError(f"prices must be TokenPrices, not {type(prices).__name__}")
        if per not in get_args(Per):
            raise ValueError(f"per must be one of {', '.join(get_args(Per))}, not {per!r}")
        self.tokens = tokens
        self.requests = requests
        self.cost = cost
        self.prices = prices
        self.per: Per = per
        self.state_key = state_key
        self.spent: Account = _new_account()
        self._runs: WeakKeyDictionary[Run, Account] = WeakKeyDictionary()

    async def respond(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        """Look at the account, then ask and count."""
        account = self._account(request)
        self._check(account)
        self._count(account, requests=1)
        async with closing(self.inner.respond(request)) as updates:
            async for update in updates:
                if (usage := update.usage) is not None:
                    cost = self.prices.cost(usage) if self.prices is not None else 0
                    self._count(account, tokens=tokens_of(usage), cost=cost)
                yield update

    def _account(self, request: ChatRequest) -> Account:
        if self.per == "session":
            if request.session is None:
                raise ValueError("UsageLimitChatClient(per='session') needs a session: pass session=AgentSession()")
            account: Account = request.session.state.setdefault(self.state_key, _new_account())
            return account
        if self.per == "run":
            return self._runs.setdefault(request.run, _new_account()) if request.run is not None else _new_account()
        return self.spent

    def _check(self, account: Account) -> None:
        for name in ("tokens", "requests", "cost"):
            limit, used = getattr(self, name), account.get(name, 0)
            if limit is not None and used >= limit:
                raise UsageLimitError(f"the limit of {limit} ({name} per {self.per}) is reached: {used} used")

    def _count(self, account: Account, **amounts: float) -> None:
        for counted in [account] if account is self.spent else [account, self.spent]:
            for name, amount in amounts.items():
                counted[name] = counted.get(name, 0) + amount


def _new_account() -> Account:
    return {"tokens": 0, "requests": 0, "cost": 0}
