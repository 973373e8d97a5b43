"""Readers of committed transactions while everything fails: they see all of a transaction or nothing, on every replica
(rules C6, C12 and C13).

A producer's coordinator is a table here: it decides, and sends the marker to whoever leads until one says that it is
committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from strandline.chaos.sim.seeds import split
from strandline.log.batch import Record, build_batch, decode_records, iter_batches
from strandline.log.config import LogConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, TopicPartition
from strandline.proto.tasks import spawn
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append, AppendDone
from strandline.replica.states import ReadOutcome, ReplicaConfig
from tests.replica.simulated import SimCluster
from tests.replica.test_simulated import heal, restart, trouble, whole
from tests.replica.tiered import CONFIG, NOTHING_STAYS
from tests.replica.transactional import Transactional, key_of, shown

ROUNDS = 10
_MAY_BE = (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.OFFSET_OUT_OF_RANGE)
"""Answers of a follower whose metadata are older than its leader's."""
TIERED = replace(NOTHING_STAYS, segment_bytes=2_000)
COMPACTED = LogConfig(
    segment_bytes=2_000,
    index_interval_bytes=200,
    compacted=True,
    retention_ms=-1,
    file_delete_delay_ms=0,
    min_cleanable_dirty_ratio=0.1,
    delete_retention_ms=10_000,  # longer than a replica is away: it would not get the markers that went meanwhile
)


@dataclass
class Decisions:
    """What coordinators have decided; a value that is not here yet is of an open transaction, or of none."""

    committed: set[bytes] = field(default_factory=set)
    aborted: set[bytes] = field(default_factory=set)
    stable: dict[tuple[object, int], int] = field(default_factory=dict)
    shown: dict[int, bytes] = field(default_factory=dict)
    """Offset -> value, of everything that a reader of committed transactions was shown."""

    def take(self, where: tuple[object, int], outcome: ReadOutcome) -> None:
        """Check one answer of a broker."""
        assert outcome.last_stable_offset <= outcome.high_watermark
        assert outcome.last_stable_offset >= self.stable.get(where, -1), "the last stable offset fell"
        self.stable[where] = outcome.last_stable_offset
        assert outcome.next_offset <= max(outcome.last_stable_offset, 0) or not outcome.data
        values = shown(outcome)
        for value in values:
            assert value in self.committed, f"{value!r} is shown, aborted={value in self.aborted}"
        for header, view in iter_batches(memoryview(outcome.data)):
            for record in () if header.is_control else decode_records(view):
                if record.value in values:
                    known = self.shown.setdefault(record.offset, record.value or b"")
                    assert known == record.value


async def asked(
    cluster: SimCluster, tp: TopicPartition, act: Callable[[ReplicaManager, AppendDone], None], within_s: float = 1.0
) -> Append | None:
    """The outcome of an append at whoever leads; None: nobody leads, or nobody answers."""
    leader = cluster.controller.state(tp).leader
    if leader == NO_NODE:
        return None
    answered: asyncio.Future[Append] = cluster.world.loop.create_future()

    def answer(outcome: Append) -> None:
        if not answered.done():
            answered.set_result(outcome)

    cluster.brokers[leader].run(lambda manager: act(manager, answer))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return await answered
    return None


async def transact(cluster: SimCluster, tp: TopicPartition, number: int, told: Decisions, stop: asyncio.Event) -> None:
    """One transaction after another, with an epoch of its own each; plain records in between."""
    rng = cluster.rng
    count = 0
    open_ones: set[Transactional] = set()
    while not stop.is_set():
        await cluster.world.sleep_ms(rng.uniform(0.2, 40))
        producer = Transactional(100 + number, epoch=count)
        open_ones.add(producer)

        def write(manager: ReplicaManager, done: AppendDone, value: bytes, producer: Transactional = producer) -> None:
            partition = manager.partition(tp)
            if producer in open_ones and partition is not None and partition.log is not None:
                producer.write(manager, done, value, tp=tp)

        values: set[bytes] = set()
        good = True
        for part in range(rng.randint(1, 4)):
            value = b"%d-%d-%d%d" % (number, count, part, rng.randrange(4)) + b"." * rng.choice([1, 1, 200])
            values.add(value)
            first = producer.sequence
            outcome = await asked(cluster, tp, lambda manager, done, value=value: write(manager, done, value))
            good = outcome is not None and outcome.error is ErrorCode.NONE
            if not good:
                break
            assert producer.sequence == first + 1
            await cluster.world.sleep_ms(rng.uniform(0, 30))
        open_ones.remove(producer)
        commit = good and rng.random() < 0.6
        (told.committed if commit else told.aborted).update(values)
        while True:
            marker = producer.marker(commit=commit)
            outcome = await asked(
                cluster, tp, lambda manager, done, marker=marker: manager.append_marker(tp, marker, 1, done) and None
            )
            if outcome is not None and outcome.error is ErrorCode.NONE:
                break
            if outcome is not None and outcome.error is ErrorCode.INVALID_PRODUCER_EPOCH:
                raise AssertionError("a marker of this producer's newest epoch is refused")
            await cluster.world.sleep_ms(20)
        count += 1
        plain = b"plain-%d-%d" % (number, count)
        told.committed.add(plain)
        raw = build_batch([Record(0, 1_700_000_000_000, key_of(plain), plain)])
        await asked(cluster, tp, lambda manager, done, raw=raw: manager.append(tp, memoryview(raw), -1, done) and None)


