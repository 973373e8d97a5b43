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
    """Whoever has the turn finishes; the others wait in order; so somebody always gets on."""
    budget = MemoryBudget(2000)
    first, second, third = Waiter(), Waiter(), Waiter()
    assert budget.may_grow(first, 900)
    budget.charge(Account.RECEIVE, 900)
    assert budget.turn is None
    assert budget.may_grow(first, 500)
    assert budget.turn is first
    budget.charge(Account.RECEIVE, 500)
    assert not budget.may_grow(second, 200)
    budget.when_may_grow(second)
    assert not budget.may_grow(third, 200)
    budget.when_may_grow(third)
    assert budget.may_grow(first, 500)
    budget.return_turn(second)
    assert budget.turn is first
    budget.return_turn(first)
    # Neither takes the turn here, so both are asked.
    assert (second.woken, third.woken) == (1, 1)


def test_room_for_requests_wakes_all_who_wait() -> None:
    """Once enough was given back, nobody needs a turn."""
    budget = MemoryBudget(2000)
    wake, other = Waiter(), Waiter()
    budget.charge(Account.RECEIVE, 1400)
    budget.when_may_grow(wake)
    budget.when_may_grow(other)
    budget.release(Account.RECEIVE, 600)
    assert not budget.receive_scarce or budget.used_for(Account.RECEIVE) > 750
    budget.release(Account.RECEIVE, 100)
    assert (wake.woken, other.woken) == (1, 1)


def test_a_waiter_may_withdraw() -> None:
    """A connection that is lost is not woken."""
    budget = MemoryBudget(10)
    wake = Waiter()
    budget.charge(Account.PARKED, 20)
    budget.charge(Account.RECEIVE, 20)
    budget.when_answers_fit(wake)
    budget.when_may_grow(wake)
    budget.forget(wake)
    budget.release(Account.PARKED, 20)
    budget.release(Account.RECEIVE, 20)
    assert wake.woken == 0


def test_releasing_more_than_charged_is_a_bug() -> None:
    """The accounts' invariant is checked."""
    budget = MemoryBudget(10)
    budget.charge(Account.SEND, 5)
    with pytest.raises(AssertionError):
        budget.release(Account.RECEIVE, 1)
