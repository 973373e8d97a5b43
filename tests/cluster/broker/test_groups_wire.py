"""The APIs of groups in every version that is advertised: what is asked arrives, what is answered is whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_case import run, versions
from kafka_node import KafkaNode
from kafka_wire import KafkaClient, connect

from strandline.cluster.groups import coordinator
from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.cluster.groups.runtime import Phase
from strandline.controller import api
from strandline.controller.machine import topics
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId
from strandline.replica import partition_set

PROTOCOLS = [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"}]
UNKNOWN_ID = UUID(int=77)


NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


async def found(client: KafkaClient, group: str = "g") -> None:
    """The group's coordinator is known and has loaded: the log of its shard may be made some turns later (rule B26)."""
    for _ in range(500):
        answer = await client.ask("find_coordinator", 6, key_type=0, coordinator_keys=(group,))
        asked = [{"group_id": group, "topics": None}]
        fetched = await client.ask("offset_fetch", 8, groups=asked, require_stable=True)
        if answer.coordinators[0].error_code == 0 and fetched.groups[0].error_code not in NOT_YET:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(answer)


async def join(client: KafkaClient, version: int = 9, *, group: str = "g", **values: Any) -> Any:
    """One member's way into a group of its own: (member id, generation)."""
    asked = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
        "reason": None,
        **values,
    }
    answer = await client.ask("join_group", version, **asked)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await client.ask("join_group", version, **{**asked, "member_id": answer.member_id})
    return answer


async def sync(client: KafkaClient, joined: Any, version: int = 5, *, group: str = "g", **values: Any) -> Any:
    """The leader assigns to itself."""
    asked = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": joined.member_id, "assignment": b"mine"}],
        **values,
    }
    return await client.ask("sync_group", version, **asked)


async def stable(client: KafkaClient, group: str = "g", **values: Any) -> Any:
    """A group of one member, which has its assignment."""
    await found(client, group)
    joined = await join(client, group=group, **values)
    assert joined.error_code == 0, joined
    synced = await sync(client, joined, group=group, group_instance_id=values.get("group_instance_id"))
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    return joined


