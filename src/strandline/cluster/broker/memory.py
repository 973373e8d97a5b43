"""One budget for all memory that clients can make a node hold, and one for what it remembers between their requests.

Half of it is for requests that are still arriving, half for answers: those that wait to be sent, what parked fetches
have gathered, and what a fetch is reading right now. So clients that send half a request cannot keep others from
reading, nor slow readers others from writing.

* Answers are charged when they exist and never refused; over three quarters of their half, connections that hold some
  of it stop taking requests until enough has been released; over seven eighths, all stop taking requests for much (what
  a fetch brings); over the whole of it, all requests. So clients that take no answers keep those who do waiting only
  once there are very many of them, and those who ask for little hardly ever.
* Room for a request is asked for before it is allocated. One payer (a principal, or an address where everybody is
  anonymous) has half of it at most, so that one who sends much and finishes nothing keeps no other waiting. Where there
  is none left, one connection at a time has the turn to grow beyond the limits, so that somebody always finishes: the
  node holds its limit and one request more. What that one holds does not count against others.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

Wake = Callable[[], None]


class Account(Enum):
    """What the bytes are held for."""

    RECEIVE = "receive"
    SEND = "send"
    PARKED = "parked"
    FETCH = "fetch"


RESUME_FRACTION = 0.75
"""Who waits is woken once its half has fallen to this part of its limit: a gap, so that it does not flap."""


class MemoryBudget:
    """Bytes held for clients, against one limit.

    Invariants:
        * `used_bytes` is the sum of all charges not yet released, and never negative;
        * a waiter is called once for each time it asked to be;
        * one holder at most has the turn, and only while the receiving half, or its payer's part, is full.
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
        """Who may grow beyond the limit."""
        self.turns = 0
        """How often the turn was given."""
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
        """Hold `size` more bytes."""
        self._used[account] += size
        self.used_bytes += size

    def release(self, account: Account, size: int) -> None:
        """Give back `size` bytes; wakes those who wait once there is room again."""
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
        """Withdraw whatever `wake` waits for; fine if there is nothing."""
        self._answer_waiters.pop(wake, None)
        for payer, wakes in list(self._receive_waiters.items()):
            if wakes.pop(wake, wakes) is None and not wakes:
                del self._receive_waiters[payer]

    # Answers

    @property
    def _answers(self) -> int:
        return self.used_bytes - self._used[Account.RECEIVE]

    @property
    def answers_over(self) -> bool:
        """No more requests may be taken now of who holds answers."""
        return self._answers > self._answer_limit

    @property
    def answers_far_over(self) -> bool:
        """No more requests for much may be taken now of anybody."""
        return self._answers > self._answer_limit_of_large

    @property
    def answers_full(self) -> bool:
        """No more requests may be taken now of anybody."""
        return self._answers > self._answer_limit_of_all

    @property
    def answer_room_bytes(self) -> int:
        """What is left for answers; 0 when over."""
        return max(0, self._answer_limit - self._answers)

    def when_answers_fit(self, wake: Wake) -> None:
        """Call `wake` once when requests may be taken again. Asking twice counts once."""
        self._answer_waiters[wake] = None

    # Requests that arrive

    @property
    def receive_scarce(self) -> bool:
        """Buffers should be given back as soon as they are empty."""
        return self.turn is not None or self._used[Account.RECEIVE] > self._receive_limit * RESUME_FRACTION

    @property
    def receivers_wait(self) -> bool:
        """Whether some connection has more to send than there is room for."""
        return bool(self._receive_waiters)

    def charge_request(self, holder: object, payer: str, size: int) -> None:
        """`holder` has so many more bytes of a request in its buffer."""
        self.charge(Account.RECEIVE, size)
        self._received[payer] = self._received.get(payer, 0) + size
        if self.turn is holder:
            self._turn_bytes += size

    def release_request(self, holder: object, payer: str, size: int) -> None:
        """Give back `size` bytes, and wake those who wait once there is room again."""
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
        """Whether `holder`, which holds `held` bytes of a request, may hold `size` more; takes the turn where there is
        no room."""
        if self.turn is holder or self._has_room(payer, size):
            return True
        if self.turn is None:
            self.turn, self._turn_bytes, self._turn_payer = holder, held, payer
            self.turns += 1
            return True
        return False

    def when_may_grow(self, payer: str, wake: Wake) -> None:
        """Call `wake` once when it is worth to ask `may_grow` again. Asking twice counts once."""
        self._receive_waiters.setdefault(payer, {})[wake] = None

    def return_turn(self, holder: object) -> None:
        """`holder` has finished its request, or is gone; fine if it does not have the turn."""
        if self.turn is holder:
            self.turn, self._turn_bytes, self._turn_payer = None, 0, ""
            self._wake_receivers()

    def _has_room(self, payer: str, size: int, fraction: float = 1.0) -> bool:
        """For so many bytes more, without the turn's."""
        own = self._received.get(payer, 0) - (self._turn_bytes if payer == self._turn_payer else 0)
        used = self._used[Account.RECEIVE] - self._turn_bytes  # rule A27/who-has-the-turn-takes-others-room
        # rule A27/one-payer-has-all-the-room
        return used + size <= self._receive_limit * fraction and own + size <= self._payer_limit * fraction

    def _wake_receivers(self) -> None:
        """Wake all of each payer that has room again, else the one whose turn is next."""
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
"""Bytes of a partition of a fetch session, or of a fetch that waits: as measured, rounded up."""

FETCH_BYTES = 2000
"""Bytes of a fetch that waits, whatever it asks for."""


class KeptMemory:
    """Bytes that are kept for clients between their requests, by principal: bounded altogether and for each principal
    (rule A27). Where there is no room nothing waits: it is not kept, and the client is served without it.

    Invariants: at most `limit_bytes`, of one principal at most three quarters of that; a principal for whom nothing is
    kept is not remembered.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.of_principal_bytes = limit_bytes * 3 // 4
        self.used_bytes = 0
        self.refused = 0
        """Number of times there was no room."""
        self._by_principal: dict[str, int] = {}

    def hold(self, principal: str, size: int) -> bool:
        """Keep `size` bytes more for a principal; false if there is no room, and nothing more is kept."""
        held = self._by_principal.get(principal, 0) + size
        # rule A27/one-principal-is-kept-everything
        if self.used_bytes + size > self.limit_bytes or held > self.of_principal_bytes:
            self.refused += 1
            return False
        self._by_principal[principal] = held
        self.used_bytes += size
        return True

    def release(self, principal: str, size: int) -> None:
        """Note that `size` bytes are kept no more. Raises AssertionError for more than was held."""
        held = self._by_principal.get(principal, 0) - size
        if held < 0:
            raise AssertionError(f"More released than was held for {principal}: {held}")
        self.used_bytes -= size
        if held:
            self._by_principal[principal] = held
        else:
            self._by_principal.pop(principal, None)

    def held_for(self, principal: str) -> int:
        """Bytes that are kept for a principal."""
        return self._by_principal.get(principal, 0)
