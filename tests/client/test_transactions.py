"""A producer's transactions among faults, in virtual time, under both protocols (rule C19)."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.errors import (
    ClientError,
    DeliveryTimeout,
    OutcomeUnknown,
    ProducerFenced,
    TopicReplaced,
    TransactionAbortable,
    TransactionFatal,
    UnknownTopic,
)
from strandline.client.groups.commits import Progress
from strandline.client.transactions import TransactionState
from strandline.client.types import GroupMetadata, OffsetAndMetadata
from strandline.log.batch import Record, build_batch, decode_records, parse_header, verify_crc, with_producer
from strandline.log.compression import Codec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from tests.client.broker import BOOTSTRAP, Act, drawn, play
from tests.client.transactional import NAME, OlderCluster, TransactionalCluster

WHERE = TopicPartition("t", 0)
KINDS = pytest.mark.parametrize("kind", [OlderCluster, TransactionalCluster])


def producer(ports: Ports, **settings: Any) -> Producer:
    return Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, transactional_id=NAME, **settings)


async def send(sender: Producer, *values: bytes, partition: int = 0) -> list[asyncio.Future[Any]]:
    return [await sender.send("t", value, partition=partition) for value in values]


@KINDS
def test_a_block_counts_whole_or_not_at_all(kind: type[TransactionalCluster]) -> None:
    """What was flushed before the abort is in the log, and in no committed transaction; what was not is not sent."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        async with producer(ports) as sender:
            async with sender.transaction():
                await send(sender, b"a", b"b")
                await send(sender, b"c", partition=1)
            unsent: list[asyncio.Future[Any]] = []

            async def fail() -> None:
                async with sender.transaction():
                    await send(sender, b"d")
                    await sender.flush()
                    unsent.extend(await send(sender, b"e"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            with pytest.raises(TransactionAbortable):
                await unsent[0]
            async with sender.transaction():
                await send(sender, b"f")
            async with sender.transaction():
                pass  # of an empty one the coordinator hears nothing
        assert sorted(cluster.committed) == [b"a", b"b", b"c", b"f"]
        assert [one.values for one in cluster.ended if not one.committed] == [[b"d"]]
        assert [one.epoch for one in cluster.ended] == ([0, 1, 2] if cluster.protocol == 2 else [0, 0, 0])
        assert cluster.requests[Api.ADD_PARTITIONS_TO_TXN] == (0 if cluster.protocol == 2 else 4)
        assert not cluster.outside

    play(scenario, {"t": 2}, kind=kind)


@KINDS
def test_sends_belong_to_a_transaction(kind: type[TransactionalCluster]) -> None:
    """Outside of one there is no send, and no commit; two are not open at once."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        async with producer(ports) as sender:
            with pytest.raises(ClientError, match="no transaction was begun"):
                await send(sender, b"a")
            both = await asyncio.gather(sender.begin_transaction(), sender.begin_transaction(), return_exceptions=True)
            assert [str(one) for one in both if one is not None] == ["begin_transaction: a transaction is open"]
            with pytest.raises(ClientError, match="a transaction is open"):
                await sender.begin_transaction()
            await send(sender, b"b")
            await sender.commit_transaction()
            for call in (sender.commit_transaction, sender.abort_transaction, lambda: send(sender, b"c")):
                with pytest.raises(ClientError, match="no transaction is open"):
                    await call()
        assert cluster.committed == [b"b"]
        async with Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng) as plain:
            with pytest.raises(ConfigError, match=r"transactional\.id"):
                await plain.begin_transaction()

    play(scenario, {"t": 1}, kind=kind)


@KINDS
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_an_end_without_an_answer_is_asked_again(kind: type[TransactionalCluster], lost: str) -> None:
    """The coordinator has committed, or not, and says so to the same request."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        acts = [Act(apply=lost == "answer", answer=False), Act(error=ErrorCode.CONCURRENT_TRANSACTIONS, apply=False)]
        cluster.on_end = lambda _: acts.pop(0) if acts else Act()
        async with producer(ports) as sender:
            async with sender.transaction():
                await send(sender, b"a")
            async with sender.transaction():
                await send(sender, b"b")
        assert [one.values for one in cluster.ended] == [[b"a"], [b"b"]]
        assert cluster.committed == [b"a", b"b"]

    play(scenario, {"t": 1}, kind=kind)


@KINDS
def test_a_lost_batch_leaves_no_gap_in_the_next_transaction(kind: type[TransactionalCluster]) -> None:
    """Its sequences are used up, and the log has none of them: the next transaction begins at 0 under another epoch."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        settings = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 900, "linger_ms": 0}
        async with producer(ports, **settings) as sender:
            async with sender.transaction():
                await send(sender, b"a")
            cluster.on_produce = lambda _: Act(apply=False, error=ErrorCode.NOT_ENOUGH_REPLICAS)
            with pytest.raises(TransactionAbortable) as told:
                async with sender.transaction():
                    await send(sender, b"lost")
            assert isinstance(told.value.__cause__, DeliveryTimeout)
            cluster.on_produce = lambda _: Act()
            for value in (b"b", b"c"):
                async with sender.transaction():
                    await send(sender, value)
        assert cluster.committed == [b"a", b"b", b"c"]

    play(scenario, {"t": 1}, kind=kind)


@KINDS
@pytest.mark.parametrize("seed", range(8))
def test_transactions_are_whole_and_in_order_among_faults(kind: type[TransactionalCluster], seed: int) -> None:
    """Requests and answers are lost, of leaders and of the coordinator, leaders move, and some blocks fail: what the
    producer was told to be committed is, whole, in its order; nothing else is."""
    rng = random.Random(seed)
    told: list[bytes] = []
    cluster_at_the_end: list[bytes] = []

    def end(_: bool) -> Act:
        dice = rng.random()
        if dice < 0.1:
            return Act(answer=False)
        if dice < 0.2:
            return Act(apply=False, answer=False)
        if dice < 0.4:
            return Act(apply=False, error=rng.choice([ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]))
        return Act()

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        chances = {"lost_before": 0.04, "lost_after": 0.06, "error_after": 0.06, "error_before": 0.05, "slow": 0.2}
        cluster.on_produce = drawn(rng, chances)
        cluster.on_end = end
        cluster.on_question = lambda _: Act(apply=rng.random() < 0.5, answer=rng.random() > 0.1)
        offset = 0
        async with producer(ports, batch_size=60, linger_ms=1, request_timeout_ms=2_000) as sender:
            for block in range(25):
                values = [b"%d-%d" % (block, number) for number in range(rng.randint(1, 30))]
                fails = rng.random() < 0.2
                try:
                    async with sender.transaction():
                        for value in values:
                            await send(sender, value)
                            if rng.random() < 0.05:
                                cluster.move(WHERE, rng.randint(1, 3))
                            if rng.random() < 0.1:
                                await asyncio.sleep(rng.uniform(0, 0.05))
                        if rng.random() < 0.5:
                            await sender.send_offsets_to_transaction({("in", 0): block}, GroupMetadata("g"))
                        if fails:
                            raise ZeroDivisionError
                        offset = max(offset, cluster.offsets.get(TopicPartition("in", 0), 0))
                    told.extend(values)
                except (ZeroDivisionError, TransactionAbortable):
                    assert fails
                if rng.random() < 0.3 and cluster.late and cluster.protocol == 1:
                    cluster.end(*cluster.late.pop(0))
        assert cluster.committed == told
        assert offset == max(one.offsets.get(TopicPartition("in", 0), 0) for one in cluster.ended if one.committed)
        cluster_at_the_end.extend(cluster.committed)

    play(scenario, {"t": 1}, kind=kind, seed=seed)
    assert len(cluster_at_the_end) > 50


@KINDS
def test_an_abort_is_not_held_up_by_an_election(kind: type[TransactionalCluster]) -> None:
    """What the old leader has not answered is sent nowhere else: nobody would answer it in `delivery.timeout.ms`."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        async with producer(ports, linger_ms=0, metadata_max_age_ms=300) as sender:
            async with sender.transaction():
                await send(sender, b"a")
            await sender.begin_transaction()
            await send(sender, b"b")
            await sender.flush()
            leader = cluster.partitions[WHERE].leader
            cluster.silent_nodes.add(leader)
            await send(sender, b"c")
            await asyncio.sleep(0.1)
            abort = asyncio.get_running_loop().create_task(sender.abort_transaction())
            await asyncio.sleep(0.1)
            cluster.move(WHERE, leader % 3 + 1)
            async with asyncio.timeout(5):
                await abort
            async with sender.transaction():
                await send(sender, b"d")
        assert cluster.committed == [b"a", b"d"]

    play(scenario, {"t": 1}, kind=kind)


@KINDS
def test_a_newer_producer_fences_this_one(kind: type[TransactionalCluster]) -> None:
    """Its open transaction is aborted; every call says so from then on, and a close does no harm."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        first, second = producer(ports), producer(ports)
        await first.begin_transaction()
        await send(first, b"a")
        await first.flush()
        async with second.transaction():
            await send(second, b"b")
        with pytest.raises(ProducerFenced, match="newer producer"):
            await first.commit_transaction()
        assert first.transaction_state is TransactionState.FATAL
        for call in (first.begin_transaction, first.abort_transaction, lambda: send(first, b"c")):
            with pytest.raises(TransactionFatal):
                await call()
        await first.close()
        await second.close()
        assert cluster.committed == [b"b"]

    play(scenario, {"t": 1}, kind=kind)


@KINDS
@pytest.mark.parametrize("ends_meanwhile", [False, True])
def test_a_caller_that_gives_up_does_not_stop_a_commit(kind: type[TransactionalCluster], ends_meanwhile: bool) -> None:
    """The limit ends, or the caller is cancelled: nothing else can be done; the next call waits for the same end."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        slow = [True]
        cluster.on_end = lambda _: Act(apply=False, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) if slow else Act()
        async with producer(ports, max_block_ms=500) as sender:
            await sender.begin_transaction()
            await send(sender, b"a")
            with pytest.raises(OutcomeUnknown, match="call it again") as told:
                await sender.commit_transaction()
            assert isinstance(told.value.last_error, KafkaError)
            with pytest.raises(ClientError, match="the commit is under way"):
                await sender.abort_transaction()
            with pytest.raises(ClientError, match="is being committed"):
                await sender.begin_transaction()
            again = asyncio.get_running_loop().create_task(sender.commit_transaction())
            await asyncio.sleep(0.1)
            again.cancel()
            await asyncio.wait([again])
            assert sender.transaction_state is TransactionState.COMMITTING
            slow.clear()
            if ends_meanwhile:
                await asyncio.sleep(5)
                assert sender.transaction_state is TransactionState.READY
            await sender.commit_transaction()
            with pytest.raises(ClientError, match="no transaction is open"):
                await sender.commit_transaction()
            async with sender.transaction():
                await send(sender, b"b")
        assert cluster.committed == [b"a", b"b"]

    play(scenario, {"t": 1}, kind=kind)


@KINDS
def test_a_close_aborts_what_is_open(kind: type[TransactionalCluster]) -> None:
    """Nobody committed it."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        sender = producer(ports)
        await sender.begin_transaction()
        await send(sender, b"a")
        await sender.flush()
        await sender.close()
        assert [one.committed for one in cluster.ended] == [False]

    play(scenario, {"t": 1}, kind=kind)


@KINDS
def test_offsets_are_committed_with_the_transaction(kind: type[TransactionalCluster]) -> None:
    """Or not at all: where the group has moved on, the transaction is to be aborted."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        group = GroupMetadata("g", 3, "member")
        async with producer(ports) as sender:
            async with sender.transaction():
                await send(sender, b"a")
                await sender.send_offsets_to_transaction({("in", 0): 7}, group)
            async with sender.transaction():  # of offsets alone
                await sender.send_offsets_to_transaction({("in", 1): OffsetAndMetadata(9)}, group)
            cluster.on_offsets = lambda: ErrorCode.ILLEGAL_GENERATION
            await sender.begin_transaction()
            await send(sender, b"b")
            with pytest.raises(TransactionAbortable, match="ILLEGAL_GENERATION"):
                await sender.send_offsets_to_transaction({("in", 0): 8}, group)
            with pytest.raises(TransactionAbortable, match="ILLEGAL_GENERATION"):
                await sender.commit_transaction()
            await sender.abort_transaction()
            cluster.on_offsets = lambda: ErrorCode.NONE
            async with sender.transaction():
                await send(sender, b"c")
        assert cluster.committed == [b"a", b"c"]
        told = [one.offsets for one in cluster.ended if one.committed]
        assert told == [{TopicPartition("in", 0): 7}, {TopicPartition("in", 1): 9}, {}]

    play(scenario, {"t": 1}, kind=kind)


def test_offsets_of_a_topic_that_is_gone_are_not_its_successors() -> None:
    """KIP-1319: an offset that says whose records it counts goes by the topic's id. Where another topic has the name,
    or none has it, the transaction is to be aborted."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        group, mine, other = GroupMetadata("g", 3, "member"), cluster.topic_ids["in"], UUID(int=99)
        async with producer(ports) as sender:
            async with sender.transaction():
                offsets = {("in", 0): OffsetAndMetadata(7, topic_id=mine), ("t", 0): OffsetAndMetadata(8)}
                await sender.send_offsets_to_transaction(offsets, group)
            cluster.topic_ids["in"] = other
            await sender.begin_transaction()
            with pytest.raises(TransactionAbortable) as caught:
                await sender.send_offsets_to_transaction({("in", 0): OffsetAndMetadata(9, topic_id=mine)}, group)
            assert isinstance(caught.value.__cause__, TopicReplaced)
            await sender.abort_transaction()
            async with sender.transaction():
                await sender.send_offsets_to_transaction({("in", 0): OffsetAndMetadata(1, topic_id=other)}, group)
            del cluster.topic_ids["in"]
            await sender.begin_transaction()
            with pytest.raises(TransactionAbortable) as caught:
                await sender.send_offsets_to_transaction({("in", 0): OffsetAndMetadata(2, topic_id=other)}, group)
            assert isinstance(caught.value.__cause__, UnknownTopic)
            await sender.abort_transaction()
        told = [one.offsets for one in cluster.ended if one.committed]
        assert told == [{TopicPartition("in", 0): 7, TopicPartition("t", 0): 8}, {TopicPartition("in", 0): 1}]

    play(scenario, {"t": 1, "in": 1}, kind=TransactionalCluster)


@pytest.mark.parametrize(
    ("code", "fatal"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, False),  # the coordinator says what it means
        (ErrorCode.TRANSACTION_ABORTABLE, False),
        (ErrorCode.INVALID_TXN_STATE, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False),
        (ErrorCode.PRODUCER_FENCED, True),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, True),
    ],
)
@KINDS
def test_errors_of_leaders_are_abortable_or_fatal(
    kind: type[TransactionalCluster], code: ErrorCode, fatal: bool
) -> None:
    """KIP-1050: after an abort the producer goes on, or can do nothing more."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        async with producer(ports) as sender:
            cluster.on_produce = lambda _: Act(apply=False, error=code)
            with pytest.raises(TransactionFatal if fatal else TransactionAbortable, match=code.name):
                async with sender.transaction():
                    await send(sender, b"a")
            cluster.on_produce = lambda _: Act()
            if not fatal:
                async with sender.transaction():
                    await send(sender, b"b")
        assert cluster.committed == ([] if fatal else [b"b"])

    play(scenario, {"t": 1}, kind=kind)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_sent_as_part_of_this_producers_transaction_or_of_none(codec: Codec) -> None:
    """A copy of another producer's transaction, say, goes out as plain records; the CRC is that of what is sent."""
    made = build_batch([Record(0, 1, b"k", b"v")], codec=codec, producer_id=7, producer_epoch=1, transactional=True)
    for transactional in (False, True):
        sent = with_producer(made, 8, 2, 5, transactional)
        header = parse_header(sent)
        assert (header.is_transactional, header.codec) == (transactional, codec)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, 5)
        verify_crc(sent)
        assert [record.value for record in decode_records(sent)] == [b"v"]


def test_offsets_of_transactions_are_not_committed_anew_beside_them() -> None:
    """The renewal of an unchanged offset (schedule 65) could pass the transaction's own, and would win over it."""
    progress = Progress()
    progress.take_up(WHERE)
    progress.was_committed(WHERE, 5)
    assert progress.known_committed(found_too=False) == {WHERE: 5}
    progress.leave_to_transactions([WHERE])
    progress.was_committed(WHERE, 6, by_transaction=True)
    assert progress.known_committed(found_too=False) == {}
