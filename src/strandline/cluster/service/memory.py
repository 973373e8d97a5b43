"""One budget for all memory that clients can make a node hold.

Bytes of four kinds are charged: requests that are still arriving (`receive`), answers that wait to be sent
(`send`), what parked fetches have gathered (`parked`), and what a fetch is reading right now (`fetch`). A charge is
never refused: each is small or bounded by itself, and once the total is over the limit the connections stop reading
their sockets until enough has been released. So the node's memory stays near the limit whatever the clients do.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Account(Enum):
    """What the bytes are held for."""

    RECEIVE = "receive"
    SEND = "send"
    PARKED = "parked"
    FETCH = "fetch"


RESUME_FRACTION = 0.75
"""Reading goes on once the total has fallen to this part of the limit: a gap, so that it does not flap."""


class MemoryBudget:
    """Bytes held for clients, against one limit.

    Invariants:
        * `used_bytes` is the sum of all charges not yet released, and never negative;
        * a waiter is called exactly once, on the release that brings the total down to the resume level.
    """

    __slots__ = ("_resume_bytes", "_used", "_waiters", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._resume_bytes = int(limit_bytes * RESUME_FRACTION)
        self._used = dict.fromkeys(Account, 0)
        self._waiters: dict[Callable[[], None], None] = {}

    @property
    def over(self) -> bool:
        """No more may be read from clients now."""
        return self.used_bytes > self.limit_bytes

    @property
    def free_bytes(self) -> int:
        """What is left; 0 when over the limit."""
        return max(0, self.limit_bytes - self.used_bytes)

    def used_for(self, account: Account) -> int:
        """Bytes charged to one account."""
        return self._used[account]

    def charge(self, account: Account, size: int) -> None:
        """Hold `size` more bytes."""
        self._used[account] += size
        self.used_bytes += size

    def release(self, account: Account, size: int) -> None:
        """Give back `size` bytes; wakes those who wait once there is room again."""
        self._used[account] -= size
        self.used_bytes -= size
        if self._used[account] < 0:
            raise AssertionError(f"More released than charged: {account.value} {self._used[account]}")
        if self._waiters and self.used_bytes <= self._resume_bytes:
            waiters, self._waiters = self._waiters, {}
            for wake in waiters:
                wake()

    def when_free(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there is room again. Adding the same callable twice counts once."""
        self._waiters[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """Withdraw a `when_free`; fine if there is none."""
        self._waiters.pop(wake, None)
