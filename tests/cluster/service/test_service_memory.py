"""The memory budget: one limit, and those who wait are woken once."""

from __future__ import annotations

import pytest

from strandline.cluster.service.memory import Account, MemoryBudget


def test_over_the_limit_and_back() -> None:
    """Charges are never refused; `over` says when to stop reading; waiters wake at three quarters, once."""
    budget = MemoryBudget(1000)
    woken: list[str] = []

    def wake() -> None:
        woken.append("a")

    budget.charge(Account.RECEIVE, 700)
    assert not budget.over
    assert budget.free_bytes == 300
    budget.charge(Account.SEND, 400)
    assert budget.over
    assert budget.free_bytes == 0
    budget.when_free(wake)
    budget.when_free(wake)
    budget.release(Account.SEND, 200)
    assert not budget.over
    assert woken == []
    budget.release(Account.RECEIVE, 200)
    assert woken == ["a"]
    budget.release(Account.RECEIVE, 200)
    assert woken == ["a"]
    assert budget.used_for(Account.SEND) == 200


def test_a_waiter_may_withdraw() -> None:
    """A connection that is lost is not woken."""
    budget = MemoryBudget(10)
    woken: list[str] = []

    def wake() -> None:
        woken.append("a")

    budget.charge(Account.PARKED, 20)
    budget.when_free(wake)
    budget.forget(wake)
    budget.release(Account.PARKED, 20)
    assert woken == []


def test_releasing_more_than_charged_is_a_bug() -> None:
    """The accounts' invariant is checked."""
    budget = MemoryBudget(10)
    budget.charge(Account.SEND, 5)
    with pytest.raises(AssertionError):
        budget.release(Account.RECEIVE, 1)
