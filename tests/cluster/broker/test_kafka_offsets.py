"""Offsets, leader epochs, producer ids, coordinators and the quorum: every version over a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from kafka_case import run, versions
from kafka_node import ME, KafkaNode
from kafka_wire import KafkaClient, connect
from test_kafka_fetch import append, committed
from test_kafka_produce import batch

from strandline.cluster.broker.handlers.producers import ProducersHandler
from strandline.controller import operations
from strandline.controller.api import AddVoterRequest, UpdateVoterRequest, VoterReply
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId

# Offsets


@pytest.mark.parametrize("version", versions("ListOffsets"))
def test_list_offsets(tmp_path: Path, version: int) -> None:
    """Earliest, latest, by time, of the largest time; special timestamps that the version does not know are refused."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 2)
        append(node, "t", 0, batch(b"a", b"b", b"c"))  # timestamps 1_000_000 and on
        await committed(node, "t", 0, 3)

        async def ask(timestamp: int, partition: int = 0, topic: str = "t", epoch: int = -1) -> tuple[int, ...]:
            asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
            answer = await client.ask(
                "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [asked]}]
            )
            one = answer.topics[0].partitions[0]
            return int(one.error_code), one.timestamp, one.offset

        assert await ask(-1) == (0, -1, 3)
        assert await ask(-2) == (0, -1, 0)
        assert await ask(1_000_001) == (0, 1_000_001, 1)
        assert await ask(5_000_000) == (0, -1, -1)
        assert await ask(-1, partition=1) == (0, -1, 0)
        unsupported = (int(ErrorCode.UNSUPPORTED_VERSION), -1, -1)
        assert await ask(-3) == ((0, 1_000_002, 2) if version >= 7 else unsupported)
        assert await ask(-4) == ((0, -1, 0) if version >= 8 else unsupported)
        assert await ask(-5) == ((0, -1, -1) if version >= 9 else unsupported)
        assert await ask(-6) == ((0, -1, -1) if version >= 11 else unsupported)
        assert await ask(-77) == unsupported
        assert (await ask(-1, topic="absent"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(-1, partition=9))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 4:
            assert (await ask(-1, epoch=0))[0] == 0
            assert (await ask(-1, epoch=9))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        twice = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
        answer = await client.ask("list_offsets", version, replica_id=-1, topics=[{"name": "t", "partitions": twice}])
        assert [int(one.error_code) for one in answer.topics[0].partitions] == [42, 42]

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("OffsetForLeaderEpoch"))
def test_offset_for_leader_epoch(tmp_path: Path, version: int) -> None:
    """KIP-320: where an epoch ended, and the errors of leadership."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        append(node, "t", 0, batch(b"a", b"b"))

        async def ask(epoch: int, current: int = -1, topic: str = "t") -> tuple[int, int, int]:
            asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            answer = await client.ask(
                "offset_for_leader_epoch", version, replica_id=-1, topics=[{"topic": topic, "partitions": [asked]}]
            )
            one = answer.topics[0].partitions[0]
            return int(one.error_code), one.leader_epoch, one.end_offset

        assert await ask(0) == (0, 0, 2)
        assert await ask(0, current=5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        assert await ask(0, topic="absent") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)

    run(tmp_path, main)


# Producer ids, coordinators, quorum


@pytest.mark.parametrize("version", versions("InitProducerId"))
def test_init_producer_id(tmp_path: Path, version: int) -> None:
    """Ids are never given twice; a transactional id gets the error on which every client gives up."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        sent = [
            client.send("init_producer_id", version, transactional_id=None, transaction_timeout=0) for _ in range(20)
        ]
        ids = []
        for one in sent:
            answer = await client.receive(one)
            assert (answer.error_code, answer.producer_epoch) == (0, 0)
            ids.append(answer.producer_id)
        assert len(set(ids)) == 20
        assert node.controller.blocks == 1
        answer = await client.ask("init_producer_id", version, transactional_id="tx", transaction_timeout=1000)
        assert (answer.error_code, answer.producer_id) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)

    run(tmp_path, main)


def test_a_version_that_is_not_served_is_refused_in_its_own_format(tmp_path: Path) -> None:
    """InitProducerId 6 exists, and is not advertised: UNSUPPORTED_VERSION."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask("init_producer_id", 6, transactional_id=None, transaction_timeout=0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await client.ask("init_producer_id", 5, transactional_id=None)).error_code == 0

    run(tmp_path, main)


def test_producer_ids_wait_for_the_controller_together(tmp_path: Path) -> None:
    """One request for a block, however many producers wait; other requests of the connection wait behind them."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        node.controller.gate = wait
        sent = [client.send("init_producer_id", 4, transactional_id=None) for _ in range(5)]
        after = client.send("metadata", 9, topics=None)
        async with connect(node.listener.endpoint) as other:
            assert (await other.ask("metadata", 9, topics=None)).controller_id == ME
            gate.set()
            assert len({(await client.receive(one)).producer_id for one in sent}) == 5
            assert (await client.receive(after)).controller_id == ME
        assert node.controller.blocks == 1

    run(tmp_path, main)