@pytest.mark.parametrize("version", versions("FindCoordinator"))
def test_find_coordinator(tmp_path: Path, version: int) -> None:
    """The first question creates the topic of groups; transactions and unknown kinds are refused in words."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        async def ask(kind: int) -> Any:
            answer = await client.ask("find_coordinator", version, key="g", key_type=kind, coordinator_keys=("g", "h"))
            if version < 4:
                return answer
            assert [one.key for one in answer.coordinators] == ["g", "h"]
            return answer.coordinators[0]

        group = await ask(0)
        assert (group.error_code, group.node_id, group.port) == (0, 1, node.listener.endpoint.port)
        topic = node.controller.image.topics["__consumer_offsets"]
        assert len(topic.partitions) == 4
        assert len(topic.partitions[0].replicas) == 1, "as many copies as there are brokers"
        if version >= 1:
            transaction = await ask(1)
            assert transaction.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert "has no transactions yet" in transaction.error_message
            assert (await ask(9)).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("JoinGroup"))
def test_join_group(tmp_path: Path, version: int) -> None:
    """KIP-394: from version 4 on a member is given its id first. The leader is told who joined."""

    async def main(_node: KafkaNode, client: KafkaClient) -> None:
        await found(client)
        first = await client.ask(
            "join_group",
            version,
            group_id="g",
            session_timeout=10_000,
            rebalance_timeout=10_000,
            member_id="",
            group_instance_id=None,
            protocol_type="consumer",
            protocols=PROTOCOLS,
            reason=None,
        )
        assert (first.error_code == ErrorCode.MEMBER_ID_REQUIRED) == (version >= 4)
        joined = await join(client, version, member_id=first.member_id)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert joined.leader == joined.member_id == first.member_id
        assert [one.metadata for one in joined.members] == [PROTOCOLS[0]["metadata"]]
        refused = await join(client, version, session_timeout=50)
        assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        assert (await join(client, version, group="")).error_code == ErrorCode.INVALID_GROUP_ID
        assert (await join(client, version, protocols=[])).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("SyncGroup"))
def test_sync_group(tmp_path: Path, version: int) -> None:
    """The assignment is answered once it is committed, and again to who asks again."""

    async def main(_node: KafkaNode, client: KafkaClient) -> None:
        await found(client)
        joined = await join(client)
        for _ in range(2):
            synced = await sync(client, joined, version)
            assert (synced.error_code, synced.assignment) == (0, b"mine")
        wrong = await sync(client, joined, version, generation_id=7)
        assert wrong.error_code == ErrorCode.ILLEGAL_GENERATION
        assert (await sync(client, joined, version, member_id="x")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        if version >= 5:
            for name in ("other", None):  # from here on it has to be told
                wrong = await sync(client, joined, version, protocol_name=name)
                assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("Heartbeat"))
def test_heartbeat(tmp_path: Path, version: int) -> None:
    async def main(_node: KafkaNode, client: KafkaClient) -> None:
        joined = await stable(client)

        async def beat(generation: int, member_id: str, group: str = "g") -> int:
            values = {"group_id": group, "generation_id": generation, "member_id": member_id, "group_instance_id": None}
            return int((await client.ask("heartbeat", version, **values)).error_code)

        assert await beat(1, joined.member_id) == 0
        assert await beat(2, joined.member_id) == ErrorCode.ILLEGAL_GENERATION
        assert await beat(1, "x") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await beat(1, joined.member_id, "none") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await beat(1, joined.member_id, "") == ErrorCode.INVALID_GROUP_ID

    run(tmp_path, main)


def test_a_heartbeat_while_the_coordinator_loads(tmp_path: Path) -> None:
    """NONE, as Kafka's GroupCoordinatorService answers: sarama's session ends with any error that it does not know,
    and loading may take long. Whatever else is asked hears that it is loading."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        joined = await stable(client)
        for hosted in node.groups.runtime.hosted():
            hosted.phase = Phase.LOADING
        beat = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id, "group_instance_id": None}
        assert (await client.ask("heartbeat", 4, **beat)).error_code == 0
        assert (await sync(client, joined)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("LeaveGroup"))
def test_leave_group(tmp_path: Path, version: int) -> None:
    """From version 3 on several leave at once, each with an answer of its own."""

    async def main(_node: KafkaNode, client: KafkaClient) -> None:
        joined = await stable(client)
        ids = [joined.member_id, "x"] if version >= 3 else [joined.member_id]
        members = [{"member_id": one, "group_instance_id": None, "reason": None} for one in ids]
        answer = await client.ask("leave_group", version, group_id="g", member_id=joined.member_id, members=members)
        assert answer.error_code == 0
        if version >= 3:
            assert [one.error_code for one in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        else:
            again = await client.ask("leave_group", version, group_id="g", member_id=joined.member_id)
            assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        described = await client.ask("describe_groups", 6, groups=("g",), include_authorized_operations=False)
        assert described.groups[0].group_state == "Empty"

    run(tmp_path, main)


def commit(
    topic: str | UUID,
    *offsets: tuple[int, int],
    group: str = "g",
    generation: int = -1,
    member_id: str = "",
    **more: Any,
) -> dict[str, Any]:
    """An OffsetCommit of (partition, offset)."""
    partitions = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": 3,
            "committed_metadata": more.get("metadata"),
        }
        for partition, offset in offsets
    ]
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{**named, "partitions": partitions}],
    }


