"""Markers from a coordinator's broker to the leaders of their partitions, over real connections (rule C16); the
replicas alone are played by the test, for they decide when a marker is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.transactions import marker_writes
from strandline.cluster.transactions import markers as sending
from strandline.cluster.transactions.commands import MarkerOrder
from strandline.cluster.transactions.marker_orders import Addressed
from strandline.cluster.transactions.marker_writes import NO_ORDER, MarkerToWrite, MarkerWriter, NamedPartition, Sender
from strandline.cluster.transactions.markers import MarkerSender
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    MetadataRecord,
    MetadataVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import (
    NO_NODE,
    BrokerEpoch,
    Endpoint,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    ProducerId,
    TopicPartition,
)
from strandline.proto.ports import RpcServer
from strandline.proto.system import SystemClock
from strandline.replica.partition import Append, AppendDone

ONE, TWO = NodeId(1), NodeId(2)
T, GROUPS = UUID(int=1), UUID(int=2)
T0, T1, G0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition(OFFSETS_TOPIC, 0)


class Replicas:
    """Of one broker. `answers`: what a marker is answered at once; one that is not there waits until it is `commit`ted.

    Attributes:
        written: every marker that was appended, with its partition.
        leader_epochs: which leadership each marker that came was for.
    """

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, Marker, int]] = []
        self.leader_epochs: list[int] = []
        self.answers: dict[TopicPartition, list[ErrorCode]] = {}
        self.waiting: list[Append] = []

    def append_marker(
        self, tp: TopicPartition, marker: Marker, transaction_version: int, done: AppendDone, *, leader_epoch: int
    ) -> Append | None:
        append = Append(done)
        self.leader_epochs.append(leader_epoch)
        queued = self.answers.get(tp)
        code = queued.pop(0) if queued else None
        if code is None or code is ErrorCode.NONE:
            self.written.append((tp, marker, transaction_version))
        if code is None:
            self.waiting.append(append)
            return append
        append.end(code)
        return None

    def write_marker(
        self, partition: int, marker: Marker, transaction_version: int, *, leader_epoch: int
    ) -> Awaitable[ErrorCode]:
        """As the runtime of the groups."""
        ended = asyncio.get_running_loop().create_future()
        tp = TopicPartition(OFFSETS_TOPIC, partition)

        def done(outcome: Append) -> None:
            ended.set_result(outcome.error)

        self.append_marker(tp, marker, transaction_version, done, leader_epoch=leader_epoch)
        return ended

    def commit(self) -> None:
        """Every replica in sync has what was written."""
        waiting, self.waiting = self.waiting, []
        for append in waiting:
            append.end(ErrorCode.NONE)


class Site:
    """Broker 1 has the coordinator; it and broker 2 lead partitions."""

    def __init__(self) -> None:
        self.image = MetadataImage("c")
        self.failures: list[BaseException] = []
        self.replicas = {ONE: Replicas(), TWO: Replicas()}
        self.writers = {
            node: MarkerWriter(replicas, replicas, self.failures.append) for node, replicas in self.replicas.items()
        }
        self.rpc = GrpcRpc()
        self.sender = MarkerSender(
            ONE,
            broker_epoch=lambda: BrokerEpoch(11),
            image=lambda: self.image,
            writer=self.writers[ONE],
            rpc=self.rpc,
            clock=SystemClock(),
            report=self.failures.append,
        )
        self.told: list[str] = []
        self.server: RpcServer

    def apply(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        delta.apply_all(records)
        self.image = delta.image(self.image.offset + len(records), 1, 0)
        self.sender.on_metadata(delta, self.image)

    def order(self, name: str, *partitions: TopicPartition, epoch: int = 0, version: int = 1) -> MarkerOrder:
        return MarkerOrder(name, 5, 1, Marker(7, epoch, True, 3), frozenset(partitions), version)

    def send(self, order: MarkerOrder) -> None:
        self.sender.send(order, lambda told: self.told.append(told.transactional_id))


def led(topic: UUID, number: int, leader: NodeId) -> PartitionRecord:
    both = (ONE, TWO)
    return PartitionRecord(topic, number, both, both, (), (), leader, LeaderEpoch(0), PartitionEpoch(0), False)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    made.server = await made.rpc.serve(Endpoint("127.0.0.1", 0), made.writers[TWO].handlers(), {})
    nobody = Endpoint("127.0.0.1", 1)
    made.apply(
        MetadataVersionRecord(1),
        RegisterBrokerRecord(ONE, UUID(int=1), BrokerEpoch(11), {}, nobody, fenced=False),
        RegisterBrokerRecord(TWO, UUID(int=2), BrokerEpoch(12), {}, made.server.endpoint, fenced=False),
        TopicRecord("t", T),
        led(T, 0, ONE),
        led(T, 1, TWO),
        TopicRecord(OFFSETS_TOPIC, GROUPS),
        led(GROUPS, 0, TWO),
    )
    try:
        yield made
    finally:
        made.sender.close()
        await made.server.close()
        await made.rpc.close()
    assert not made.failures


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)


def run(body: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        async with site() as made:
            await body(made)

    asyncio.run(main())


def test_a_transaction_ends_once_every_partition_has_its_marker() -> None:
    """Markers of one broker's own partitions, of another's, and of the groups: told when all of them are committed."""

    async def body(site: Site) -> None:
        site.send(site.order("tx", T0, T1, G0, version=2))
        one, two = site.replicas[ONE], site.replicas[TWO]
        await until(lambda: len(one.written) == 1 and len(two.written) == 2)
        marker = Marker(7, 0, True, 3)
        assert one.written == [(T0, marker, 2)]
        assert sorted(two.written) == [(G0, marker, 2), (T1, marker, 2)]
        one.commit()
        await asyncio.sleep(0.05)
        assert not site.told, "the leader's own append is no commit"
        two.commit()
        await until(lambda: site.told)
        assert (site.told, site.sender.pending) == (["tx"], 0)

    run(body)


def test_markers_follow_the_leader() -> None:
    """Refused by the old leader, nobody leads for a while, then this broker does."""

    async def body(site: Site) -> None:
        site.replicas[TWO].answers[T1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000
        site.send(site.order("tx", T1))
        await until(lambda: len(site.replicas[TWO].answers[T1]) < 999)
        site.apply(PartitionChangeRecord(T, 1, leader=NO_NODE))
        await asyncio.sleep(0.05)
        assert not site.told
        site.replicas[ONE].answers[T1] = [ErrorCode.NONE]
        site.apply(PartitionChangeRecord(T, 1, leader=ONE))
        await until(lambda: site.told)
        assert site.replicas[ONE].written == [(T1, Marker(7, 0, True, 3), 1)]
        # Each was sent to the leadership that the metadata named then (rule C28).
        assert set(site.replicas[TWO].leader_epochs) == {0}
        assert site.replicas[ONE].leader_epochs == [2]

    run(body)


def test_a_marker_of_a_build_that_names_no_leadership() -> None:
    """It counts in any (rule C28): a rolling upgrade goes on."""

    async def body(site: Site) -> None:
        site.replicas[TWO].answers[T1] = [ErrorCode.NONE]
        named = tuple(NamedPartition(*partition) for partition in (T1, T0))
        marker = MarkerToWrite(1, ProducerId(7), 0, True, 3, 1, named)
        site.replicas[TWO].answers[T0] = [ErrorCode.NONE]
        codes = await site.writers[TWO].write(Sender(ONE, BrokerEpoch(11)), [marker])
        assert codes == [ErrorCode.NONE, ErrorCode.NONE]
        assert site.replicas[TWO].leader_epochs == [-1, -1]

    run(body)


def test_a_leader_that_is_deposed_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not answer, as a machine without power; the new one is told as soon as the metadata name it."""
    monkeypatch.setattr(marker_writes, "COMMITTED_MS_MAX", 60_000.0)
    monkeypatch.setattr(sending, "CALL_MS", 60_000.0)

    async def body(site: Site) -> None:
        site.send(site.order("tx", T1))
        site.send(site.order("other", G0))
        await until(lambda: len(site.replicas[TWO].written) == 2)
        site.replicas[ONE].answers[T1] = [ErrorCode.NONE]
        site.apply(PartitionChangeRecord(T, 1, leader=ONE))
        async with asyncio.timeout(5):
            await until(lambda: site.told == ["tx"])
        site.replicas[TWO].commit()
        await until(lambda: site.told == ["tx", "other"])
        assert len(site.replicas[TWO].written) == 2, "what was asked for once more joins the first"

    run(body)


