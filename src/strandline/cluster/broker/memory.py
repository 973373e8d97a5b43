"""One budget for all memory that clients can make a node hold.

Half of it is for requests that are still arriving, half for answers: those that wait to be sent, what parked fetches
have gathered, and what a fetch is reading right now. So clients that send half a request cannot keep others from
reading, nor slow readers others from writing.

* Answers are charged when they exist and never refused; over three quarters of their half, connections that hold some
  of it stop taking requests until enough has been released; over seven eighths, all stop taking requests for much (what
  a fetch brings); over the whole of it, all requests. So clients that take no answers keep those who do waiting only
  once there are very many of them, and those who ask for little hardly ever.
* Room for a request is asked for before it is allocated. When there is none left, one connection at a time has the turn
  to grow beyond the limit, so that somebody always finishes: the node holds its limit and one request more.
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
        * one holder at most has the turn, and only while the receiving half is full.
    """

    __slots__ = (
        "_answer_limit",
        "_answer_limit_of_all",
        "_answer_limit_of_large",
        "_answer_waiters",
        "_receive_limit",
        "_receive_waiters",
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
        self._answer_limit_of_all = limit_bytes - self._receive_limit
        self._answer_limit = self._answer_limit_of_all * 3 // 4
        self._answer_limit_of_large = self._answer_limit_of_all * 7 // 8
        self._used = dict.fromkeys(Account, 0)
        self._answer_waiters: dict[Wake, None] = {}
        self._receive_waiters: dict[Wake, None] = {}

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
            self._wake_receivers()
        elif self._answer_waiters and self._answers <= self._answer_limit * RESUME_FRACTION:
            waiters, self._answer_waiters = self._answer_waiters, {}
            for wake in waiters:
                wake()

    def forget(self, wake: Wake) -> None:
        """Withdraw whatever `wake` waits for; fine if there is nothing."""
        self._answer_waiters.pop(wake, None)
        self._receive_waiters.pop(wake, None)

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

    def may_grow(self, holder: object, size: int) -> bool:
        """Whether `holder` may hold `size` more bytes of a request; takes the turn where there is no room."""
        if self._used[Account.RECEIVE] + size <= self._receive_limit or self.turn is holder:
            return True
        if self.turn is None:
            self.turn = holder
            self.turns += 1
            return True
        return False

    def when_may_grow(self, wake: Wake) -> None:
        """Call `wake` once when it is worth to ask `may_grow` again. Asking twice counts once."""
        self._receive_waiters[wake] = None

    def return_turn(self, holder: object) -> None:
        """`holder` has finished its request, or is gone; fine if it does not have the turn."""
        if self.turn is holder:
            self.turn = None
            self._wake_receivers()

    def _wake_receivers(self) -> None:
        """Wake all who wait for room if there is some, else the one whose turn is next."""
        if self._receive_waiters and self._used[Account.RECEIVE] <= self._receive_limit * RESUME_FRACTION:
            waiters, self._receive_waiters = self._receive_waiters, {}
            for wake in waiters:
                wake()
            return
        for wake in list(self._receive_waiters):
            if self.turn is not None:
                return
            if wake in self._receive_waiters:
                del self._receive_waiters[wake]
                wake()  # takes the turn, unless it has no more need of it
