"""Produce in transactions over a real socket, with a real coordinator, and WriteTxnMarkers (rules C5 and C16). What
clients say to the coordinator itself is said by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect
from test_kafka_produce import batch, produce, produced, stored

from strandline.cluster.broker import first_appends
from strandline.cluster.broker.request import Action, AllowAll, RequestContext
from strandline.cluster.transactions.commands import Producer
from strandline.log.partition_log import PartitionLog
from strandline.proto.acls import Operation, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.produce import FIRST, LAST

ID = "an-id"
T0 = TopicPartition("t", 0)
V1, V2 = 11, 12
"""Versions of Produce of clients of protocol 1 and 2."""


class Site:
    """A node with a topic, a client, and a producer of one transactional id."""

    def __init__(self, node: KafkaNode, client: KafkaClient, producer: Producer) -> None:
        self.node = node
        self.client = client
        self.producer = producer
        self.sequence = 0
        self.asked = 0

    @property
    def log(self) -> PartitionLog:
        partition = self.node.replicas.partition(T0)
        assert partition is not None
        assert partition.log is not None
        return partition.log

    def records(self, sequence: int | None = None, **options: Any) -> bytes:
        """One record of the producer's transaction."""
        of = {"producer_id": self.producer.producer_id, "producer_epoch": self.producer.epoch, "transactional": True}
        return batch(b"x", **{**of, "base_sequence": self.sequence if sequence is None else sequence, **options})

    async def produced(self, version: int, sequence: int | None = None, **options: Any) -> Any:
        raw = self.records(sequence, **options)
        return await produced(self.client, version, "t", {0: raw}, transactional_id=ID)

    async def add(self, *partitions: TopicPartition) -> None:
        await self.node.transactions.add_partitions(ID, *self.producer, frozenset(partitions or (T0,)))

    async def end(self, *, commit: bool = False, version: int = 2) -> None:
        self.producer = await self.node.transactions.end(ID, *self.producer, commit=commit, version=version)

    async def ended(self, **options: Any) -> None:
        """End, and wait until the transaction is complete."""
        await self.end(**options)
        await until(lambda: not self.node.markers.pending)

    def answers_with(
        self, meddle: Callable[[Mapping[TopicPartition, ErrorCode]], Awaitable[Mapping[TopicPartition, ErrorCode]]]
    ) -> None:
        """What the coordinator answers goes through `meddle`."""
        verifier, ask = self.node.verifier, self.node.verifier.verify

        async def verify(*asked: Any, add: bool) -> Mapping[TopicPartition, ErrorCode]:
            self.asked += 1
            return await meddle(await ask(*asked, add=add))

        verifier.verify = verify  # type: ignore[method-assign]

    def answers(self, *codes: ErrorCode) -> None:
        """One after the other; the last one again and again."""
        left = list(codes)

        async def meddle(found: Mapping[TopicPartition, ErrorCode]) -> Mapping[TopicPartition, ErrorCode]:
            code = left.pop(0) if len(left) > 1 else left[0]
            return dict.fromkeys(found, code)

        self.answers_with(meddle)

    def counted(self) -> None:
        """Count the questions."""

        async def as_it_is(found: Mapping[TopicPartition, ErrorCode]) -> Mapping[TopicPartition, ErrorCode]:
            return found

        self.answers_with(as_it_is)


async def begun(node: KafkaNode) -> Producer:
    """The producer of the id, once the coordinator's log is made."""
    while True:
        try:
            return await node.transactions.init_producer_id(ID, 60_000)
        except KafkaError as error:
            if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            await asyncio.sleep(0.01)


def run(path: Path, body: Callable[[Site], Awaitable[None]], *, level: int = 2) -> None:
    async def main() -> None:
        async with kafka_node(path, transactions=level) as node, connect(node.listener.endpoint) as client:
            node.create_topic("t", 2)
            await node.transactions.ensure_topic()
            async with asyncio.timeout(20):
                await body(Site(node, client, await begun(node)))

    asyncio.run(main())


def test_transactions_of_protocol_2(tmp_path: Path) -> None:
    """The leader adds the partition with the first batch, and asks nobody about the next ones."""

    async def body(site: Site) -> None:
        site.counted()
        assert (await site.produced(V2)).error_code == 0
        assert (await site.produced(V2, 1)).error_code == 0
        assert site.asked == 1
        [open_one] = site.log.open_transactions()
        assert (open_one.producer_id, open_one.first_offset) == (site.producer.producer_id, 0)
        assert (await site.node.transactions.describe(ID)).partitions == frozenset({T0})
        epoch = site.producer.epoch
        await site.ended(commit=True)
        assert site.producer.epoch == epoch + 1
        assert (site.log.open_transactions(), site.log.log_end_offset) == ([], 3)

    run(tmp_path, body)


