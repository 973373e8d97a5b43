"""Where logs part and what is cut: schedules 1 to 7."""

from __future__ import annotations

from strandline.log.checkpoints import LEADER_EPOCHS, decode_epochs
from strandline.replica.states import Role
from tests.replica.helpers import TP
from tests.replica.simulated import PATH
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import ONE, Bench


@schedule(1, rule="B8: truncate by epoch, not to the high watermark", mutant="truncate-to-high-watermark")
def test_01_a_restarted_follower_keeps_what_was_acked() -> None:
    """KIP-101: B has an acked record and does not know yet that it is committed; it restarts, A dies, B leads."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await bench.leave_out(3)
        outcome = await bench.append(1, b"acked")
        assert outcome.synced_replicas == (1, 2)
        assert bench.status(2).high_watermark == 0, "it shall not have heard yet"
        bench.world.kill("n2")
        bench.world.partition("n1", "n2")
        bench.broker(2).start()
        await bench.until(lambda: bench.hosted(2) is not None and bench.status(2).role is Role.FOLLOWER)
        bench.world.kill("n1")
        bench.controller.fence(ONE)
        await bench.until(lambda: bench.leads(2))
        assert bench.values(2) == [b"acked"]

    bench.play(scenario)


@schedule(2, rule="B8: truncation iterates while epochs are unknown", mutant="no-iteration")
def test_02_back_to_back_failovers() -> None:
    """KAFKA-6361: the leader lacks the follower's newest epochs, and the follower the leader's: one question and one
    cut do not make them meet."""
    bench = Bench(
        logs={1: [(1, 10), (2, 5), (5, 15)], 2: [(1, 12), (3, 8), (4, 20)], 3: [(1, 10), (2, 5), (5, 15)]},
        high_watermarks={1: 10, 2: 10, 3: 10},
        leader_epoch=6,
        isr=(1, 3),
    )

    async def scenario(bench: Bench) -> None:
        await bench.whole()
        assert bench.log(2).epochs.entries()[:3] == [(1, 0), (2, 10), (5, 15)]

    bench.play(scenario)


@schedule(3, rule="B8: the epoch is in the log since the election", mutant="no-epoch-at-election")
def test_03_two_elections_without_appends() -> None:
    """KAFKA-7415: nothing was written in the last two epochs; the leader can still say where its own begins, and its
    checkpoint says so too."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"a")
        await bench.elect(2)
        await bench.elect(1)
        found = bench.manager(1).epoch_end_offset(TP, current_leader_epoch=2, epoch=2)
        assert (found.leader_epoch, found.end_offset) == (2, 1)
        await bench.until(lambda: not bench.log(1).needs_sync)
        path = f"{PATH}/{TP}/{LEADER_EPOCHS}"
        assert decode_epochs(path, bench.world.machines["n1"].disk.files()[path]) == [(0, 0), (2, 1)]

    bench.play(scenario)


@schedule(4, rule="B8: truncate on a missed epoch", mutant="no-truncation-when-the-leader-returns")
def test_04_the_same_leader_again() -> None:
    """KAFKA-7164: a follower misses the epoch of another leader, in which its own lost a record that it has."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"a")
        bench.world.partition("n1", "n2")
        await bench.append(1, b"of epoch 0, on 1 and 3", acks=1)
        await bench.until(lambda: bench.status(3).log_end_offset == 2)
        bench.broker(3).cut()
        bench.world.partition("n1", "n3")
        bench.world.partition("n2", "n3")
        await bench.elect(2)
        await bench.append(2, b"of epoch 1", acks=1)
        bench.world.network.heal("n1", "n2")
        bench.world.network.heal("n2", "n1")
        await bench.until(lambda: bench.log(1).latest_epoch == 1)
        await bench.elect(1)
        await bench.append(1, b"of epoch 2", acks=1)
        bench.world.heal()
        bench.hear_only_the_newest(3)
        await bench.whole()
        assert bench.values(3) == [b"a", b"of epoch 1", b"of epoch 2"]

    bench.play(scenario)


@schedule(5, rule="B8: a cut at the end cleans the epochs", mutant="empty-epochs-stay")
def test_05_empty_epochs() -> None:
    """KAFKA-10706: it led and wrote nothing; the next leader never heard of that epoch, and nothing can be cut."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"a")
        bench.world.isolate("n2")
        await bench.elect(2)
        await bench.elect(1)
        assert bench.log(2).latest_epoch == 1
        bench.world.heal()
        await bench.append(1, b"b", acks=1)
        await bench.whole()
        assert bench.log(2).epochs.entries() == bench.log(1).epochs.entries()

    bench.play(scenario)


@schedule(6, rule="B8: a diverging fetch is not recorded", mutant="diverging-fetch-recorded")
def test_06_a_diverging_offset_counts_for_nothing() -> None:
    """KAFKA-13141: a member of the ISR that ends where the leader does, with other records: nothing is committed by
    that."""
    bench = Bench(
        logs={1: [(0, 5), (2, 5)], 2: [(0, 5), (1, 5)]},
        high_watermarks={1: 5, 2: 5},
        leader_epoch=3,
        isr=(1, 2),
    )

    async def scenario(bench: Bench) -> None:
        highest = 0
        while bench.log(2).latest_epoch < 2:
            high_watermark = bench.status(1).high_watermark
            agreed = sum(1 for mine, theirs in zip(bench.values(1), bench.values(2), strict=False) if mine == theirs)
            assert high_watermark <= agreed, f"{high_watermark} are committed, {agreed} are on both"
            highest = max(highest, high_watermark)
            await bench.world.sleep_ms(0.1)
        assert highest == 5
        await bench.whole((1, 2))

    bench.play(scenario)


@schedule(7, rule="B8: no high watermark from a diverging answer", mutant="watermark-from-a-diverging-answer")
def test_07_an_ex_leader_cuts_first() -> None:
    """KAFKA-14704: it has a tail that was never committed, longer than what is committed now: it must not take those
    records for committed when it hears how far that is."""
    bench = Bench(
        logs={1: [(0, 4)], 2: [(0, 1), (1, 5)], 3: [(0, 1), (1, 5)]},
        high_watermarks={1: 1, 2: 6, 3: 6},
        leader=2,
        leader_epoch=1,
        isr=(2, 3),
    )

    async def scenario(bench: Bench) -> None:
        committed = bench.values(2)
        while bench.status(1).log_end_offset != 6:
            status = bench.status(1)
            assert status.role is Role.FOLLOWER, status.reason
            assert bench.values(1)[: status.high_watermark] == committed[: status.high_watermark]
            await bench.world.sleep_ms(0.2)
        await bench.whole()
        await bench.until(lambda: len(bench.isr) == 3)

    bench.play(scenario)
