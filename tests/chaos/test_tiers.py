"""Tiered storage in the simulator: what its checkers flag and what they do not, and seeds that hold."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from strandline.chaos.checkers.batches import StoredBatch
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.partitions import Known
from strandline.chaos.checkers.replicas import check_producers
from strandline.chaos.checkers.tiers import NothingLeaks, TierCoversTheLog, TierIsStored, batches_in, object_key
from strandline.chaos.cli import make_run
from strandline.chaos.nemesis.kinds import STORE_KINDS
from strandline.chaos.runner import run_seeds
from strandline.chaos.scenario_options import ScenarioOptions
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.object_store import SimObject, StoreConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.chaos.tiered import SEGMENT_GETS, TIERED_SHARE, segments_to_read, tier_read_ms
from strandline.log.batch import Record, build_batch
from strandline.log.checkpoints import encode_partition_metadata
from strandline.log.real_disk import RealDisk
from strandline.proto.ids import TopicIdPartition
from strandline.proto.tier import EpochStart, Tier, TieredSegment
from tests.log.helpers import TOPIC_ID, TP, fill, open_test_log
from tests.log.tier.stores import Simulated
from tests.log.tier.tiers import CLUSTER, MemoryStore, copy_closed, tier_reader

WHERE = TopicIdPartition(TOPIC_ID, TP.partition)
NAME = str(TP)


class Stored:
    """Two segments of a log in a store, as the product writes them, and what is known of the partition."""

    def __init__(self) -> None:
        store = MemoryStore()
        with TemporaryDirectory() as directory:
            log = open_test_log(RealDisk(), directory)
            for epoch in (3, 5):
                fill(log, 1, count=4, epoch=epoch)
                fill(log, 1, count=2, epoch=epoch)
                log.roll()
            self.tier = Tier(0, tuple(asyncio.run(copy_closed(store, log))))
        self.objects = {key: SimObject(data, 0) for key, data in store.objects.items()}
        self.known = Known(NAME, committed_end=12)

    def key(self, number: int, suffix: str) -> str:
        return object_key(CLUSTER, TP.topic, WHERE, self.tier.segments[number], suffix)

    def change(self, number: int, **changes: Any) -> None:
        segments = list(self.tier.segments)
        segments[number] = replace(segments[number], **changes)
        self.tier = replace(self.tier, segments=tuple(segments))

    def check(self) -> None:
        TierIsStored(CLUSTER).check(self.objects, WHERE, self.known, self.tier)


def test_what_the_product_copies_is_stored() -> None:
    """And what is in the store is known as committed from then on."""
    stored = Stored()
    stored.check()
    assert sorted(stored.known.committed) == [0, 4, 6, 10]
    check = TierIsStored(CLUSTER)
    for _ in range(2):
        check.check(stored.objects, WHERE, stored.known, stored.tier)
    assert check.looked == 2, "an object that was looked at is not parsed again"


def test_a_segment_may_begin_in_the_middle_of_its_object() -> None:
    """The tier ended there, or a client has deleted what lies before: its first epoch counts from there on."""
    stored = Stored()
    [segment] = stored.tier.segments[:1]
    [key] = [key for key in stored.objects if key.endswith(f"{segment.segment_id}.log")]
    moved = {suffix: stored.objects.pop(stored.key(0, suffix)) for suffix in (".log", ".index")}
    stored.change(0, base_offset=2, epochs=(EpochStart(3, 2),))  # type: ignore[arg-type]
    stored.objects |= {stored.key(0, suffix): item for suffix, item in moved.items()}
    assert key not in stored.objects
    stored.check()
    stored.change(0, base_offset=4)  # no batch before it belongs into the object then
    stored.objects |= {stored.key(0, suffix): item for suffix, item in moved.items()}
    with pytest.raises(InvariantViolated, match="TierIsStored"):
        stored.check()


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_an_object_that_is_missing_or_has_other_bytes_is_seen(suffix: str) -> None:
    """Each of the two, at any byte that a reader may need."""
    stored = Stored()
    key = stored.key(1, suffix)
    whole = stored.objects.pop(key)
    with pytest.raises(InvariantViolated, match="lacks what the metadata name"):
        stored.check()
    for position in range(0, len(whole.data), 7):
        rotten = bytearray(whole.data)
        rotten[position] ^= 1
        stored.objects[key] = SimObject(bytes(rotten), 0)
        with pytest.raises(InvariantViolated, match="TierIsStored"):
            stored.check()
    stored.objects[key] = SimObject(whole.data[:-1], 0)
    with pytest.raises(InvariantViolated, match="TierIsStored"):
        stored.check()


def test_an_object_that_rots_after_it_was_looked_at_is_seen() -> None:
    stored, check = Stored(), TierIsStored(CLUSTER)
    check.check(stored.objects, WHERE, stored.known, stored.tier)
    key = stored.key(0, ".log")
    stored.objects[key] = SimObject(stored.objects[stored.key(1, ".log")].data, 0)
    with pytest.raises(InvariantViolated, match="TierIsStored"):
        check.check(stored.objects, WHERE, stored.known, stored.tier)


@pytest.mark.parametrize(
    "changes",
    [
        {"end_offset": 11},
        {"end_offset": 13},
        {"size_bytes": 1},
        {"epochs": (EpochStart(3, 6),)},
        {"epochs": (EpochStart(5, 6), EpochStart(6, 10))},
    ],
)
def test_metadata_that_say_more_or_less_than_the_object_are_seen(changes: dict[str, Any]) -> None:
    stored = Stored()
    stored.change(1, **changes)
    with pytest.raises(InvariantViolated, match="TierIsStored"):
        stored.check()


def test_a_gap_between_segments_is_seen() -> None:
    stored = Stored()
    append_to = stored.tier.segments
    stored.tier = replace(stored.tier, segments=(append_to[0], replace(append_to[1], base_offset=7)))
    with pytest.raises(InvariantViolated, match="does not follow on"):
        stored.check()


def test_batches_that_are_not_the_committed_ones_are_seen() -> None:
    """A leader that was deposed has copied what its successor truncates; or what nobody has committed yet."""
    stored = Stored()
    stored.known.committed[6] = (4, 0, 10)
    with pytest.raises(InvariantViolated, match="is committed, not"):
        stored.check()
    stored = Stored()
    stored.known.committed_end = 11
    with pytest.raises(InvariantViolated, match="only what lies below 11"):
        stored.check()


def disk(begins: int, topic_id: UUID = TOPIC_ID) -> SimDisk:
    """With a replica whose log begins there."""
    world = World(1)
    machine = world.add_machine("n1")

    async def main(ports: Ports) -> None:
        ports.disk.mkdir(f"/data/{NAME}")
        ports.disk.open(f"/data/{NAME}/{begins:020d}.log", create=True)
        file = ports.disk.open(f"/data/{NAME}/partition.metadata", create=True)
        file.pwrite(encode_partition_metadata(topic_id), 0)

    async def story() -> None:
        world.spawn("n1", main)
        await world.sleep_ms(10)

    world.loop.run_until_complete(story())
    return machine.disk


def covers(begins: int, tier: Tier, deleted: int = 0, topic_id: UUID = TOPIC_ID) -> None:
    TierCoversTheLog().check({"n1": (disk(begins, topic_id), f"/data/{NAME}")}, TOPIC_ID, Known(NAME), tier, deleted)


def test_a_hole_between_tier_and_log_is_seen() -> None:
    """Unless what lay there was deleted on purpose, or the directory is that of an older topic of the name."""
    segment = TieredSegment(UUID(int=1), 0, 10, 100, 5, (EpochStart(0, 0),), 7)
    covers(0, Tier())
    covers(10, Tier(0, (segment,)))
    covers(11, Tier(0, (segment,)), deleted=11)
    covers(11, Tier(0, (segment,)), topic_id=UUID(int=7))
    covers(5, Tier(), deleted=5)
    for begins, tier in ((11, Tier(0, (segment,))), (5, Tier())):
        with pytest.raises(InvariantViolated, match="neither in the store nor on a disk"):
            covers(begins, tier, deleted=begins - 1)


def test_a_tier_that_forgets_what_nobody_deleted_is_seen() -> None:
    segment = TieredSegment(UUID(int=1), 0, 10, 100, 5, (EpochStart(0, 0),), 7)
    covers(4, Tier(5, (segment,)), deleted=5)
    with pytest.raises(InvariantViolated, match="forgot what nobody has deleted"):
        covers(4, Tier(5, (segment,)), deleted=4)


def test_what_the_metadata_do_not_name_leaks() -> None:
    """A copy that was cut short, a segment that was forgotten, a topic that was deleted."""
    stored, check = Stored(), NothingLeaks(CLUSTER)
    topics = {TOPIC_ID: TP.topic}
    check.check(stored.objects, topics, {WHERE: stored.tier})
    forgotten = replace(stored.tier, segments=stored.tier.segments[1:])
    assert check.leaks(stored.objects, topics, {WHERE: forgotten}) == [stored.key(0, ".index"), stored.key(0, ".log")]
    for tiers in ({WHERE: forgotten}, {}):
        with pytest.raises(InvariantViolated, match="NothingLeaks"):
            check.check(stored.objects, topics, tiers)


def test_batches_of_an_object_are_whole_ones() -> None:
    stored = Stored()
    data = stored.objects[stored.key(0, ".log")].data
    assert [batch.base_offset for batch, _ in batches_in(data)] == [0, 4]
    assert b"".join(content for _, content in batches_in(data)) == data


def test_a_share_of_the_seeds_is_tiered_and_the_others_are_as_they_were() -> None:
    """They draw from a generator of their own, faults of the store among it; in the scenario `tiered` every seed is."""
    drawn = [ScenarioOptions.draw(seed) for seed in range(400)]
    having = [one for one in drawn if one.tiered is not None]
    assert 0.7 * TIERED_SHARE < len(having) / len(drawn) < 1.3 * TIERED_SHARE
    assert {kind for one in having for kind in one.faults.kinds if kind in STORE_KINDS} == set(STORE_KINDS)
    assert all("remote.storage.enable" in one.workload.topic_configs for one in having)
    others = [one for one in drawn if one.tiered is None]
    assert not any("remote.storage.enable" in one.workload.topic_configs for one in others)
    assert not any(kind in STORE_KINDS for one in others for kind in one.faults.kinds)
    assert all(ScenarioOptions.draw(seed, scenario="tiered").tiered is not None for seed in range(50))
    assert ScenarioOptions.draw(3, scenario="tiered") == ScenarioOptions.draw(3, scenario="tiered")


def test_the_time_to_read_is_that_of_the_store_and_of_the_segments(tmp_path: Path) -> None:
    """Seeds 9100093 and 9100171: a thousand segments of two records in a store of 300 ms took longer than a fixed time.

    Three GETs a segment, of which each takes half of the longest in the mean: a reader needs half of what it gets.
    """
    log = open_test_log(RealDisk(), str(tmp_path))
    for _ in range(60):
        fill(log, 1, count=2)
        log.roll()
    simulated, memory = Simulated(), MemoryStore()
    simulated.sim.config = config = StoreConfig(latency_max_us=300_000)
    segments = asyncio.run(copy_closed(memory, log))
    assert len(segments) == 60
    for key, data in memory.objects.items():
        simulated.sim.write(key, data)

    async def main() -> None:
        reader, began_us = tier_reader(simulated.store()), simulated.sim.loop.now_us
        for segment in segments:
            offset = int(segment.base_offset)
            while offset < segment.end_offset:
                read = await reader.read(TP, TOPIC_ID, segment, offset, 1 << 20, limit_offset=1 << 60)
                offset = int(read.next_offset)
        took_ms, most_ms = (simulated.sim.loop.now_us - began_us) / 1000, tier_read_ms(config, len(segments))
        assert reader.requests == SEGMENT_GETS * len(segments)
        assert most_ms / 4 < took_ms < most_ms / 2, "too much time sees nothing, too little fails seeds"

    simulated.run(main())
    simulated.close()


def test_what_is_still_on_the_disk_counts_among_the_segments_to_read(tmp_path: Path) -> None:
    """It is copied while the reader is on its way, and gone from the disk when it comes; the last one stays open."""
    log = open_test_log(RealDisk(), str(tmp_path))
    for _ in range(5):
        fill(log, 1, count=2)
        log.roll()
    segments = tuple(asyncio.run(copy_closed(MemoryStore(), log)))
    assert len(segments) == 5
    for copied in range(6):
        partition: Any = SimpleNamespace(log=log, state=SimpleNamespace(tier=Tier(0, segments[:copied])))
        assert segments_to_read(partition) == 5, copied


def test_seeds_hold() -> None:
    """Segments go to the store and from the disks, and are read from there, while the store and all else fails."""
    make = partial(make_run, "tiered", {}, None)
    outcomes = list(run_seeds((2, 18), make, jobs=2))
    assert [(outcome.seed, outcome.message, outcome.details) for outcome in outcomes if not outcome.ok] == []
    for name in ("tiered_segments", "tier_reads"):
        assert sum(outcome.figures[name] for outcome in outcomes) > 20, name
    for mark in ("segment-tiered", "local-records-expired", "tier-copy-failed"):
        assert sum(outcome.figures["marks"].get(mark, 0) for outcome in outcomes) > 0, mark


def produced() -> list[tuple[StoredBatch, bytes]]:
    """Two batches of a producer, of two records each, in two epochs."""
    data = b"".join(
        build_batch(
            [Record(0, 1000, None, b"v", ())] * 2,
            base_offset=2 * epoch,
            leader_epoch=0,
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=0,
        )
        for epoch in (0, 1)
    )
    return list(batches_in(data))


def test_a_replica_that_knows_each_producer_passes() -> None:
    """By what is in the store, by what came later, or because it was deleted."""
    check_producers(NAME, produced(), 0, {"n1": {7: (1, 3)}, "n2": {7: (2, 9)}})
    check_producers(NAME, produced(), 3, {"n1": {}})
    others = [(batch, bytes(content[:43]) + bytes((255,)) * 10 + content[53:]) for batch, content in produced()]
    check_producers(NAME, others, 0, {"n1": {}})


@pytest.mark.parametrize("known", [{}, {8: (1, 3)}, {7: (0, 3)}, {7: (1, 1)}, {7: (1, -1)}])
def test_a_replica_that_would_append_a_retry_is_seen(known: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(InvariantViolated, match="ProducersAreKnown"):
        check_producers(NAME, produced(), 0, {"n1": {7: (1, 3)}, "n2": known})