def test_transactions_of_protocol_1(tmp_path: Path) -> None:
    """The client adds the partition, the leader only looks; so clients before Kafka 4 run on a cluster of level 2."""

    async def body(site: Site) -> None:
        for round_ in range(3):
            refused = await site.produced(V1, round_)
            assert refused.error_code == ErrorCode.TRANSACTION_ABORTABLE
            assert refused.error_message is not None
            assert ID in refused.error_message
            assert (await site.produced(10, round_)).error_code == ErrorCode.INVALID_TXN_STATE
            await site.add()
            for version in (FIRST, 10, V1):
                result = await site.produced(version, round_)
                assert (result.error_code, result.base_offset) == (0, round_ * 2), "a retry is a duplicate"
            await site.ended(commit=bool(round_ % 2), version=1)
            assert site.producer.epoch == 0
        assert site.log.log_end_offset == 6

    run(tmp_path, body)


@pytest.mark.parametrize("bug", ["KAFKA-14402", "KAFKA-14561"])
def test_a_late_batch_begins_no_transaction(tmp_path: Path, bug: str) -> None:
    """A batch comes when its transaction was aborted: nobody would ever end the one that it began. With protocol 2 its
    epoch is over; with 1, which KAFKA-14561 is about, the coordinator is asked."""

    async def body(site: Site) -> None:
        version = V2 if bug == "KAFKA-14402" else V1
        if version == V1:
            await site.add()
        late = site.records(1)
        assert (await site.produced(version)).error_code == 0
        await site.ended(version=2 if version == V2 else 1)
        end = site.log.log_end_offset
        site.counted()
        result = await produced(site.client, version, "t", {0: late}, transactional_id=ID)
        expected = ErrorCode.INVALID_PRODUCER_EPOCH if version == V2 else ErrorCode.TRANSACTION_ABORTABLE
        assert result.error_code == expected
        assert bool(site.asked) == (version == V1), "of an older epoch nobody is asked (KAFKA-18042)"
        assert (site.log.log_end_offset, site.log.open_transactions()) == (end, [])

    run(tmp_path, body)


def test_34_an_abort_between_the_answer_and_the_append(tmp_path: Path) -> None:
    """Schedule 34: the coordinator lets the batch in, and aborts before the leader hears of it."""

    async def body(site: Site) -> None:
        answered, go_on = asyncio.Event(), asyncio.Event()

        async def late(found: Mapping[TopicPartition, ErrorCode]) -> Mapping[TopicPartition, ErrorCode]:
            answered.set()
            await go_on.wait()
            return found

        site.answers_with(late)
        await site.add()
        asking = asyncio.ensure_future(site.produced(V1))
        await answered.wait()
        await site.ended(version=1)
        go_on.set()
        assert (await asking).error_code == ErrorCode.INVALID_TXN_STATE
        assert (site.log.log_end_offset, site.log.open_transactions()) == (1, []), "the marker alone"

    run(tmp_path, body)


def test_126_batches_behind_the_first_one(tmp_path: Path) -> None:
    """Schedule 126, KAFKA-14884: while the coordinator is asked, nothing of the connection passes the first batch; and
    what comes by another one is refused until that is written."""

    async def body(site: Site) -> None:
        answered, go_on = asyncio.Event(), asyncio.Event()

        async def late(found: Mapping[TopicPartition, ErrorCode]) -> Mapping[TopicPartition, ErrorCode]:
            if site.asked == 1:
                answered.set()
                await go_on.wait()
            return found

        site.answers_with(late)
        sent = [produce(site.client, V2, "t", {0: site.records(number)}, transactional_id=ID) for number in range(4)]
        await answered.wait()
        async with connect(site.node.listener.endpoint) as other:
            behind = await produced(other, V2, "t", {0: site.records(2)}, transactional_id=ID)
            assert behind.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "what is behind the first one comes again"
            assert site.log.log_end_offset == 0
            go_on.set()
            for number, one in enumerate(sent):
                result = (await site.client.receive(one)).responses[0].partition_responses[0]
                assert (result.error_code, result.base_offset) == (0, number)
            again = await produced(other, V2, "t", {0: site.records(2)}, transactional_id=ID)
            assert (again.error_code, again.base_offset) == (0, 2)
        assert site.log.log_end_offset == 4

    run(tmp_path, body)


