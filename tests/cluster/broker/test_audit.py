"""The audit: a line for each change that a client asks for, whatever becomes of it (rule A20)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from acl_requests import REQUESTS, Things
from kafka_case import run
from kafka_node import KafkaNode, until
from kafka_wire import KafkaClient, connect, frame
from structlog.testing import capture_logs
from test_acls_wire import authorize
from test_groups_wire import found
from test_kafka_produce import batch, produced

from strandline.cluster.broker import audit
from strandline.cluster.broker.audit import Audit
from strandline.cluster.broker.request import Exchange, Peer, RequestContext
from strandline.cluster.broker.table import APIS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import Piece
from strandline.proto.steps import Steps

ME = "User:ANONYMOUS"
CHANGE_NOTHING = {
    *(Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.METADATA, Api.API_VERSIONS, Api.OFFSET_FOR_LEADER_EPOCH),
    *(Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP, Api.SYNC_GROUP, Api.OFFSET_COMMIT),
    *(
        Api.SASL_HANDSHAKE,
        Api.SASL_AUTHENTICATE,
        Api.OFFSET_FETCH,
        Api.LIST_GROUPS,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS_TO_TXN,
        Api.ADD_OFFSETS_TO_TXN,
        Api.END_TXN,
        Api.TXN_OFFSET_COMMIT,
        Api.LIST_TRANSACTIONS,
        Api.LIST_PARTITION_REASSIGNMENTS,
        Api.LIST_CONFIG_RESOURCES,
        Api.GET_TELEMETRY_SUBSCRIPTIONS,
        Api.PUSH_TELEMETRY,
    ),
    *(api for api in Api if api.name.startswith("DESCRIBE_") or api.name.endswith("_DESCRIBE")),
}
"""What clients do all day, and what only looks."""

VOTERS = (Api.ADD_RAFT_VOTER, Api.REMOVE_RAFT_VOTER, Api.UPDATE_RAFT_VOTER)


class Lines:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, str]] = []
        self.left_out: list[tuple[str, int]] = []
        self.client_ids: list[str] = []

    def write(self, event: str, figures: Mapping[str, Any]) -> None:
        if event == "left_out":
            self.left_out.append((figures["what"], figures["lines"]))
            return
        assert {"principal", "host", "listener", "client_id", "api"} <= figures.keys()
        self.client_ids.append(figures["client_id"])
        if event == "change":
            self.all.append((figures["api"], figures["what"], figures["result"]))


def watch(node: KafkaNode) -> list[tuple[str, str, str]]:
    """What was changed from now on: (API, what, result)."""
    lines = Lines()
    node.listener.apis = Audit(lines).intercept(node.listener.apis)
    return lines.all


def test_every_api_is_audited_or_changes_nothing() -> None:
    """A new one has to be put somewhere."""
    assert {row.api for row in APIS.values() if row.changes is None} == CHANGE_NOTHING & {*map(Api, APIS)}


def test_every_version_of_every_change_has_its_line(tmp_path: Path) -> None:
    """Of things that there are not: the result is the error. Read anew from the bytes, in each format."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        await found(client)
        authorize(node, super_users=[ME])
        lines = watch(node)
        things = Things("no-topic", node.create_topic("other"), "no-group")
        with capture_logs() as logs:
            for api, values, since in REQUESTS:
                if APIS[api].changes is None or api in (*VOTERS, Api.ELECT_LEADERS):
                    continue
                for version in range(max(since, APIS[api].first), APIS[api].last + 1):
                    if api is Api.DELETE_ACLS:  # there shall be something to delete
                        await client.ask("create_acls", 3, **values(things))
                    before = len(lines)
                    await client.ask(api.name.lower(), version, **values(things))
                    assert len(lines) > before, f"{api.title} v{version}"
        assert not [line for line in logs if line["log_level"] == "error"]
        expected = {
            ("DeleteTopics", "topic no-topic", "NONE"),  # CreateTopics made it
            ("DeleteGroups", "group no-group", "GROUP_ID_NOT_FOUND"),
            ("CreatePartitions", "topic no-topic: 9 partitions", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("CreateAcls", "ACL User:me may ALL every topic", "NONE"),
            ("DeleteAcls", "ACL User:me may ALL every topic", "NONE"),
            ("DeleteRecords", "topic no-topic-0: records below -1", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("IncrementalAlterConfigs", "topic no-topic: retention.ms=1", "UNKNOWN_TOPIC_OR_PARTITION"),
        }
        assert expected <= set(lines)
        told = [line for line in logs if line["event"] == "change"]
        assert len(told) == len(lines)
        assert told[0]["principal"] == ME

    run(tmp_path, main)


def test_a_byte_too_many_hides_no_change(tmp_path: Path) -> None:
    """librdkafka writes tagged fields twice behind this request. What the broker takes has its line."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        upsertion = {"name": "eve", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
        values = {"deletions": (), "upsertions": (upsertion,)}
        body = bytes(schema.request(Api.ALTER_USER_SCRAM_CREDENTIALS, 0).encode(values))
        client.writer.write(frame(Api.ALTER_USER_SCRAM_CREDENTIALS, 0, 1, body + b"\0", flexible=True))
        await client.receive_frame()
        assert lines == [("AlterUserScramCredentials", "SCRAM credentials of eve", "NONE")]
        assert node.controller.image.scram_credentials

    run(tmp_path, main)


def test_a_client_that_leaves_at_once_is_not_unseen(tmp_path: Path) -> None:
    """The topic is made though nobody waits for the answer: the line says that its result is not known."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        asked, going = asyncio.Event(), asyncio.Event()

        async def gate() -> None:
            asked.set()
            await going.wait()

        node.controller.gate = gate
        async with connect(node.listener.endpoint) as hasty:
            topic = {"name": "mine", "num_partitions": 1, "replication_factor": 1}
            hasty.send("create_topics", 7, topics=[topic], timeout=1000)
            await asked.wait()
        await until(lambda: lines)
        assert lines == [("CreateTopics", "topic mine", "UNKNOWN")]
        going.set()

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("version", "named", "what"),
    [
        (0, None, "all that the request asks for"),
        (2, None, "leaders"),
        (2, [{"topic": "t", "partitions": [0]}], "leader of t-0"),
    ],
)
def test_a_client_that_leaves_is_seen_whatever_its_answer_has_room_for(
    tmp_path: Path, version: int, named: list[dict[str, object]] | None, what: str
) -> None:
    """ElectLeaders: the answer to version 0 has no place for an error of the whole, and that of later ones names
    nothing beside it."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        lines = watch(node)
        asked, going = asyncio.Event(), asyncio.Event()

        async def gate() -> None:
            asked.set()
            await going.wait()

        node.controller.gate = gate
        async with connect(node.listener.endpoint) as hasty:
            kind = {"election_type": 0} if version else {}
            hasty.send("elect_leaders", version, topic_partitions=named, timeout=1000, **kind)
            await asked.wait()
        await until(lambda: lines)
        assert lines == [("ElectLeaders", what, "UNKNOWN")]
        going.set()

    run(tmp_path, main)


def test_what_changes_nothing_has_no_line(tmp_path: Path) -> None:
    """A rehearsal; and what is denied, of which the authorizer has its line."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        await client.ask("create_topics", 7, topics=[topic], validate_only=True)
        await client.ask("elect_leaders", 2, election_type=-1, topic_partitions=None, timeout=1000)
        authorize(node)
        with capture_logs() as logs:
            made = await client.ask("create_topics", 7, topics=[topic])
        assert made.topics[0].error_code != 0
        assert lines == []
        assert [line["event"] for line in logs] == ["denied"]

    run(tmp_path, main)


def test_a_request_that_cannot_be_read_ends_its_connection_alone(tmp_path: Path) -> None:
    """Bytes that are no request: nothing was asked for, so there is no line; and the end gives everything back."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        with capture_logs() as logs:
            async with connect(node.listener.endpoint) as rude:
                rude.writer.write(frame(Api.CREATE_TOPICS, 7, 1, b"\x7f\xff\xff", flexible=True))
                assert await rude.closed()
            await until(lambda: node.listener.stats.connections == 1)
        assert lines == []
        assert not [line for line in logs if line["log_level"] == "error"]

    run(tmp_path, main)


def test_no_secret(tmp_path: Path) -> None:
    """Values of settings that hold secrets are hidden, though there are none of them to be set."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        config = {"name": "ssl.key.password", "value": "hunter2", "config_operation": 0}
        resource = {"resource_type": 4, "resource_name": "1", "configs": [config]}
        await client.ask("incremental_alter_configs", 1, resources=[resource])
        assert "hunter2" not in repr(lines)
        assert "ssl.key.password=" in lines[0][1]

    run(tmp_path, main)


def test_no_change_without_its_line(tmp_path: Path) -> None:
    """Rule A28: the hundredth of a request is not the last that is named, nor the thousandth character."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        names = [f"t{number}" for number in range(1500)]
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
        await client.ask("create_topics", 7, topics=topics, timeout=60_000)
        assert {result for _, _, result in lines} == {"NONE"}
        assert [what for _, what, _ in lines[:100]] == [f"topic {name}" for name in names[:100]]
        assert 100 < len(lines) < 110
        assert [one for _, what, _ in lines for one in what.split("; ")] == [f"topic {name}" for name in names]
        lines.clear()
        user = "User:" + "n" * 30_000
        await client.ask("create_acls", 3, creations=[acl(user)])
        assert max(len(what) for _, what, _ in lines) <= 8_000
        assert "".join(what for _, what, _ in lines) == f"ACL {user} may READ topic t"

    run(tmp_path, main)


def test_whoever_leaves_while_lines_are_written_is_not_unseen() -> None:
    """The changes of a long request are noted in steps; those that are left are noted at once then."""
    noted: list[int] = []

    def see(_answer: Sequence[Piece]) -> Steps[None]:
        for number in range(5):
            noted.append(number)
            yield

    context = RequestContext(Peer("PLAINTEXT", "127.0.0.1"), "", "CreateTopics", 7, 1, 0.0)
    connection: Any = None
    exchange = Exchange(connection, context, True)
    exchange.when_gone = lambda: pytest.fail("the changes have their lines already")
    watched = audit._Watched(exchange, see)
    steps = watched.respond_in_steps([b""])
    next(steps)
    assert exchange.when_gone is None
    steps.close()
    assert noted == [0, 1, 2, 3, 4]
    assert not exchange.ready


def acl(user: str) -> dict[str, Any]:
    """That it may read a topic."""
    pattern = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3}
    return {**pattern, "principal": user, "host": "*", "operation": 3, "permission_type": 3}


def test_what_failed_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A28: whoever asks for a thousand changes that fail pushes none that was made out of the audit. What has no
    line is counted."""
    monkeypatch.setattr(audit, "FAILED_CHANGES_MAX", (3, 5))

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        sink = Lines()
        watched = Audit(sink)
        node.listener.apis = watched.intercept(node.listener.apis)
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        await client.ask("create_topics", 7, topics=[topic])
        names = [{"name": f"none{number}", "topic_id": None} for number in range(50)]
        answer = await client.ask("delete_topics", 6, topics=[*names, {"name": "t", "topic_id": None}], timeout=1000)
        assert len(answer.responses) == 51
        expected = ["topic t", "topic none0", "topic none1", "topic none2", "topic t"]
        assert [what for _, what, _ in sink.all] == expected
        watched.close()
        assert sink.left_out == [("changes that failed", 47)]

    run(tmp_path, main)


def test_a_clients_name_makes_no_long_line(tmp_path: Path) -> None:
    """It may have 32,767 characters, in each request."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        sink = Lines()
        node.listener.apis = Audit(sink).intercept(node.listener.apis)
        body = bytes(schema.request(Api.DELETE_GROUPS, 1).encode({"groups_names": ["none"]}))
        client.writer.write(frame(Api.DELETE_GROUPS, 1, 1, body, flexible=False, client_id="c" * 5_000))
        await client.receive_frame()
        assert sink.client_ids == ["c" * 256]

    run(tmp_path, main)


def test_clients_write_nothing_to_the_topic_of_the_audit(tmp_path: Path) -> None:
    """They could forge lines. Nor do they make it by asking for it, for it would not be kept as it should be."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask(
            "metadata", 12, topics=[{"topic_id": None, "name": "__audit"}], allow_auto_topic_creation=True
        )
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.create_topic("__audit")
        refused = await produced(client, 9, "__audit", {0: batch(b"User:me did nothing")})
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert refused.error_message == "only the cluster itself writes to __audit"
        deleted = {"name": "__audit", "partitions": [{"partition_index": 0, "offset": -1}]}
        answer = await client.ask("delete_records", 2, topics=[deleted], timeout=1000)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        answer = await client.ask(
            "metadata", 12, topics=[{"topic_id": None, "name": "__audit"}], allow_auto_topic_creation=True
        )
        assert answer.topics[0].is_internal

    run(tmp_path, main, static={"auto.create.topics.enable": "true"})