def test_new_producers_need_no_controller(tmp_path: Path) -> None:
    """Rows S34, S45: a broker holds a block from its start, and gets the next one before this one is used up."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        await node.broker.handlers.of(ProducersHandler).hold_ids()
        assert node.controller.blocks == 1
        shut = asyncio.Event()

        async def wait() -> None:
            await shut.wait()

        async def take(number: int) -> list[int]:
            sent = [client.send("init_producer_id", 4, transactional_id=None) for _ in range(number)]
            return [(await client.receive(one)).producer_id for one in sent]

        node.controller.gate = wait
        ids = await take(890)
        node.controller.gate = None
        ids += await take(50)
        node.controller.gate = wait
        ids += await take(1000)
        assert len(set(ids)) == 1940
        assert node.controller.blocks == 2

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("DescribeQuorum"))
def test_describe_quorum(tmp_path: Path, version: int) -> None:
    """Leader, voters, and from version 2 on their directories and endpoints; other topics have no quorum."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        asked = [
            {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]},
            {"topic_name": "t", "partitions": [{"partition_index": 0}]},
        ]
        answer = await client.ask("describe_quorum", version, topics=asked)
        metadata, other = (topic.partitions[0] for topic in answer.topics)
        assert (answer.error_code, metadata.error_code) == (0, 0)
        assert (metadata.leader_id, metadata.leader_epoch, metadata.high_watermark) == (1, 1, 7)
        assert [(one.replica_id, one.log_end_offset) for one in metadata.current_voters] == [(1, 8)]
        assert metadata.observers == ()
        assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 2:
            assert metadata.current_voters[0].replica_directory_id == UUID(int=5)
            assert [(one.node_id, one.listeners[0].port) for one in answer.nodes] == [(1, 19091)]

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("UpdateRaftVoter"))
def test_update_raft_voter_passes_on_what_is_told(tmp_path: Path, version: int) -> None:
    """Endpoint, levels and epoch; the answer says who leads, a refusal too. The quorum itself:
    `tests/controller/raft/test_raft_dynamic_voters.py`."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        asked: list[object] = []
        refusal: list[KafkaError] = []

        async def ask(operation: object, request: object, timeout_ms: float) -> VoterReply:
            asked.append((operation, request))
            if refusal:
                raise refusal.pop()
            return VoterReply((ME,))

        node.controller.ask = ask  # type: ignore[method-assign]
        listeners = [{"name": "OTHER", "host": "a", "port": 1}, {"name": "INTERNAL", "host": "b", "port": 2}]
        voter = {"cluster_id": None, "current_leader_epoch": 3, "voter_id": 4, "voter_directory_id": UUID(int=4)}
        knows = {"min_supported_version": 0, "max_supported_version": 1}
        told = {**voter, "listeners": listeners, "k_raft_version_feature": knows}
        for error in (ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND):
            if error:
                refusal.append(KafkaError(error, "no such voter"))
            answer = await client.ask("update_raft_voter", version, **told)
            assert answer.error_code == error
            leader = answer.current_leader
            assert (leader.leader_id, leader.host, leader.port) == (ME, "127.0.0.1", 19091)
            passed_on = UpdateVoterRequest(NodeId(4), UUID(int=4), Endpoint("b", 2), 0, 1, 3)
            assert asked.pop() == (operations.UPDATE_VOTER, passed_on)

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("AddRaftVoter"))
def test_add_raft_voter_passes_on_what_is_asked(tmp_path: Path, version: int) -> None:
    """The listener named INTERNAL, whatever stands before it; and from version 1 on whether an answer waits for the
    commit (KIP-1186). The quorum itself: `tests/controller/quorum/test_quorum_voters.py`."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        asked: list[object] = []

        async def ask(operation: object, request: object, timeout_ms: float) -> VoterReply:
            asked.append((operation, request, timeout_ms))
            return VoterReply((ME,))

        node.controller.ask = ask  # type: ignore[method-assign]
        listeners = [{"name": "OTHER", "host": "a", "port": 1}, {"name": "INTERNAL", "host": "b", "port": 2}]
        voter = {"cluster_id": None, "timeout": 7, "voter_id": 4, "voter_directory_id": UUID(int=4)}
        for waits in (True, False):
            answer = await client.ask("add_raft_voter", version, **voter, listeners=listeners, ack_when_committed=waits)
            assert answer.error_code == 0
            uncommitted = version >= 1 and not waits
            passed_on = AddVoterRequest(NodeId(4), UUID(int=4), Endpoint("b", 2), uncommitted)
            assert asked.pop() == (operations.ADD_VOTER, passed_on, 7)

    run(tmp_path, main)
