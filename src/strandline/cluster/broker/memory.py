"""Budgets of a node's memory: `MemoryBudget` for requests and responses in progress, `KeptMemory` for state of clients
that the node keeps between their requests.

Half of the `MemoryBudget` is for requests that are still arriving, half for responses: those that wait to be sent, data
that parked fetches have gathered, and data that fetches are reading. So clients that send half a request cannot keep
others from reading, nor can slow readers keep others from writing.

* Responses are charged when they exist, and never refused. Above three quarters of their half, connections that hold
  responses stop taking requests until enough memory has been released; above seven eighths, all connections stop taking
  requests with large responses (fetches); above the whole half, all requests. So clients that do not read their
  responses delay others only if they are very many, and delay requests with small responses hardly ever.
* Memory for a request is asked for before it is allocated. One payer (a principal, or the address of anonymous clients)
  gets half of the requests' half at most, so that a client that sends much and completes no request does not delay
  others. If no memory is left, one connection at a time has the turn to grow beyond the limits, so that some request
  always completes: the node holds its limit plus one request. Memory of the connection with the turn does not count
  against others.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

Wake = Callable[[], None]


class Account(Enum):
    """Use of charged bytes: received requests, responses to send, data of parked fetches, data that fetches read."""

    RECEIVE = "receive"
    SEND = "send"
    PARKED = "parked"
    FETCH = "fetch"


RESUME_FRACTION = 0.75
"""Fraction of the limit to which the used memory must fall before waiters are woken: below 1, to avoid flapping."""


class MemoryBudget:
    """Bytes of memory held for clients, and their limit.

    Invariants:
        * `used_bytes` is the sum of all charges not yet released, and never negative;
        * a waiter is called once for each time it asked to be;
        * at most one holder has the turn, and takes it only when the requests' half, or its payer's part, is full.
    """

    __slots__ = (
        "_answer_limit",
        "_answer_limit_of_all",
        "_answer_limit_of_large",
        "_answer_waiters",
        "_payer_limit",
        "_receive_limit",
        "_receive_waiters",
        "_received",
        "_turn_bytes",
        "_turn_payer",
        "_used",
        "limit_bytes",
        "turn",
        "turns",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.turn: object | None = None
        """Holder that may grow beyond the limit; None: nobody."""
        self.turns = 0
        """Number of times that the turn was given."""
        self._receive_limit = limit_bytes // 2
        self._payer_limit = self._receive_limit // 2
        self._received: dict[str, int] = {}
        self._turn_bytes = 0
        self._turn_payer = ""
        self._answer_limit_of_all = limit_bytes - self._receive_limit
        self._answer_limit = self._answer_limit_of_all * 3 // 4
        self._answer_limit_of_large = self._answer_limit_of_all * 7 // 8
        self._used = dict.fromkeys(Account, 0)
        self._answer_waiters: dict[Wake, None] = {}
        self._receive_waiters: dict[str, dict[Wake, None]] = {}

    def used_for(self, account: Account) -> int:
        """Bytes charged to one account."""
        return self._used[account]

    def charge(self, account: Account, size: int) -> None:
        """Charge `size` more bytes to an account."""
        self._used[account] += size
        self.used_bytes += size

    def release(self, account: Account, size: int) -> None:
        """Release `size` bytes of an account, and wake waiters for responses once enough memory is free. Raises
        AssertionError if more is released than was charged."""
        self._used[account] -= size
        self.used_bytes -= size
        if self._used[account] < 0:
            raise AssertionError(f"More released than charged: {account.value} {self._used[account]}")
        if account is Account.RECEIVE:
            return
        if self._answer_waiters and self._answers <= self._answer_limit * RESUME_FRACTION:
            waiters, self._answer_waiters = self._answer_waiters, {}
            for wake in waiters:
                wake()

    def forget(self, wake: Wake) -> None:
        """Remove `wake` from all waiters. Idempotent."""
        self._answer_waiters.pop(wake, None)
        for payer, wakes in list(self._receive_waiters.items()):
            if wakes.pop(wake, wakes) is None and not wakes:
                del self._receive_waiters[payer]

    # Responses

    @property
    def _answers(self) -> int:
        return self.used_bytes - self._used[Account.RECEIVE]

    @property
    def answers_over(self) -> bool:
        """True if connections that hold responses must not take requests now."""
        return self._answers > self._answer_limit

    @property
    def answers_far_over(self) -> bool:
        """True if no connection may take requests with large responses now."""
        return self._answers > self._answer_limit_of_large

    @property
    def answers_full(self) -> bool:
        """True if no connection may take any request now."""
        return self._answers > self._answer_limit_of_all

    @property
    def answer_room_bytes(self) -> int:
        """Bytes left for responses; 0 above the limit."""
        return max(0, self._answer_limit - self._answers)

    def when_answers_fit(self, wake: Wake) -> None:
        """Call `wake` once when requests may be taken again. Repeated calls before that count once."""
        self._answer_waiters[wake] = None

    # Requests that arrive

    @property
    def receive_scarce(self) -> bool:
        """True if receive buffers should be released as soon as they are empty."""
        return self.turn is not None or self._used[Account.RECEIVE] > self._receive_limit * RESUME_FRACTION

    @property
    def receivers_wait(self) -> bool:
        """True if a connection waits for memory to receive the rest of a request."""
        return bool(self._receive_waiters)

    def charge_request(self, holder: object, payer: str, size: int) -> None:
        """Charge `size` more bytes of a request in the buffer of `holder`."""
        self.charge(Account.RECEIVE, size)
        self._received[payer] = self._received.get(payer, 0) + size
        if self.turn is holder:
            self._turn_bytes += size

    def release_request(self, holder: object, payer: str, size: int) -> None:
        """Release `size` bytes of a request, and wake waiters for whom there is memory now."""
        self.release(Account.RECEIVE, size)
        left = self._received.get(payer, 0) - size
        if left > 0:
            self._received[payer] = left
        else:
            self._received.pop(payer, None)
        if self.turn is holder:
            self._turn_bytes -= size
        self._wake_receivers()

    def may_grow(self, holder: object, payer: str, held: int, size: int) -> bool:
        """Return whether `holder`, which holds `held` bytes of a request, may hold `size` more. Without memory left it
        takes the turn, if that is free."""
        if self.turn is holder or self._has_room(payer, size):
            return True
        if self.turn is None:
            self.turn, self._turn_bytes, self._turn_payer = holder, held, payer
            self.turns += 1
            return True
        return False

    def when_may_grow(self, payer: str, wake: Wake) -> None:
        """Call `wake` once when `may_grow` may succeed. Repeated calls before that count once."""
        self._receive_waiters.setdefault(payer, {})[wake] = None

    def return_turn(self, holder: object) -> None:
        """Take the turn back from `holder`, whose request is complete or whose connection is closed. Idempotent."""
        if self.turn is holder:
            self.turn, self._turn_bytes, self._turn_payer = None, 0, ""
            self._wake_receivers()

    def _has_room(self, payer: str, size: int, fraction: float = 1.0) -> bool:
        """Return whether `size` more bytes fit within `fraction` of the limits, not counting the turn's holder."""
        own = self._received.get(payer, 0) - (self._turn_bytes if payer == self._turn_payer else 0)
        used = self._used[Account.RECEIVE] - self._turn_bytes  # rule A27/who-has-the-turn-takes-others-room
        # rule A27/one-payer-has-all-the-room
        return used + size <= self._receive_limit * fraction and own + size <= self._payer_limit * fraction

    def _wake_receivers(self) -> None:
        """Wake all waiters of each payer that has memory again, then the next ones until one has taken the turn."""
        for payer in list(self._receive_waiters):
            if self._has_room(payer, 0, RESUME_FRACTION):
                for wake in self._receive_waiters.pop(payer, ()):
                    wake()
        while self.turn is None and self._receive_waiters:
            payer, wakes = next(iter(self._receive_waiters.items()))
            wake = next(iter(wakes))
            del self._receive_waiters[payer]
            del wakes[wake]
            if wakes:
                self._receive_waiters[payer] = wakes  # behind the other payers
            wake()  # takes the turn, unless it has no more need of it


