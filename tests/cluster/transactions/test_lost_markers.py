"""What coordinators say of a transaction that a leader finds open behind an unclean election (rule C29)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from test_ends import brought_to
from transaction_case import ID, T0, T1, Driver

from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.transactions.commands import FindOutcomes, InitProducer, Outcome
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.lost_markers import GRACE_MS, LostMarkers
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import TRANSACTION_TOPIC
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    MetadataVersionRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from strandline.log.transactions import OpenTransaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, PartitionEpoch, TopicPartition
from strandline.proto.kafka.transaction_records import TransactionState

ONE, TWO = NodeId(1), NodeId(2)


def outcome(driver: Driver, producer_id: int, epoch: int, partition: TopicPartition = T0) -> Outcome:
    (found,) = driver.get(FindOutcomes(partition, ((producer_id, epoch),)))
    return Outcome(found)


def test_what_a_coordinator_says() -> None:
    """The last transaction's decision counts for it alone: not for one before, nor under protocol 1, where one epoch is
    of many, unless its markers are on their way."""
    said = {
        (TransactionState.EMPTY, 2): Outcome.UNKNOWN,
        (TransactionState.PREPARE_COMMIT, 2): Outcome.COMMITTED,
        (TransactionState.PREPARE_ABORT, 2): Outcome.ABORTED,
        (TransactionState.COMPLETE_COMMIT, 2): Outcome.COMMITTED,
        (TransactionState.COMPLETE_ABORT, 2): Outcome.ABORTED,
        (TransactionState.PREPARE_COMMIT, 1): Outcome.COMMITTED,
        (TransactionState.PREPARE_ABORT, 1): Outcome.ABORTED,
        (TransactionState.COMPLETE_COMMIT, 1): Outcome.UNKNOWN,
        (TransactionState.COMPLETE_ABORT, 1): Outcome.UNKNOWN,
    }
    for (state, version), expected in said.items():
        driver, _, first = brought_to(state, version)
        assert first is not None
        assert outcome(driver, *first) is expected, (state, version)
        assert outcome(driver.failover(), *first) is expected, "its log says the same"
        assert outcome(driver, first.producer_id, first.epoch + 7) is Outcome.UNKNOWN
        assert outcome(driver, first.producer_id + 1, first.epoch) is Outcome.UNKNOWN


def test_an_open_transaction_goes_on() -> None:
    """In a partition of it. The one before is over, and what became of it is forgotten."""
    driver, producer, first = brought_to(TransactionState.ONGOING)
    assert first is not None
    assert outcome(driver, *producer) is Outcome.OPEN
    assert outcome(driver, *producer, T1) is Outcome.UNKNOWN
    assert outcome(driver, *first) is Outcome.UNKNOWN


def test_a_producer_of_which_all_epochs_are_used_up() -> None:
    """Its last transaction ended under the id before."""
    driver = Driver()
    producer = driver.init()
    while producer.epoch < 32_766:
        value = driver.shard.transactions[ID]
        driver.shard.transactions[ID] = value._replace(producer_epoch=32_765, last_epoch=32_764)
        producer = driver.get(InitProducer(ID, 60_000))
    assert driver.add(producer) is ErrorCode.NONE
    following = driver.end(producer, commit=True, version=2)
    driver.write_markers()
    assert following.producer_id != producer.producer_id
    assert outcome(driver, *producer) is Outcome.COMMITTED


class Coordinator:
    """Of one broker, with these partitions of `__transaction_state`."""

    def __init__(self, *served: int, says: Outcome = Outcome.UNKNOWN) -> None:
        self.served = list(served)
        self.says = says

    async def outcomes_of(
        self, _partition: TopicPartition, producers: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[Outcome]]:
        return self.served, [self.says] * len(producers)


def image(two: Endpoint) -> MetadataImage:
    """Brokers 1 and 2 lead one partition each."""
    topic, both = UUID(int=1), (ONE, TWO)
    empty = MetadataImage("c")
    delta = MetadataDelta(empty)
    led = [
        PartitionRecord(topic, number, both, both, (), (), leader, LeaderEpoch(0), PartitionEpoch(0), False)
        for number, leader in enumerate(both)
    ]
    brokers = [RegisterBrokerRecord(node, UUID(int=node), BrokerEpoch(node), {}, two, fenced=False) for node in both]
    records: list[Any] = [MetadataVersionRecord(1), *brokers, TopicRecord(TRANSACTION_TOPIC, topic), *led]
    delta.apply_all(records)
    return delta.image(len(records), 1, 0)


def test_a_coordinator_that_is_away_is_waited_for() -> None:
    """Nothing is unknown before every partition's coordinator has said so: one that is down, one that loads, one that
    has the answer."""

    async def main() -> None:
        rpc, nobody = GrpcRpc(), Endpoint("127.0.0.1", 1)
        other = Coordinator()

        def made(node: NodeId, coordinator: Coordinator, two: Endpoint) -> LostMarkers:
            parts: dict[str, Any] = dict.fromkeys(("replicas", "writer", "clock", "config", "report"))
            return LostMarkers(node, coordinator=coordinator, image=lambda: image(two), rpc=rpc, **parts)

        found = [OpenTransaction(7, 3, 0, -1, -1)]
        assert await made(ONE, Coordinator(0), nobody)._ask(T0, found) == {}
        server = await rpc.serve(Endpoint("127.0.0.1", 0), made(TWO, other, nobody).handlers(), {})
        try:
            asking = made(ONE, Coordinator(0), server.endpoint)
            assert await asking._ask(T0, found) == {}, "it serves nothing yet"
            other.served = [1]
            assert await asking._ask(T0, found) == {7: Outcome.UNKNOWN}
            other.says = Outcome.COMMITTED
            assert await asking._ask(T0, found) == {7: Outcome.COMMITTED}
            asking = made(ONE, Coordinator(), server.endpoint)
            assert await asking._ask(T0, found) == {7: Outcome.COMMITTED}, "the others have nothing to add"
        finally:
            await server.close()
            await rpc.close()

    asyncio.run(main())


class Led:
    """A partition that this broker leads, with these open transactions."""

    def __init__(self, *found: OpenTransaction) -> None:
        self.found = list(found)
        self.topic_partition = T0
        self.leader = object()
        self.state = SimpleNamespace(leader_epoch=LeaderEpoch(4), recovering=False)
        self.log = SimpleNamespace(
            open_transactions=lambda: self.found, producers=SimpleNamespace(unsettled=set[int]())
        )


def test_when_a_leader_asks() -> None:
    """Once a transaction has been open in its leadership for longer than any may be; of each by its own time."""

    async def main() -> None:
        one, two = OpenTransaction(7, 3, 0, -1, -1), OpenTransaction(8, 0, 5, -1, -1)
        led = Led(one)
        replicas = SimpleNamespace(with_open_transactions=lambda: [led], partition=lambda _tp: led)
        clock = SimpleNamespace(now_ms=1_000.0)
        parts: dict[str, Any] = {
            "replicas": replicas, "writer": None, "report": None, "config": TransactionConfig({}),
            "clock": SimpleNamespace(monotonic_ms=lambda: clock.now_ms), "rpc": None,
        }  # fmt: skip
        empty = MetadataImage("c")
        asking = LostMarkers(ONE, coordinator=Coordinator(), image=lambda: empty, **parts)
        too_long_ms = TransactionConfig({}).max_timeout_ms + GRACE_MS
        asking._look_for_hanging()
        clock.now_ms += too_long_ms / 2
        led.found.append(two)
        asking._look_for_hanging()
        clock.now_ms += too_long_ms / 2 - 1
        asking._look_for_hanging()
        assert led.log.producers.unsettled == set()
        clock.now_ms += 1
        asking._look_for_hanging()
        assert led.log.producers.unsettled == {7}
        asking.close()

    asyncio.run(main())
