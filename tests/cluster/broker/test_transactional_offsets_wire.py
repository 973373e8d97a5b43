"""TxnOffsetCommit (28) and what readers of offsets see of it, on a node whose cluster serves transactions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_case import run, versions
from kafka_node import KafkaNode
from kafka_wire import KafkaClient, connect, frame
from test_groups_wire import NOT_YET, UNKNOWN_ID, found, stable

from strandline.proto.error_codes import ErrorCode

ADDS_SINCE = 5
ABORTABLE_SINCE = 4
BY_ID_SINCE = 6


def run_with(path: Path, main: Callable[[KafkaNode, KafkaClient], Awaitable[None]]) -> None:
    run(path, main, transactions=2)


async def answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of a coordinator that serves."""
    for _ in range(500):
        answer = await ask()
        if answer.error_code not in (*NOT_YET, ErrorCode.CONCURRENT_TRANSACTIONS):
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(answer)


class TransactionalProducer:
    """A producer, as far as the coordinators of its id and of its group go."""

    def __init__(self, client: KafkaClient, version: int) -> None:
        self.client = client
        self.version = version
        self.producer_id = self.epoch = -1
        self.topics = {"none": UNKNOWN_ID}
        """Ids, by name; for requests that have them."""

    async def begin(self) -> None:
        await self.client.ask("find_coordinator", 6, key_type=1, coordinator_keys=("tx",))
        answer = await answered(
            lambda: self.client.ask(
                "init_producer_id",
                4,
                transactional_id="tx",
                transaction_timeout=60_000,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
            )
        )
        assert answer.error_code == 0, answer
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    @property
    def whose(self) -> dict[str, Any]:
        return {"transactional_id": "tx", "producer_id": self.producer_id, "producer_epoch": self.epoch}

    async def add(self) -> None:
        """AddOffsetsToTxn, from those that send it."""
        if self.version < ADDS_SINCE:
            answer = await answered(lambda: self.client.ask("add_offsets_to_txn", 3, group_id="g", **self.whose))
            assert answer.error_code == 0, answer

    async def commit(self, offset: int, **values: Any) -> ErrorCode:
        """TxnOffsetCommit, once more where its connection is of before the coordinator's leadership, or an abort."""
        error = await self.commit_once(offset, **values)
        return await self.commit_once(offset, **values) if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error

    async def commit_once(self, offset: int, *, topic: str = "t", **values: Any) -> ErrorCode:
        one = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": 1, "committed_metadata": "x"}
        asked = {
            "group_id": "g",
            "topics": [{"name": topic, "topic_id": self.topics.get(topic), "partitions": [one]}],
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            **self.whose,
            **values,
        }
        answer = await self.client.ask("txn_offset_commit", self.version, **asked)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def end(self, *, committed: bool) -> None:
        version = 5 if self.version >= ADDS_SINCE else 4
        answer = await answered(lambda: self.client.ask("end_txn", version, committed=committed, **self.whose))
        assert answer.error_code == 0, answer
        if version == 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch


async def fetched(client: KafkaClient, *, stable: bool) -> tuple[int, ErrorCode]:
    """(offset, error) of t-0."""
    asked = [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": (0,)}], "member_id": None}]
    answer = await client.ask("offset_fetch", 8, groups=asked, require_stable=stable)
    (one,) = answer.groups[0].topics[0].partitions
    return one.committed_offset, ErrorCode(one.error_code)


async def settled(client: KafkaClient) -> int:
    """The offset once no transaction is open: the marker comes a moment behind the answer of EndTxn."""
    for _ in range(500):
        offset, error = await fetched(client, stable=True)
        if error is ErrorCode.NONE:
            return offset
        assert error is ErrorCode.UNSTABLE_OFFSET_COMMIT
        await asyncio.sleep(0.01)
    raise AssertionError("unstable for ever")


@pytest.mark.parametrize("version", versions("TxnOffsetCommit"))
def test_txn_offset_commit(tmp_path: Path, version: int) -> None:
    """Committed, then aborted. From version 5 on nobody adds the group to the transaction but this request, and from
    version 6 on topics go by their ids."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t")
        await found(client)
        producer = TransactionalProducer(client, version)
        producer.topics["t"] = topic_id
        await producer.begin()
        await producer.add()
        assert await producer.commit(5) is ErrorCode.NONE
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < BY_ID_SINCE else ErrorCode.UNKNOWN_TOPIC_ID
        assert await producer.commit(5, topic="none") is unknown
        assert await fetched(client, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert await fetched(client, stable=False) == (-1, ErrorCode.NONE)
        whole = await client.ask("offset_fetch", 7, group_id="g", topics=None, require_stable=True)
        assert whole.topics[0].partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        await producer.end(committed=True)
        assert await settled(client) == 5
        await producer.add()
        assert await producer.commit(9) is ErrorCode.NONE
        assert await fetched(client, stable=False) == (5, ErrorCode.NONE)
        await producer.end(committed=False)
        assert await settled(client) == 5

    run_with(tmp_path, main)


def test_offsets_by_an_older_connection_close_it(tmp_path: Path) -> None:
    """The first protocol: they get no answer, and count for nothing. Behind an abort a client is told to ask again."""

    async def main(node: KafkaNode, first: KafkaClient) -> None:
        node.create_topic("t")
        await found(first)
        producer = TransactionalProducer(first, 4)
        await producer.begin()
        await producer.add()
        async with connect(node.listener.endpoint) as second:
            producer.client = second
            await producer.add()
            assert await producer.commit(5) is ErrorCode.NONE
            producer.client = first
            with pytest.raises(asyncio.IncompleteReadError):
                await producer.commit(3)
            producer.client = second
            await producer.end(committed=False)
            await producer.add()
            assert await producer.commit_once(7) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await producer.commit_once(7) is ErrorCode.NONE
            await producer.end(committed=True)
            assert await settled(second) == 7

    run_with(tmp_path, main)


def test_topic_ids_byte_by_byte(tmp_path: Path) -> None:
    """KIP-1319, written and read by hand: a topic that there is, one that there is not, and none (an id of zeros)."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        ids = (node.create_topic("t"), UNKNOWN_ID, UUID(int=0))
        await found(client)
        producer = TransactionalProducer(client, BY_ID_SINCE)
        await producer.begin()
        offset = b"\x02" + struct.pack(">iqi", 0, 42, 1) + b"\x02x\0\0"
        body = (
            b"\x03tx\x02g" + struct.pack(">qhi", producer.producer_id, producer.epoch, -1) + b"\x01\0"
            b"\x04" + b"".join(one.bytes + offset for one in ids) + b"\0"
        )
        wanted = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID)
        told = [
            one.bytes + b"\x02" + struct.pack(">ih", 0, error) + b"\0\0" for one, error in zip(ids, wanted, strict=True)
        ]
        for _ in range(500):
            client.writer.write(frame(28, 6, 7, body, flexible=True))
            answer = await client.receive_frame()
            if ErrorCode.of(struct.unpack_from(">h", answer, 31)[0]) not in NOT_YET:
                break
            await asyncio.sleep(0.01)
        assert answer == struct.pack(">ibi", 7, 0, 0) + b"\x04" + b"".join(told) + b"\0"
        await producer.end(committed=True)
        assert await settled(client) == 42

    run_with(tmp_path, main)