@pytest.mark.parametrize("version", versions("OffsetCommit"))
def test_offset_commit(tmp_path: Path, version: int) -> None:
    """By name, and from version 10 on by id; each partition has its own error."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t", 2)
        await found(client)

        async def ask(topic: str, *offsets: tuple[int, int], **more: Any) -> list[int]:
            known: Any = topic
            if version >= 10:
                known = topic_id if topic == "t" else UNKNOWN_ID
            answer = await client.ask("offset_commit", version, **commit(known, *offsets, **more))
            return [int(one.error_code) for one in answer.topics[0].partitions]

        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await ask("t", (0, 5), (1, 6), (2, 7)) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await ask("missing", (0, 5)) == [unknown]
        assert await ask("t", (0, 5), metadata="x" * 5000) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        assert await ask("t", (0, -1)) == [0], "as Kafka: kafkajs commits it to go to its default offset"
        assert await ask("t", (0, 5)) == [0]
        no_group = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        assert await ask("t", (0, 5), group="none", generation=4, member_id="m") == [no_group]
        assert await ask("missing", (0, 5), group="none", generation=4, member_id="m") == [unknown], "topics go first"
        fetched = await client.ask("offset_fetch", 8, groups=[{"group_id": "g", "topics": None}], require_stable=True)
        offsets = fetched.groups[0].topics[0].partitions
        epoch = 3 if version >= 6 else -1
        assert [(one.committed_offset, one.committed_leader_epoch) for one in offsets] == [(5, epoch), (6, epoch)]

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("OffsetFetch"))
def test_offset_fetch(tmp_path: Path, version: int) -> None:
    """One group, from version 8 on several; named partitions or (from version 2 on) all; -1 where there is nothing."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t", 3)
        await found(client)
        await client.ask("offset_commit", 9, **commit("t", (0, 5), (1, 6), metadata="note"))
        named: dict[str, Any] = {"topic_id": topic_id} if version >= 10 else {"name": "t"}

        async def ask(group: str, topics: Any) -> Any:
            if version < 8:
                return await client.ask("offset_fetch", version, group_id=group, topics=topics, require_stable=True)
            groups = [{"group_id": group, "topics": topics}, {"group_id": "other", "topics": topics}]
            answer = await client.ask("offset_fetch", version, groups=groups, require_stable=True)
            assert [one.group_id for one in answer.groups] == [group, "other"]
            return answer.groups[0]

        answer = await ask("g", [{**named, "partition_indexes": (0, 2)}])
        first, missing = answer.topics[0].partitions
        assert (first.committed_offset, first.metadata, first.error_code) == (5, "note", 0)
        assert (missing.committed_offset, missing.metadata, missing.error_code) == (-1, "", 0)
        if version >= 2:
            assert answer.error_code == 0
            everything = await ask("g", None)
            assert [one.committed_offset for one in everything.topics[0].partitions] == [5, 6]
        if version >= 10:
            answer = await ask("g", [{"topic_id": UNKNOWN_ID, "partition_indexes": (0,)}])
            assert answer.topics[0].topic_id == UNKNOWN_ID
            assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("DescribeGroups"))
def test_describe_groups(tmp_path: Path, version: int) -> None:
    """Members, subscriptions and assignments; a group that does not exist is Dead, from version 6 on not found."""

    async def main(_node: KafkaNode, client: KafkaClient) -> None:
        joined = await stable(client)
        answer = await client.ask("describe_groups", version, groups=("g", "no"), include_authorized_operations=True)
        group, missing = answer.groups
        assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
            0,
            "Stable",
            "consumer",
            "range",
        )
        (member,) = group.members
        assert (member.member_id, member.client_host, member.member_assignment) == (
            joined.member_id,
            "/127.0.0.1",
            b"mine",
        )
        assert member.member_metadata == PROTOCOLS[0]["metadata"]
        if version >= 3:
            assert group.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
        assert missing.group_state == "Dead"
        assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("ListGroups"))
