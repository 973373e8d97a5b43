"""The memory budget: one limit, and those who wait are woken once."""

from __future__ import annotations

import pytest

from strandline.cluster.broker.memory import Account, MemoryBudget


class Waiter:
    """Counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def __call__(self) -> None:
        self.woken += 1


def test_answers_over_their_half_and_back() -> None:
    """Answers are never refused; over three quarters of their half, who holds some stops, over seven eighths who asks
    for much, over all of it everybody; waiters wake at three quarters of the first, once."""
    budget = MemoryBudget(2668)
    wake = Waiter()
    budget.charge(Account.RECEIVE, 5000)
    assert not budget.answers_over
    assert budget.answer_room_bytes == 1000
    budget.charge(Account.SEND, 700)
    budget.charge(Account.PARKED, 400)
    assert budget.answers_over
    assert not budget.answers_far_over
    budget.charge(Account.SEND, 68)
    assert (budget.answers_far_over, budget.answers_full) == (True, False)
    budget.charge(Account.SEND, 167)
    assert budget.answers_full
    budget.release(Account.SEND, 235)
    assert budget.answer_room_bytes == 0
    budget.when_answers_fit(wake)
    budget.when_answers_fit(wake)
    budget.release(Account.SEND, 200)
    assert (budget.answers_over, wake.woken) == (False, 0)
    budget.release(Account.PARKED, 200)
    assert wake.woken == 1
    budget.release(Account.SEND, 200)
    assert wake.woken == 1
    assert budget.used_for(Account.SEND) == 300
    assert budget.used_bytes == 5500


def test_one_at_a_time_grows_beyond_the_limit() -> None:
    """Whoever has the turn finishes; the others wait in order, each payer in turn; so somebody always gets on. What is
    held by turn does not count against others."""
    budget = MemoryBudget(4000)
    first, second, third, other = Waiter(), Waiter(), Waiter(), Waiter()
    assert budget.may_grow(first, "a", 0, 900)
    budget.charge_request(first, "a", 900)
    assert budget.turn is None
    assert budget.may_grow(first, "a", 900, 500)
    assert budget.turn is first
    budget.charge_request(first, "a", 500)
    assert budget.may_grow(second, "a", 0, 1000)
    budget.charge_request(second, "a", 1000)
    for waiter, payer in ((second, "a"), (third, "a")):
        assert not budget.may_grow(waiter, payer, 0, 200)
        budget.when_may_grow(payer, waiter)
    assert budget.may_grow(other, "b", 0, 1000)
    budget.charge_request(other, "b", 1000)
    assert not budget.may_grow(other, "b", 1000, 1)
    budget.when_may_grow("b", other)
    assert budget.receivers_wait
    assert budget.may_grow(first, "a", 1400, 5000)
    budget.return_turn(second)
    assert budget.turn is first
    budget.return_turn(first)
    # None takes the turn here, so all are asked, the payers in turn.
    assert (second.woken, third.woken, other.woken) == (1, 1, 1)
    assert not budget.receivers_wait


def test_room_for_requests_wakes_all_who_wait() -> None:
    """Once its payer has room again, nobody needs a turn; another payer's room is not its."""
    budget = MemoryBudget(4000)
    holder, big, wake, other = object(), object(), Waiter(), Waiter()
    assert budget.may_grow(big, "c", 0, 1500)
    budget.charge_request(big, "c", 1500)
    for payer in ("a", "b"):
        budget.charge_request(holder, payer, 1000)
    budget.when_may_grow("a", wake)
    budget.when_may_grow("b", other)
    budget.release_request(holder, "a", 200)
    assert (wake.woken, other.woken) == (0, 0)
    budget.release_request(holder, "a", 100)
    assert (wake.woken, other.woken) == (0, 0)
    budget.release_request(holder, "a", 300)
    assert (wake.woken, other.woken) == (1, 0)


def test_one_payer_has_half_of_the_room() -> None:
    """It waits for its own, whatever else is free; others do not wait for it."""
    budget = MemoryBudget(4000)
    slow, honest = object(), object()
    assert budget.may_grow(slow, "slow", 0, 1000)
    budget.charge_request(slow, "slow", 1000)
    assert budget.may_grow(object(), "slow", 0, 10_000)
    assert not budget.may_grow(slow, "slow", 1000, 1)
    assert budget.may_grow(honest, "honest", 0, 1000)
    assert not budget.may_grow(honest, "honest", 0, 1001)


def test_a_waiter_may_withdraw() -> None:
    """A connection that is lost is not woken."""
    budget = MemoryBudget(10)
    wake = Waiter()
    budget.charge(Account.PARKED, 20)
    holder = object()
    budget.charge_request(holder, "a", 20)
    budget.when_answers_fit(wake)
    budget.when_may_grow("a", wake)
    budget.forget(wake)
    budget.release(Account.PARKED, 20)
    budget.release_request(holder, "a", 20)
    assert wake.woken == 0


def test_releasing_more_than_charged_is_a_bug() -> None:
    """The accounts' invariant is checked."""
    budget = MemoryBudget(10)
    budget.charge(Account.SEND, 5)
    with pytest.raises(AssertionError):
        budget.release(Account.RECEIVE, 1)