def test_a_broker_that_is_away_is_tried_until_it_is_back() -> None:
    """Nobody listens, then a build that does not know the call, then one that does."""

    async def body(site: Site) -> None:
        endpoint = site.server.endpoint
        await site.server.close()
        site.send(site.order("tx", T1))
        await until(lambda: site.sender._orders.next_ms is not None)
        site.server = await site.rpc.serve(endpoint, {}, {})
        await asyncio.sleep(0.3)
        assert site.sender.pending == 1
        await site.server.close()
        site.replicas[TWO].answers[T1] = [ErrorCode.NONE]
        site.server = await site.rpc.serve(endpoint, site.writers[TWO].handlers(), {})
        await until(lambda: site.told)

    run(body)


def test_a_deleted_topic_ends_its_part() -> None:
    """Its leader is gone with it."""

    async def body(site: Site) -> None:
        site.replicas[TWO].answers[T1] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
        site.send(site.order("tx", T1))
        await until(lambda: len(site.replicas[TWO].answers[T1]) < 999)
        assert not site.told, "that a leader does not know the partition says nothing: its metadata may be late"
        site.apply(RemoveTopicRecord(T))
        await until(lambda: site.told)

    run(body)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED],
    ids=lambda code: code.name,
)
def test_a_fenced_coordinator_completes_nothing(code: ErrorCode) -> None:
    """Another one has the transaction: whether it is complete is for that one to say."""

    async def body(site: Site) -> None:
        site.replicas[TWO].answers[T1] = [code]
        site.replicas[ONE].answers[T0] = [ErrorCode.NONE]
        site.send(site.order("tx", T0, T1))
        await until(lambda: site.sender.pending == 0)
        await asyncio.sleep(0.1)
        assert site.told == []
        assert site.replicas[TWO].answers[T1] == []

    run(body)