def test_list_groups(tmp_path: Path, version: int) -> None:
    """All groups of this broker; from version 4 on by state, from 5 on by type."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await stable(client)
        await client.ask("offset_commit", 9, **commit("t", (0, 5), group="only-offsets"))

        async def ask(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[str]:
            answer = await client.ask("list_groups", version, states_filter=states, types_filter=types)
            assert answer.error_code == 0
            return sorted(one.group_id for one in answer.groups)

        assert await ask() == ["g", "only-offsets"]
        if version >= 4:
            assert await ask(("stable",)) == ["g"]
        if version >= 5:
            assert await ask((), ("Classic",)) == ["g", "only-offsets"]
            assert await ask((), ("consumer",)) == []

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("DeleteGroups"))
def test_delete_groups(tmp_path: Path, version: int) -> None:
    """A group with members stays; one without is gone with its offsets, and answered once."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await stable(client)
        await client.ask("offset_commit", 9, **commit("t", (0, 5), group="old"))
        answer = await client.ask("delete_groups", version, groups_names=("g", "old", "none", "", "old"))
        assert [int(one.error_code) for one in answer.results] == [
            ErrorCode.NON_EMPTY_GROUP,
            0,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.INVALID_GROUP_ID,
        ]
        fetched = await client.ask("offset_fetch", 8, groups=[{"group_id": "old", "topics": None}], require_stable=True)
        assert fetched.groups[0].topics == ()

    run(tmp_path, main)


def test_offset_delete(tmp_path: Path) -> None:
    """KIP-496: not while the group reads the topic."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        node.create_topic("u")
        joined = await stable(client)
        for topic in ("t", "u"):
            await client.ask("offset_commit", 9, **commit(topic, (0, 5), generation=1, member_id=joined.member_id))
        topics = [{"name": one, "partitions": [{"partition_index": 0}]} for one in ("t", "u", "missing")]
        answer = await client.ask("offset_delete", 0, group_id="g", topics=topics)
        assert [int(one.partitions[0].error_code) for one in answer.topics] == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        fetched = await client.ask("offset_fetch", 8, groups=[{"group_id": "g", "topics": None}], require_stable=True)
        assert [one.name for one in fetched.groups[0].topics] == ["t"]
        answer = await client.ask("offset_delete", 0, group_id="none", topics=topics)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(tmp_path, main)


def test_a_deleted_topic_takes_its_offsets_along(tmp_path: Path) -> None:
    """A topic of the same name that is created later is another topic."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await found(client)
        await client.ask("offset_commit", 9, **commit("t", (0, 5)))
        await client.ask("delete_topics", 5, topic_names=("t",), timeout=5000)
        node.create_topic("t")
        fetched = await client.ask("offset_fetch", 8, groups=[{"group_id": "g", "topics": None}], require_stable=True)
        assert fetched.groups[0].topics == ()

    run(tmp_path, main)


def test_a_coordinator_whose_log_is_being_made_is_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the coordinator already: librdkafka asks for committed offsets no more once one says that it is not."""
    monkeypatch.setattr(partition_set, "MAKING_MS", 0.0)
    monkeypatch.setattr(partition_set, "RESTING_MS", 100.0)

    async def main(_node: KafkaNode, client: KafkaClient) -> None:
        said = []
        while not said or said[-1] in NOT_YET:
            answer = await client.ask("find_coordinator", 6, key_type=0, coordinator_keys=("g",))
            if answer.coordinators[0].error_code == 0:
                asked = [{"group_id": "g", "topics": None}]
                fetched = await client.ask("offset_fetch", 8, groups=asked, require_stable=True)
                said.append(fetched.groups[0].error_code)
            await asyncio.sleep(0.01)
        assert set(said) == {0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

    run(tmp_path, main)


def test_b34_who_is_named_before_it_knows_waits_for_the_news(tmp_path: Path) -> None:
    """A client was told of the coordinator by a broker that had the news first, and asks at once: it is no error that
    this one is not the coordinator yet."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        asked = [{"group_id": "g", "topics": None}]
        early = asyncio.create_task(client.ask("offset_fetch", 8, groups=asked, require_stable=True))
        await asyncio.sleep(0.1)
        assert not early.done()
        async with connect(node.listener.endpoint) as other:
            await found(other)
        fetched = await early
        assert fetched.groups[0].error_code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    run(tmp_path, main)


