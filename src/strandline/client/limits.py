"""Time limit of a call. It covers all requests of the call, even if no broker answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from strandline.client.errors import ClientTimeout
from strandline.proto.errors import StrandlineError

P = ParamSpec("P")
T = TypeVar("T")


class Limit:
    """The time that one call has.

    Args:
        words: what is said when it is over: "no answer within default.api.timeout.ms=60000".
    """

    def __init__(self, timeout_ms: float, words: str) -> None:
        self._timeout_ms = timeout_ms
        self._words = words
        self._trouble: StrandlineError | None = None
        self._outer: Limit | None = None

    async def keep(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when the time is over.

        Raises:
            ClientTimeout: it is; the last failure that was noted meanwhile is in it.
        """
        self._outer = _running.get()
        token = _running.set(self)
        try:
            async with asyncio.timeout(max(self._timeout_ms, 0.0) / 1000) as scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            raise ClientTimeout(self._words, self._trouble) from None
        finally:
            _running.reset(token)


_running: ContextVar[Limit | None] = ContextVar("limit", default=None)


def note(error: StrandlineError) -> None:
    """A failure that is tried again: where a limit of this call runs out, its error tells it."""
    limit = _running.get()
    while limit is not None:
        limit._trouble, limit = error, limit._outer


class Limited(Protocol):
    """A client whose calls have a limit."""

    def _limit(self) -> Limit:
        """The limit of a call that begins now. Raises ClosedError, ClientError: this client cannot be called here."""


def limited(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method within its client's limit, whatever it is made of."""

    @wraps(method)
    async def call(self: Limited, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._limit().keep(method(self, *args, **kwargs))

    return call