def test_a_marker_that_waits_is_not_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas are slow: the marker is asked for again and again, and stands in the log once."""
    monkeypatch.setattr(marker_writes, "COMMITTED_MS_MAX", 20.0)

    async def body(site: Site) -> None:
        site.send(site.order("slow", T1))
        site.send(site.order("group", G0))
        addressed = await failing(site)
        await until(lambda: site.sender._orders.failures(addressed) > 3)
        assert len(site.replicas[TWO].written) == 2
        site.replicas[TWO].commit()
        await until(lambda: len(site.told) == 2)
        assert len(site.replicas[TWO].written) == 2

    async def failing(site: Site) -> Addressed:
        await until(lambda: site.sender._orders._waiting)
        return next(iter(site.sender._orders._waiting))

    run(body)


def to_write(order: int, producer_id: int = 7) -> MarkerToWrite:
    return MarkerToWrite(order, ProducerId(producer_id), 0, False, 3, 1, (NamedPartition(*T1),))


def test_a_late_copy_is_answered_and_not_written() -> None:
    """Schedule 124: under version 1 the next transaction has the same epoch, and would end by it."""

    async def body(site: Site) -> None:
        writer, replicas = site.writers[TWO], site.replicas[TWO]
        sender = Sender(ONE, BrokerEpoch(11))
        replicas.answers[T1] = [ErrorCode.NONE] * 10
        assert await writer.write(sender, [to_write(1)]) == [ErrorCode.NONE]
        assert await writer.write(sender, [to_write(1)]) == [ErrorCode.NONE]
        assert len(replicas.written) == 1
        assert await writer.write(sender, [to_write(2)]) == [ErrorCode.NONE], "of the next transaction"
        assert await writer.write(Sender(ONE, BrokerEpoch(12)), [to_write(2)]) == [ErrorCode.NONE], "by another process"
        assert len(replicas.written) == 3
        for _ in range(2):
            await writer.write(Sender(TWO, BrokerEpoch(-1)), [to_write(NO_ORDER)])
        assert len(replicas.written) == 5, "an operator has it written as often as it is asked for"

    run(body)


def test_135_a_late_copy_comes_behind_many_markers_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader remembers the last order of each producer, and not each marker: a busy hour of others, and of the
    producer itself, makes it forget nothing. Under version 1 the copy would end the producer's next transaction."""
    monkeypatch.setattr(marker_writes, "REMEMBERED_MAX", 2)

    async def body(site: Site) -> None:
        writer, replicas = site.writers[TWO], site.replicas[TWO]
        sender = Sender(ONE, BrokerEpoch(11))
        replicas.answers[T1] = [ErrorCode.NONE] * 20
        for order in range(1, 6):
            assert await writer.write(sender, [to_write(order)]) == [ErrorCode.NONE]
        for order in range(6, 10):
            await writer.write(sender, [to_write(order, producer_id=8)])
        assert len(replicas.written) == 9
        assert await writer.write(sender, [to_write(1)]) == [ErrorCode.NONE], "of a transaction long before"
        assert await writer.write(sender, [to_write(5)]) == [ErrorCode.NONE]
        assert len(replicas.written) == 9
        await writer.write(sender, [to_write(10, producer_id=9)])
        await writer.write(sender, [to_write(5)])
        assert len(replicas.written) == 11, "of so many producers no more are remembered"

    run(body)


def test_what_was_refused_is_tried_again() -> None:
    """Only a marker that is committed is remembered."""

    async def body(site: Site) -> None:
        writer, replicas = site.writers[TWO], site.replicas[TWO]
        replicas.answers[T1] = [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NONE]
        sender = Sender(ONE, BrokerEpoch(11))
        assert await writer.write(sender, [to_write(1)]) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
        assert await writer.write(sender, [to_write(1)]) == [ErrorCode.NONE]

    run(body)