def test_the_next_transaction_begins_while_the_last_one_completes(tmp_path: Path) -> None:
    """KAFKA-18654, KAFKA-18575: EndTxn is answered at the decision, so that the next batch comes before the markers
    are written. The broker asks again; the client sees nothing of it."""

    async def body(site: Site) -> None:
        for _ in range(5):
            for sequence in range(2):
                assert (await site.produced(V2, sequence)).error_code == 0
            await site.end(commit=True)
        await until(lambda: not site.node.markers.pending)
        assert (site.log.log_end_offset, site.log.open_transactions()) == (15, [])

    run(tmp_path, body)


def test_a_change_under_way_holds_up_no_verification(tmp_path: Path) -> None:
    """KAFKA-14904: while another partition is being added, those that are in the transaction are verified."""

    async def body(site: Site) -> None:
        seen: list[ErrorCode] = []

        async def note(found: Mapping[TopicPartition, ErrorCode]) -> Mapping[TopicPartition, ErrorCode]:
            seen.extend(found.values())
            return found

        site.answers_with(note)
        for number in range(5):
            await site.add()
            sent = [site.produced(V1, number), site.add(TopicPartition("t", 1))]
            result, _ = await asyncio.gather(*sent)
            assert result.error_code == 0
            await site.ended(commit=True, version=1)
            await until(lambda: site.log.log_end_offset % 2 == 0)
            while (await site.node.transactions.describe(ID)).state.is_prepared:
                await asyncio.sleep(0)
        assert seen == [ErrorCode.NONE] * 5

    run(tmp_path, body)


def test_a_coordinator_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the request's time it is asked again and again; then the client hears of it, by its version
    (KAFKA-18662)."""
    monkeypatch.setattr(first_appends, "AGAIN_MS_MAX", 100.0)

    async def body(site: Site) -> None:
        site.answers(ErrorCode.CONCURRENT_TRANSACTIONS)
        assert (await site.produced(V2)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert site.asked > 2
        assert (await site.produced(V1)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        site.answers(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE)
        assert (await site.produced(V2)).error_code == 0

    run(tmp_path, body)


def test_a_coordinator_that_is_away(tmp_path: Path) -> None:
    """The client sends again without new metadata, and what it has sent behind waits for that."""

    async def body(site: Site) -> None:
        site.answers(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE)
        assert (await site.produced(V2, 0)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await site.produced(V2, 1)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await site.produced(V2, 0)).error_code == 0
        assert (await site.produced(V2, 1)).error_code == 0

    run(tmp_path, body)


def test_what_a_client_may_not_write(tmp_path: Path) -> None:
    """Another producer beside its own, batches without a sequence, a transaction without its id."""

    async def body(site: Site) -> None:
        site.counted()
        two = {0: site.records(), 1: site.records(producer_id=site.producer.producer_id + 1)}
        answer = await site.client.receive(produce(site.client, V2, "t", two, transactional_id=ID))
        codes = [one.error_code for one in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert (await site.produced(V2, -1)).error_code == ErrorCode.INVALID_RECORD
        assert site.asked == 0
        for _ in range(2):  # before its transaction is open, and while it is
            for version in (FIRST, V1, V2):
                result = await produced(site.client, version, "t", {0: site.records(1)})
                assert result.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert (await site.produced(V2)).error_code == 0
        assert site.log.log_end_offset == 1
        plain = site.records(1, transactional=False)
        outside = await produced(site.client, V2, "t", {0: plain})
        assert outside.error_code == ErrorCode.INVALID_TXN_STATE, "a batch outside of the transaction that is open"

    run(tmp_path, body)


class Denies(AllowAll):
    """Denies one operation on resources of a kind."""

    def __init__(self, operation: Operation, kind: ResourceKind) -> None:
        self._denied = operation, kind

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        return [(operation, resource.kind) != self._denied for operation, resource in actions]


def test_rights(tmp_path: Path) -> None:
    """WRITE on the transactional id; and a topic that may not be written gets into no transaction."""

    async def body(site: Site) -> None:
        site.counted()
        site.node.authorizer.chosen = Denies(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID)
        assert (await site.produced(V2)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        site.node.authorizer.chosen = Denies(Operation.WRITE, ResourceKind.TOPIC)
        assert (await site.produced(V2)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert site.asked == 0

    run(tmp_path, body)


def test_there_are_no_transactions_before_the_level(tmp_path: Path) -> None:
    """A cluster whose builds were replaced has none until the level is raised."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as client:
            node.create_topic("t")
            raw = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
            for version in range(FIRST, LAST):
                result = await produced(client, version, "t", {0: raw}, transactional_id=ID)
                assert result.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            answer = await client.ask("write_txn_markers", 1, **markers(1, 0))
            [[[one]]] = [[topic.partitions for topic in marker.topics] for marker in answer.markers]
            assert one.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert stored(node, "t") == b""

    asyncio.run(main())


