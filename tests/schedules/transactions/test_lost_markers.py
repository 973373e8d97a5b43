"""Markers that an unclean election loses, on production nodes in virtual time: schedules 175 and 181 to 183."""

from __future__ import annotations

import pytest

from strandline.cluster.transactions import lost_markers
from strandline.cluster.transactions.lost_markers import TRANSACTION_OUTCOMES
from tests.schedules.helpers import schedule
from tests.schedules.transactions.site import TransactionSite


async def lose_the_marker(site: TransactionSite, *, commit: bool, version: int) -> str:
    """A transaction ends, and its marker is on the leader alone, which dies; the other copy is elected uncleanly. The
    machine of that one."""
    first = site.data
    (other,) = (f"n{number}" for number in site.replicas(site.partition.partition) if f"n{number}" != first)
    if version == 1:
        await site.add()
    assert await site.produce(12 if version == 2 else 11) == 0
    site.kill(other)
    await site.until(lambda: site.in_sync() == (site.number(first),), "the other copy is out of sync")
    await site.end(commit=commit, version=version)
    await site.until(lambda: not site.pending, "the transaction is complete")
    assert len(site.markers(first)) == 1
    site.kill(first)
    site.cluster.start(other)
    await site.until(lambda: site.number(other) in {live.number for live in site.cluster.nodes()}, "it is back")
    await site.until(lambda: site.data == "n-1", "nobody leads")
    assert not site.markers(other)
    return other


async def elect(site: TransactionSite, other: str) -> None:
    await site.admin(lambda admin: admin.elect_leaders([site.partition], unclean=True))
    await site.until(lambda: site.data == other, "the other copy leads")


@schedule(
    181,
    rule="C29: a leader elected uncleanly asks what became of open transactions",
    mutant="unclean-leaders-ask-nobody",
)
def test_181_an_unclean_election_loses_a_marker() -> None:
    """The coordinator counts it as written, and sends it no more: readers of committed records wait for ever, and the
    producer's next transaction is refused. The coordinator knows the decision."""

    async def story(site: TransactionSite) -> None:
        other = await lose_the_marker(site, commit=True, version=2)
        await elect(site, other)
        await site.until(lambda: not site.log(other).open_transactions(), "the transaction has ended")
        assert [marker.commit for marker in site.markers(other)] == [True]
        assert await site.produce() == 0, "the next transaction begins"

    TransactionSite(181, copies=2).play(story)


@schedule(182, rule="C29: what no coordinator knows any more is aborted", mutant="what-is-unknown-is-committed")
def test_182_the_decision_is_forgotten() -> None:
    """The producer has gone on in another partition when the copy is elected: its coordinator knows of the newest
    transaction alone. What is not known to be committed is shown to nobody."""

    async def story(site: TransactionSite) -> None:
        other = await lose_the_marker(site, commit=False, version=2)
        await site.end(commit=False, version=2)
        await site.until(lambda: not site.pending, "an abort of nothing")
        await elect(site, other)
        await site.until(lambda: not site.log(other).open_transactions(), "the transaction has ended")
        assert [marker.commit for marker in site.markers(other)] == [False]
        assert await site.produce() == 0, "the next transaction begins"

    TransactionSite(182, copies=2).play(story)


@schedule(183, rule="C29: nothing is taken of a producer until it is known", mutant="unsettled-producers-write")
def test_183_the_next_transaction_joins_the_lost_one() -> None:
    """Under protocol 1 both have the same epoch. While the leader asks, the coordinator does not answer; a record of
    the next transaction comes, and would belong to the one before: what was aborted would be committed with it."""

    async def story(site: TransactionSite) -> None:
        other = await lose_the_marker(site, commit=False, version=1)
        site.hold_answers(TRANSACTION_OUTCOMES.path, for_ms=3_000)
        await elect(site, other)
        assert site.log(other).open_transactions()
        assert await site.produce(11) != 0
        await site.until(lambda: not site.log(other).open_transactions(), "the transaction has ended")
        await site.add()
        assert await site.produce(11) == 0
        await site.end(commit=True, version=1)
        await site.until(lambda: not site.pending, "the next transaction is complete")
        assert [marker.commit for marker in site.markers(other)] == [False, True]

    TransactionSite(183, copies=2).play(story)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open for 10 s, beside a time-out of 5, is open for too long."""
    monkeypatch.setattr(lost_markers, "GRACE_MS", 5_000.0)
    monkeypatch.setattr(lost_markers, "LOOK_MS", 1_000.0)


@schedule(
    175,
    rule="C31: a leader asks what became of a transaction that is open for too long",
    mutant="nobody-asks-what-is-open-for-too-long",
)
def test_175_who_was_elected_uncleanly_dies_before_it_has_asked(soon: None) -> None:
    """The next leader is elected cleanly, and has the same log: its partition is not recovering any more."""

    async def story(site: TransactionSite) -> None:
        first = site.data
        other = await lose_the_marker(site, commit=True, version=2)
        answers = site.world.network.answer_lateness
        site.hold_answers(TRANSACTION_OUTCOMES.path, for_ms=60_000)
        await elect(site, other)
        site.cluster.start(first)
        await site.until(lambda: set(site.in_sync()) == {site.number(first), site.number(other)}, "both are in sync")
        assert site.log(other).open_transactions()
        site.kill(other)
        await site.until(lambda: site.data == first, "the other one leads")
        site.world.network.answer_lateness = answers  # type: ignore[method-assign]
        assert site.log(first).open_transactions()
        assert not site.markers(first)
        await site.until(lambda: not site.log(first).open_transactions(), "the transaction has ended")
        assert [marker.commit for marker in site.markers(first)] == [True]

    TransactionSite(175, copies=2, transaction_max_timeout_ms="5000").play(story)


def test_c31_what_is_not_open_for_long_goes_on(soon: None) -> None:
    """And so does what is open at its coordinator, however long that is."""

    async def story(site: TransactionSite) -> None:
        assert await site.produce() == 0
        await site.world.sleep_ms(6_000)
        assert not site.log(site.data).producers.unsettled
        assert await site.produce() == 0
        await site.world.sleep_ms(10_000)
        assert site.log(site.data).open_transactions()
        assert await site.produce() == 0
        await site.end(commit=True, version=2)
        await site.until(lambda: not site.pending, "the transaction is complete")
        assert [marker.commit for marker in site.markers(site.data)] == [True]

    TransactionSite(176, transaction_max_timeout_ms="5000").play(story)