async def consume(cluster: SimCluster, tp: TopicPartition, told: Decisions, stop: asyncio.Event) -> None:
    """Read from anywhere on, from leaders and followers, also from those that no longer are."""
    rng = cluster.rng

    def read(manager: ReplicaManager) -> None:
        partition = manager.partition(tp)
        if partition is None or partition.log is None or (partition.leader or partition.follower) is None:
            return
        core, start = partition.leader or partition.follower, partition.log_start_offset
        offset, size = rng.randint(start, max(start, partition.high_watermark)), rng.choice([100, 500, 100_000])
        outcome = manager.read(tp, offset, size, read_committed=True, any_replica=True)
        if outcome is None and manager.tiering is not None:
            spawn(cold(manager, core, offset, size), cluster.fatals.append)  # type: ignore[arg-type]
        elif outcome is not None and outcome.error not in _MAY_BE:
            assert outcome.error is ErrorCode.NONE, outcome
            told.take((core, 0), outcome)

    async def cold(manager: ReplicaManager, core: object, offset: int, size: int) -> None:
        outcome = await manager.read_cold(tp, offset, size, read_committed=True, any_replica=True)
        if outcome.error is ErrorCode.NONE:  # bounds are of when it began: they tell nothing of what is since
            told.take((core, object()), outcome)

    while not stop.is_set():
        await cluster.world.sleep_ms(5)
        for broker in cluster.brokers.values():
            broker.run(read)


async def scenario(cluster: SimCluster, seed: int, config: LogConfig | None = None) -> Decisions:
    told, stop, stop_writing = Decisions(), asyncio.Event(), asyncio.Event()
    for broker in cluster.brokers.values():
        broker.start()
    await cluster.world.sleep_ms(200)
    [tp] = cluster.create(1)
    if config is not None:
        cluster.controller.change(tp, log_config=config)
    sessions = asyncio.ensure_future(cluster.keep_sessions())
    writers = [asyncio.ensure_future(transact(cluster, tp, number, told, stop_writing)) for number in range(3)]
    reader = asyncio.ensure_future(consume(cluster, tp, told, stop))
    await trouble(cluster, split(seed, "trouble"), ROUNDS)
    heal(cluster)
    restart(cluster)
    await cluster.world.sleep_ms(3_000)
    stop_writing.set()
    await asyncio.gather(*writers)
    for _ in range(200):
        await cluster.world.sleep_ms(100)
        if whole(cluster, [tp]):
            break
    else:
        raise AssertionError([broker.manager and broker.manager.hosted() for broker in cluster.brokers.values()])
    stop.set()
    await reader
    await check(cluster, tp, told, is_compacted=config is not None and config.compacted)
    sessions.cancel()
    return told


async def check(cluster: SimCluster, tp: TopicPartition, told: Decisions, *, is_compacted: bool) -> None:
    """The end: nothing is open anywhere, and a reader of any replica is shown what was committed, once; of each key the
    last."""
    everything: list[list[bytes]] = []
    for node in cluster.brokers:
        manager = cluster.manager(int(node))
        partition = manager.partition(tp)
        assert partition is not None
        assert partition.log is not None
        assert partition.log.open_transactions() == []
        assert partition.last_stable_offset == partition.high_watermark
        found: list[bytes] = []
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            size = cluster.rng.choice([100, 3_000])
            ask = partial(manager.read_cold, tp, offset, size, read_committed=True, any_replica=True)
            outcome = await cluster.inside(int(node), ask)
            assert outcome.error is ErrorCode.NONE, outcome
            told.take((manager, 1), outcome)
            found += shown(outcome, offset)
            offset = outcome.next_offset
        everything.append(found)
    newest = {key_of(value): value for _, value in sorted(told.shown.items())}
    for values in everything:
        assert len(values) == len(set(values))
        assert {key_of(value): value for value in values} == newest
        if not is_compacted:
            transactional = {value for value in told.committed if not value.startswith(b"plain")}
            assert transactional <= set(values), "what was committed is lost"
            assert set(told.shown.values()) <= set(values)


@pytest.mark.parametrize("seed", range(3))
def test_all_of_a_transaction_or_nothing(seed: int) -> None:
    cluster = SimCluster(seed)

    async def play(cluster: SimCluster) -> None:
        told = await scenario(cluster, seed)
        assert told.shown
        assert told.aborted

    cluster.play(play)
    assert cluster.fatals == []


@pytest.mark.parametrize("seed", range(2))
def test_compaction_shows_nothing_that_was_aborted(seed: int) -> None:
    """Each replica compacts by itself: the last committed value of each key stays, on all of them; an aborted one never
    takes its place, nor comes to light because its marker or the index of it has gone first."""
    cluster = SimCluster(seed, config=ReplicaConfig(replica_lag_time_max_ms=3_000, cleaner_backoff_ms=200))

    async def play(cluster: SimCluster) -> None:
        told = await scenario(cluster, seed, COMPACTED)
        assert told.aborted
        log = cluster.manager(1).partition(TopicPartition("t", 0)).log  # type: ignore[union-attr]
        assert log is not None
        assert log.cleaned_to > 0

    cluster.play(play)
    assert cluster.fatals == []


@pytest.mark.parametrize("seed", range(2))
def test_the_object_store_holds_decided_transactions_alone(seed: int) -> None:
    """Closed segments leave the disks as soon as they may; readers go from the store to the disks and back."""
    config = ReplicaConfig(replica_lag_time_max_ms=3_000, retention_check_interval_ms=500)
    cluster = SimCluster(seed, config=config)
    cluster.tier_config = CONFIG

    async def play(cluster: SimCluster) -> None:
        told = await scenario(cluster, seed, TIERED)
        assert told.aborted
        assert cluster.controller.state(TopicPartition("t", 0)).tier.end_offset > 0

    cluster.play(play)
    assert cluster.fatals == []