@pytest.mark.parametrize("version", [5, BY_ID_SINCE])
def test_errors_of_groups(tmp_path: Path, version: int) -> None:
    """KIP-1319: those of OffsetCommit 10, where before there was ILLEGAL_GENERATION alone."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t")
        await found(client)
        producer = TransactionalProducer(client, version)
        producer.topics["t"] = topic_id
        joining = {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 60_000,
            "topic_partitions": (),
        }
        joined = await answered(
            lambda: client.ask("consumer_group_heartbeat", 1, subscribed_topic_names=("t",), **joining)
        )
        assert joined.error_code == 0, joined
        await producer.begin()
        await producer.add()
        stale, gone = ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION
        if version >= BY_ID_SINCE:
            stale, gone = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND
        assert await producer.commit(5, member_id="m", generation_id=joined.member_epoch + 1) is stale
        assert await producer.commit(5, group_id="none", member_id="m", generation_id=1) is gone
        assert await producer.commit(5, member_id="m", generation_id=joined.member_epoch) is ErrorCode.NONE
        await producer.end(committed=True)
        assert await settled(client) == 5

    run_with(tmp_path, main)


@pytest.mark.parametrize("version", [3, 4])
def test_a_transaction_that_the_group_is_not_in(tmp_path: Path, version: int) -> None:
    """KAFKA-15449: one that was not told of, or that has ended since: a late offset begins none that nobody ends. Each
    client is told in the words that it knows."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await found(client)
        producer = TransactionalProducer(client, version)
        await producer.begin()
        none = ErrorCode.TRANSACTION_ABORTABLE if version >= ABORTABLE_SINCE else ErrorCode.INVALID_TXN_STATE
        assert await producer.commit(5) is none
        await producer.add()
        assert await producer.commit(5) is ErrorCode.NONE
        await producer.end(committed=False)
        assert await settled(client) == -1
        assert await producer.commit(6) is none
        assert await fetched(client, stable=True) == (-1, ErrorCode.NONE)

    run_with(tmp_path, main)


def test_who_may_not_commit(tmp_path: Path) -> None:
    """An older epoch, a producer id that is not the id's, an older generation; nobody while transactions are not
    served."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        joined = await stable(client)
        producer = TransactionalProducer(client, 5)
        await producer.begin()
        before = producer.whose
        await producer.begin()
        assert await producer.commit(5, **before) is ErrorCode.INVALID_PRODUCER_EPOCH
        unknown = await producer.commit(5, producer_id=producer.producer_id + 77)
        assert unknown is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        assert await producer.commit(5, **{**member, "generation_id": 99}) is ErrorCode.ILLEGAL_GENERATION
        assert await producer.commit(5, **{**member, "member_id": "x"}) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await producer.commit(5, **member) is ErrorCode.NONE
        await producer.end(committed=True)
        assert await settled(client) == 5

    run_with(tmp_path, main)

    async def without(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await found(client)
        assert await TransactionalProducer(client, 3).commit(5) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    run(tmp_path / "none", without)
