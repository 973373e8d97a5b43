"""Markers between production nodes in virtual time: schedules 124, 125 and 180."""

from __future__ import annotations

from tests.schedules.helpers import schedule
from tests.schedules.transactions.site import TransactionSite
from tests.stage import READY_MS


@schedule(124, rule="C16: a leader writes the marker of an order once", mutant="a-late-copy-is-written")
def test_124_a_marker_whose_answer_is_lost() -> None:
    """The marker comes to the leader, the answer does not come back: it is sent again, and once more, over the same
    connection and others. Under protocol 1 the next transaction has the same epoch; a copy that is written when that
    has begun would end it, as the late EndTxn of KAFKA-17754 does."""

    async def story(site: TransactionSite) -> None:
        coordinates, data = site.coordinates, site.data
        await site.add()
        assert await site.produce(11) == 0
        await site.end(commit=True, version=1)  # with this one the connection is made
        await site.until(lambda: not site.pending, "the transaction is complete")
        await site.add()
        assert await site.produce(11) == 0
        site.world.partition(data, coordinates, one_way=True)
        await site.end(commit=True, version=1)
        await site.until(lambda: len(site.markers(data)) == 2, "the marker is written")
        await site.world.sleep_ms(8_000)
        assert site.pending == 1, "the coordinator has heard nothing"
        site.world.heal()
        await site.until(lambda: not site.pending, "the transaction is complete")
        assert (site.coordinates, site.data) == (coordinates, data)
        assert len(site.markers(data)) == 2

    TransactionSite(124).play(story)


@schedule(125, rule="C14, C16: what is decided is carried out", mutant="markers-are-not-ordered-again")
def test_125_the_coordinator_dies_behind_its_decision() -> None:
    """The client has the answer that its transaction is committed; the coordinator cannot reach the leader of the data,
    and dies. The next one finds the decision in its log and sends the markers; a reader is not kept waiting for
    ever (krabka 0.8)."""

    async def story(site: TransactionSite) -> None:
        assert await site.produce() == 0
        victim, data = site.coordinates, site.data
        site.world.partition(victim, data)
        await site.end(commit=True, version=2)
        assert site.pending == 1
        assert site.log(data).open_transactions()
        site.world.kill(victim)
        site.world.heal()
        await site.until(lambda: site.coordinates != victim, "another coordinates")
        await site.until(lambda: not site.log(data).open_transactions(), "the marker is written")
        await site.until(lambda: not site.pending, "the transaction is complete")
        markers = site.markers(data)
        assert {(one.commit, one.producer_epoch) for one in markers} == {(True, site.producer.epoch)}
        assert await site.produce() == 0, "the next transaction begins"

    TransactionSite(125).play(story)


@schedule(
    180, rule="C28: a marker is for the leadership that it was sent to", mutant="markers-of-an-older-leadership-count"
)
def test_180_a_marker_that_is_late_over_two_elections() -> None:
    """A marker is on its way to the leader, which is deposed; the next one writes it, and the transaction is complete.
    The first broker is elected again, and under protocol 1 the next transaction has the same epoch. Then the marker
    arrives. The broker has never written one of that order, so its memory of copies does not tell."""

    async def story(site: TransactionSite) -> None:
        coordinates, data = site.coordinates, site.data
        await site.add()
        assert await site.produce(11) == 0
        late = site.hold_calls(coordinates, data, for_ms=40_000)
        await site.end(commit=True, version=1)
        await site.until(lambda: late.held, "the marker is on its way")
        late.stop()
        site.world.pause(data)
        await site.until(lambda: site.data not in (data, "n-1"), "another one leads")
        await site.until(lambda: not site.pending, "the transaction is complete")
        site.world.resume(data)
        await site.cluster.wait_in_sync(READY_MS)
        await site.admin(lambda admin: admin.elect_leaders([site.partition], unclean=False))
        await site.until(lambda: site.data == data, "the first one leads again")
        await site.add()
        assert await site.produce(11) == 0
        assert site.world.now_ms < late.earliest_ms, "the marker is still on its way"
        await site.world.sleep_ms(late.latest_ms - site.world.now_ms + 1_000)
        assert (site.coordinates, site.data) == (coordinates, data)
        assert [marker.commit for marker in site.markers(data)] == [True]
        assert site.log(data).open_transactions(), "the next transaction is open"
        await site.end(commit=False, version=1)
        await site.until(lambda: not site.pending, "and is aborted")
        assert [marker.commit for marker in site.markers(data)] == [True, False]

    TransactionSite(180).play(story)
