"""What is remembered of the shares that were used lately, within bounded memory. Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from strandline.proto.quotas import QuotaEntity

SHARES_MAX = 10_000
"""Shares of one key that are known: of more, those go that were not used for the longest time. A client that has
another client.id at each request, and a quota for each, makes so many and no more."""


class Remembered(Protocol):
    """What is known of one share."""

    def is_over(self, now_ms: float) -> bool:
        """Nothing that was taken counts any more: a new one would be as good."""


T = TypeVar("T", bound=Remembered)


class Recent(Generic[T]):
    """The shares of one key.

    Invariants: at most `SHARES_MAX`; the one that was used last stands last; none that is over stands first.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._known: dict[QuotaEntity, T] = {}

    def __len__(self) -> int:
        return len(self._known)

    def use(self, of: QuotaEntity, now_ms: float) -> T:
        """What is known of a share, which is used now."""
        self._forget(now_ms)
        known = self._known.pop(of, None)
        if known is None:
            known = self._make()
        self._known[of] = known
        if len(self._known) > SHARES_MAX:
            del self._known[next(iter(self._known))]
        return known

    def look(self, of: QuotaEntity) -> T | None:
        """The same without using it; None: there is nothing to know."""
        return self._known.get(of)

    def latest_first(self, now_ms: float) -> Iterator[tuple[QuotaEntity, T]]:
        """All of them."""
        self._forget(now_ms)
        yield from reversed(self._known.items())

    def _forget(self, now_ms: float) -> None:
        while self._known:
            of = next(iter(self._known))
            if not self._known[of].is_over(now_ms):
                return
            del self._known[of]