# Markers by an operator


def markers(producer_id: int, epoch: int, *topics: tuple[str, int], coordinator_epoch: int = 0, **more: Any) -> Any:
    named = [{"name": name, "partition_indexes": (number,)} for name, number in topics or (("t", 0),)]
    whose = {"producer_id": producer_id, "producer_epoch": epoch, "coordinator_epoch": coordinator_epoch}
    return {"markers": [{**whose, "transaction_result": False, "topics": named, "transaction_version": 1, **more}]}


async def written(client: KafkaClient, version: int, wanted: Any) -> list[ErrorCode]:
    answer = await client.ask("write_txn_markers", version, **wanted)
    return [one.error_code for marker in answer.markers for topic in marker.topics for one in topic.partitions]


def test_an_operator_ends_what_hangs(tmp_path: Path) -> None:
    """In both versions; DescribeProducers says what is open, and of which coordinator the last marker was."""

    async def described(site: Site) -> Any:
        topics = [{"name": "t", "partition_indexes": (0,)}]
        answer = await site.client.ask("describe_producers", 0, topics=topics)
        [[[found]]] = [[one.active_producers for one in topic.partitions] for topic in answer.topics]
        return found

    async def body(site: Site) -> None:
        whose = site.producer.producer_id
        for version in (1, 2):
            assert (await site.produced(V2, version - 1)).error_code == 0
            found = await described(site)
            assert found.current_txn_start_offset == 2 * (version - 1)
            assert found.coordinator_epoch == (-1 if version == 1 else 6)
            assert found.last_sequence == version - 1
            wanted = markers(whose, site.producer.epoch, coordinator_epoch=5 + version)
            assert await written(site.client, version, wanted) == [ErrorCode.NONE]
            found = await described(site)
            assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 5 + version)
            assert site.log.open_transactions() == []
        older = markers(whose, site.producer.epoch, coordinator_epoch=3)
        assert await written(site.client, 1, older) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]

    run(tmp_path, body)


def test_a_marker_says_by_which_protocol_the_transaction_ends(tmp_path: Path) -> None:
    """KIP-1228: with protocol 2 the marker's epoch is above that of the data, or it is of the transaction before."""

    async def body(site: Site) -> None:
        whose, epoch = site.producer.producer_id, site.producer.epoch
        assert (await site.produced(V2)).error_code == 0
        second = markers(whose, epoch, coordinator_epoch=9, transaction_version=2)
        assert await written(site.client, 2, second) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert len(site.log.open_transactions()) == 1
        right = markers(whose, epoch + 1, coordinator_epoch=9, transaction_version=2)
        assert await written(site.client, 2, right) == [ErrorCode.NONE]
        assert await written(site.client, 2, right) == [ErrorCode.NONE], "a repetition is one (KAFKA-19999)"
        assert site.log.open_transactions() == []

    run(tmp_path, body)


def test_where_an_operator_may_write_markers(tmp_path: Path) -> None:
    """Not where no partition is, not into the coordinator's own log; rights are those of the cluster."""

    async def body(site: Site) -> None:
        topics = (("t", 0), ("t", 7), ("none", 0), ("__transaction_state", 0), ("t", 1))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        expected = [ErrorCode.NONE, unknown, unknown, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]
        assert await written(site.client, 2, markers(4, 0, *topics)) == expected
        assert await written(site.client, 2, {"markers": ()}) == []
        site.node.authorizer.chosen = Denies(Operation.ALTER, ResourceKind.CLUSTER)
        assert await written(site.client, 2, markers(4, 0)) == [ErrorCode.NONE], "CLUSTER_ACTION is enough"

    run(tmp_path, body)