# Kept between requests

PARTITION_BYTES = 500
"""Bytes charged per partition of a fetch session or of a parked fetch: as measured, rounded up."""

FETCH_BYTES = 2000
"""Bytes charged for a parked fetch, in addition to those of its partitions."""


class KeptMemory:
    """Bytes kept for clients between their requests, by principal, with a bound on the sum and on each (rule A27).
    Without memory left nothing waits: the state is not kept, and the client is served without it.

    Invariants: at most `limit_bytes` in total, at most three quarters of that for one principal; a principal without
    kept bytes has no entry.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.of_principal_bytes = limit_bytes * 3 // 4
        self.used_bytes = 0
        self.refused = 0
        """Number of calls of `hold` that returned False."""
        self._by_principal: dict[str, int] = {}

    def hold(self, principal: str, size: int) -> bool:
        """Charge `size` more bytes to a principal. Return False if a limit is reached; then nothing is charged."""
        held = self._by_principal.get(principal, 0) + size
        # rule A27/one-principal-is-kept-everything
        if self.used_bytes + size > self.limit_bytes or held > self.of_principal_bytes:
            self.refused += 1
            return False
        self._by_principal[principal] = held
        self.used_bytes += size
        return True

    def release(self, principal: str, size: int) -> None:
        """Release `size` bytes of a principal. Raises AssertionError if more is released than was held."""
        held = self._by_principal.get(principal, 0) - size
        if held < 0:
            raise AssertionError(f"More released than was held for {principal}: {held}")
        self.used_bytes -= size
        if held:
            self._by_principal[principal] = held
        else:
            self._by_principal.pop(principal, None)

    def held_for(self, principal: str) -> int:
        """Bytes kept for a principal."""
        return self._by_principal.get(principal, 0)