def test_b34_and_so_does_one_that_is_elected(tmp_path: Path) -> None:
    """It follows, and an election that it has not heard of makes it the leader."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.controller.start_broker(NodeId(2), Endpoint("elsewhere", 9092), rack="b")
        topic = api.CreatableTopic(OFFSETS_TOPIC, assignments=(api.ReplicaAssignment(0, (NodeId(2), NodeId(1))),))
        node.controller.run(topics.create_topics(node.controller.state, api.CreateTopicsRequest((topic,))))
        asked = [{"group_id": "g", "topics": None}]
        early = asyncio.create_task(client.ask("offset_fetch", 8, groups=asked, require_stable=True))
        await asyncio.sleep(0.1)
        assert not early.done()
        node.controller.fence(NodeId(2))
        fetched = await early
        assert fetched.groups[0].error_code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    run(tmp_path, main)


def test_b34_and_so_does_one_that_has_led_before(tmp_path: Path) -> None:
    """It led the partition, does no more, and does not know yet that it does again. Who asks for committed offsets
    waits; whoever else comes is told at once to look for the coordinator."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        asked = [{"group_id": "g", "topics": None}]
        await found(client)
        await client.ask("offset_fetch", 8, groups=asked, require_stable=True)
        node.controller.run(
            topics.delete_topics(node.controller.state, api.DeleteTopicsRequest((api.TopicRef(OFFSETS_TOPIC),)))
        )
        node.controller.start_broker(NodeId(2), Endpoint("elsewhere", 9092), rack="b")
        topic = api.CreatableTopic(OFFSETS_TOPIC, assignments=(api.ReplicaAssignment(0, (NodeId(2), NodeId(1))),))
        node.controller.run(topics.create_topics(node.controller.state, api.CreateTopicsRequest((topic,))))
        beat = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
        while (await client.ask("heartbeat", 4, **beat)).error_code != ErrorCode.NOT_COORDINATOR:
            await asyncio.sleep(0.01)  # the log of the new partition is being made
        early = asyncio.create_task(client.ask("offset_fetch", 8, groups=asked, require_stable=True))
        async with connect(node.listener.endpoint) as other:
            assert (await other.ask("heartbeat", 4, **beat)).error_code == ErrorCode.NOT_COORDINATOR
        assert not early.done()
        node.controller.fence(NodeId(2))
        fetched = await early
        assert fetched.groups[0].error_code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    run(tmp_path, main)


def test_b34_without_a_copy_it_has_nothing_to_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is elected has followed before, and so has heard that it has a copy: the request was sent here in error."""
    monkeypatch.setattr(coordinator, "NAMED_MS_MAX", 600_000.0)

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.controller.start_broker(NodeId(2), Endpoint("elsewhere", 9092), rack="b")
        topic = api.CreatableTopic(OFFSETS_TOPIC, assignments=(api.ReplicaAssignment(0, (NodeId(2),)),))
        node.controller.run(topics.create_topics(node.controller.state, api.CreateTopicsRequest((topic,))))
        asked = [{"group_id": "g", "topics": None}]
        async with asyncio.timeout(5):
            fetched = await client.ask("offset_fetch", 8, groups=asked, require_stable=True)
            assert fetched.groups[0].error_code == ErrorCode.NOT_COORDINATOR
            described = await client.ask("describe_groups", 5, groups=("g",), include_authorized_operations=False)
            assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR

    run(tmp_path, main)


def test_b34_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Nobody has named it: the client looks for a coordinator again, and makes the topic with that."""

    async def main(_node: KafkaNode, client: KafkaClient) -> None:
        asked = [{"group_id": "g", "topics": None}]
        fetched = await client.ask("offset_fetch", 8, groups=asked, require_stable=True)
        assert fetched.groups[0].error_code == ErrorCode.NOT_COORDINATOR

    run(tmp_path, main)
