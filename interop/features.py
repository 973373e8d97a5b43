"""The features, in the order of the table: each takes a client's world and raises where something is not so."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.secured import librdkafka_settings

from interop import connect, groups, streams, transactions
from interop.driver import ClientError, NotSupported
from interop.suite import OWN_CHECK, UNKNOWN_TOPIC, Record, World, b64, eventually, refused, same, values

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Feature:
    """One row of the table; `needs` are API keys without which it is skipped."""

    name: str
    check: Callable[[World], None]
    needs: frozenset[int] = frozenset()


def create_and_describe(world: World) -> None:
    name = world.name("made")
    world.client.call("create_topic", topic=name, partitions=3, replication=3, configs={"retention.ms": str(DAY_MS)})
    eventually(lambda: len(described(world, name)) == 3)
    for partition in world.client.call("describe_topic", topic=name)["partitions"]:
        same(sorted(partition["replicas"]), [1, 2, 3], "replicas")
        assert partition["leader"] in {1, 2, 3}, f"the leader is {partition['leader']}"


def described(world: World, topic: str) -> list[object]:
    """Its partitions with leaders; none while the client's broker has not heard of it."""
    try:
        found = world.client.call("describe_topic", topic=topic)["partitions"]
    except ClientError as error:
        if error.code != UNKNOWN_TOPIC:
            raise
        return []
    return [each for each in found if each["leader"] > 0]


def configs(world: World) -> None:
    topic = world.topic()
    world.client.call("alter_config", topic=topic, configs={"retention.ms": str(DAY_MS)})
    eventually(lambda: world.client.call("describe_config", topic=topic)["configs"].get("retention.ms") == str(DAY_MS))


def partitions_added(world: World) -> None:
    topic = world.topic()  # one partition: the console producer cannot choose among several
    world.produce(topic, values(3))
    world.client.call("create_partitions", topic=topic, total=4)
    eventually(lambda: len(described(world, topic)) == 4)
    same(world.client.call("offset_at", topic=topic, partition=0, at="latest")["offset"], 3, "end of partition 0")
    same(world.client.call("offset_at", topic=topic, partition=3, at="latest")["offset"], 0, "end of partition 3")


def delete_topic(world: World) -> None:
    topic = world.topic()
    world.client.call("delete_topic", topic=topic)
    eventually(lambda: topic not in world.topics())
    with contextlib.suppress(NotSupported):
        eventually(lambda: not described(world, topic))


def acks_of(level: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        topic = world.topic()
        world.produce(topic, values(5), acks=level)
        same([each["value"] for each in world.fetch(topic, 5)], [each["value"] for each in values(5)], "values")

    return check


def codec_of(codec: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        topic = world.topic()
        sent = [{"value": b64(b"word " * 200 + b"%d" % number), "partition": 0} for number in range(50)]
        world.produce(topic, sent, codec=codec)
        same([each["value"] for each in world.fetch(topic, 50)], [each["value"] for each in sent], "values")

    return check


def idempotent(world: World) -> None:
    topic = world.topic()
    sent = world.produce(topic, values(200), idempotent=True)
    same([each["offset"] for each in sent], list(range(200)), "offsets")
    same([each["value"] for each in world.fetch(topic, 200)], [each["value"] for each in values(200)], "values")


def shapes(world: World) -> None:
    now = int(time.time() * 1000)
    sent: list[Record] = [
        {"key": b64(b"key"), "value": b64(b"value"), "headers": [["a", b64(b"1")], ["a", b64(b"2")], ["b", b64(b"")]]},
        {"key": None, "value": b64(b"no key"), "headers": []},
        {"key": b64(b"deleted"), "value": None, "headers": []},
        {"key": b64(b"empty"), "value": b64(b""), "headers": []},
        {"key": b64(b"\x00\xff\xfe"), "value": b64(bytes(range(256))), "headers": [["bytes", b64(b"\xff\x00")]]},
    ]
    for number, each in enumerate(sent):
        each |= {"partition": 0, "timestamp": now + number}
    topic = world.topic()
    for each in sent:
        world.produce(topic, [each])
    for name in ("key", "value", "headers", "timestamp"):
        same(
            [each[name] for each in world.fetch(topic, 5)], [each[name] for each in sent], f"{name} as the client reads"
        )
        same([each[name] for each in by_librdkafka(world, topic, 5)], [each[name] for each in sent], name)


def by_librdkafka(world: World, topic: str, count: int) -> list[Record]:
    """What another client reads of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {
        "bootstrap.servers": world.bootstrap,
        **librdkafka_settings(),
        "group.id": "none",
        "log_level": 0,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    found: list[Record] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for message in consumer.consume(count, 15):
            assert message.error() is None, message.error()
            headers = [
                [name, b64(data if isinstance(data, bytes) else None)] for name, data in list(message.headers() or ())
            ]
            found.append({"key": b64(message.key()), "value": b64(message.value()), "headers": headers})
            found[-1]["timestamp"] = message.timestamp()[1]
    finally:
        consumer.close()
    return found


def large(world: World) -> None:
    topic = world.topic()
    value = b64(b"0123456789" * 90_000)
    world.produce(topic, [{"value": value, "partition": 0}])
    assert world.fetch(topic, 1)[0]["value"] == value, "another value came back"


def same_partition(world: World) -> None:
    topic = world.topic(6)
    keys = [f"key-{number}".encode() for number in range(200)]
    sent = world.produce(topic, [{"key": b64(key), "value": b64(b"x")} for key in keys])
    same([each["partition"] for each in sent], [(murmur2(key) & 0x7FFFFFFF) % 6 for key in keys], "partitions")


def murmur2(data: bytes) -> int:
    """Kafka's hash of keys, written from its description: 32-bit murmur2 with seed 0x9747b28c."""
    scramble, mask = 0x5BD1E995, 0xFFFFFFFF
    state = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * scramble & mask
        word = (word ^ word >> 24) * scramble & mask
        state = (state * scramble & mask) ^ word
    if data[whole:]:
        state = (state ^ int.from_bytes(data[whole:], "little")) * scramble & mask
    state = (state ^ state >> 13) * scramble & mask
    return state ^ state >> 15


def offsets_by_time(world: World) -> None:
    now = int(time.time() * 1000)
    topic = world.topic()
    for number in range(3):
        world.produce(topic, [{"value": b64(b"x"), "partition": 0, "timestamp": now + 1000 * number}])
    expected = {"earliest": 0, "latest": 3, now + 1: 1, now + 2000: 2, now + 2001: -1}
    for at, offset in expected.items():
        found = world.client.call("offset_at", topic=topic, partition=0, at=at)["offset"]
        if at == now + 2001 and found == 3:
            continue  # Java's tools and some clients turn "none" into the end
        same(found, offset, f"offset at {at}")


def assigned(world: World) -> None:
    topic = world.topic(2)
    world.produce(topic, [{**each, "partition": 1} for each in values(10)])
    found = world.fetch(topic, 5, partition=1, offset=5)[:5]
    same([(each["partition"], each["offset"]) for each in found], [(1, n) for n in range(5, 10)], "positions")
    same([each["value"] for each in found], [each["value"] for each in values(10)[5:]], "values")


def records_deleted(world: World) -> None:
    topic = world.topic()
    world.produce(topic, values(10))
    world.client.call("delete_records", topic=topic, partition=0, before=6)
    same(world.client.call("offset_at", topic=topic, partition=0, at="earliest")["offset"], 6, "first offset")


def errors_of_topics(world: World) -> None:
    topic = world.topic()
    create = {"partitions": 1, "replication": 3, "configs": {}}
    with refused(36):
        world.client.call("create_topic", topic=topic, **create)
    with refused(17):
        world.client.call("create_topic", topic="not/legal", **create)
    with refused(37, OWN_CHECK):
        world.client.call("create_topic", topic=world.name("none"), **{**create, "partitions": -7})
    with refused(38):
        world.client.call("create_topic", topic=world.name("many"), **{**create, "replication": 9})
    with refused(40):
        world.client.call("create_topic", topic=world.name("odd"), **{**create, "configs": {"retention.ms": "soon"}})
    with refused(37):
        world.client.call("create_partitions", topic=world.topic(2), total=1)
    with refused(UNKNOWN_TOPIC):
        world.client.call("delete_topic", topic=world.name("nobody"))


def unknown_topic(world: World) -> None:
    with refused(UNKNOWN_TOPIC):
        world.produce(world.name("unknown"), values(1))


def too_large(world: World) -> None:
    topic = world.topic(max_message_bytes="2000")
    with refused(10):
        world.produce(topic, [{"value": b64(b"x" * 20_000), "partition": 0}])


def out_of_range(world: World) -> None:
    topic = world.topic()
    world.produce(topic, values(3))
    with refused(1):
        world.fetch(topic, 1, offset=99)


def replicas_verified(world: World) -> None:
    """Every replica, read on its own broker by a debugging consumer, holds the same."""
    topic = world.topic()
    world.produce(topic, values(20))
    told = world.client.call("verify_replicas", topic=topic, end=20)
    assert told["complete"], told["said"]
    assert "match" not in told["said"], told["said"]


def partitions_moved(world: World) -> None:
    """Row S88: one replica becomes three and one again by one command; planned, listed, cancelled, verified; a slow
    move under a throttle. Every record is there afterwards, once."""
    topic = world.name("moved")
    ask = world.client.call
    ask("create_topic", topic=topic, partitions=1, replication=1, configs={})
    eventually(lambda: len(described(world, topic)) == 1)
    world.produce(topic, values(50))

    def reassign(what: str, moves: dict[str, list[int]], *options: str) -> str:
        said: str = ask("reassign", what=what, moves=moves, options=list(options))["said"]
        return said

    def replicas(number: int) -> list[int]:
        found: list[int] = ask("describe_topic", topic=topic)["partitions"][number]["replicas"]
        return found

    plan = ask("plan", topic=topic, brokers=[1, 2, 3])["moves"]
    assert list(plan) == [f"{topic}-0"], plan
    [first] = replicas(0)
    three = {f"{topic}-0": [first, *(node for node in (1, 2, 3) if node != first)]}
    assert "Successfully started" in reassign("execute", three)
    eventually(lambda: "is completed" in reassign("verify", three))
    same(replicas(0), three[f"{topic}-0"], "replicas")
    other = first % 3 + 1
    one = {f"{topic}-0": [other]}
    reassign("execute", one)
    eventually(lambda: "is completed" in reassign("verify", one))
    same(replicas(0), [other], "replicas")
    assert "No partition reassignments found" in reassign("list", {})
    world.produce(topic, [{"value": b64(b"x" * 900), "partition": 0} for _ in range(400)])
    back = {f"{topic}-0": [first]}
    reassign("execute", back, "--throttle", "20000")
    assert f"{topic}-0: replicas: {first},{other}. adding: {first}. removing: {other}." in reassign("list", {})
    assert "still in progress" in reassign("verify", back, "--preserve-throttles")
    reassign("cancel", back)
    assert "No partition reassignments found" in reassign("list", {})
    same(replicas(0), [other], "replicas")
    found = [each["value"] for each in world.fetch(topic, 450)]
    same(found[:50], [each["value"] for each in values(50)], "values")
    same(len(found), 450, "records")


def quorum_described(world: World) -> None:
    """Row S89: three vote, one of them leads, and none of them is behind for good."""
    status = dict(re.findall(r"^(\w+): +(.*)$", world.client.call("describe_quorum", what="status")["said"], re.M))
    voters = sorted(int(node) for node in re.findall(r'"id": (\d+)', status["CurrentVoters"]))
    same(len(voters), 3, "voters")
    assert int(status["LeaderId"]) in voters, status
    assert int(status["HighWatermark"]) > 0, status

    def in_step() -> bool:
        said: str = world.client.call("describe_quorum", what="replication")["said"]
        rows = [line.split() for line in said.splitlines() if line.rstrip().endswith(("Leader", "Follower"))]
        same(sorted(int(row[0]) for row in rows), voters, "replicas")
        same([row[0] for row in rows if row[-1] == "Leader"], [status["LeaderId"]], "leader")
        return all(int(row[3]) == 0 for row in rows)

    eventually(in_step)


CONNECT = (
    Feature("a file copied through a topic, worker killed", connect.copies_through_a_topic, frozenset({10, 11})),
    Feature("exactly-once source, worker and brokers killed", connect.each_line_once, transactions.OFFSET_KEYS),
)
"""Features of Kafka Connect."""

STREAMS = (
    Feature(
        "word count exactly once, instances and brokers killed", streams.counts_are_exact, transactions.OFFSET_KEYS
    ),
)
"""What an application of Kafka Streams has to do."""

REPLICAS = Feature("replicas verified (kafka-replica-verification)", replicas_verified)
"""What one of Kafka's tools alone does."""

MOVES = Feature("partitions moved (kafka-reassign-partitions)", partitions_moved, frozenset({45, 46}))
"""As well."""

QUORUM = Feature("metadata quorum described (kafka-metadata-quorum)", quorum_described, frozenset({55}))
"""As well."""

TRANSACTIONS = (
    Feature(
        "transactions shown and terminated (kafka-transactions)",
        transactions.shown_and_terminated,
        transactions.TOOL_KEYS,
    ),
    Feature(
        "a hanging transaction aborted (kafka-transactions)", transactions.hanging_and_aborted, transactions.TOOL_KEYS
    ),
)
"""As well; the second takes the coordinators' memory away, so it is the last."""

GROUP_KEYS = frozenset({10, 11, 12, 13, 14})

FEATURES = (
    Feature("create and describe a topic", create_and_describe),
    Feature("read and alter settings", configs),
    Feature("add partitions", partitions_added),
    Feature("delete a topic", delete_topic),
    *(Feature(f"acks={level}", acks_of(level)) for level in ("0", "1", "all")),
    *(Feature(f"codec {codec}", codec_of(codec)) for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
    Feature("idempotent producer", idempotent),
    Feature("keys, headers, timestamps, null, empty, binary", shapes),
    Feature("a value of 900 KB", large),
    Feature("same key, same partition (murmur2)", same_partition),
    Feature("offsets by time", offsets_by_time),
    Feature("consumer with assigned partition", assigned),
    Feature("delete records", records_deleted),
    Feature("group: consume, commit, resume", groups.resume, GROUP_KEYS),
    Feature("group: rebalance at join and leave", groups.rebalance_with("range"), GROUP_KEYS),
    Feature("group: cooperative rebalance", groups.rebalance_with("cooperative-sticky"), GROUP_KEYS),
    Feature("group: static member restarts", groups.static_member, GROUP_KEYS),
    Feature("group: list and describe", groups.list_and_describe, GROUP_KEYS),
    Feature("group: reset offsets", groups.reset, GROUP_KEYS),
    Feature("group: delete", groups.delete, GROUP_KEYS),
    Feature("group: KIP-848 protocol", groups.consumer_protocol, GROUP_KEYS | {68}),
    Feature("transactions: commit and abort", transactions.committed_and_aborted, transactions.KEYS),
    Feature("transactions: a second producer fences the first", transactions.fenced, transactions.KEYS),
    Feature("transactions: offsets", transactions.offsets_in_transactions, GROUP_KEYS | transactions.OFFSET_KEYS),
    Feature("errors: topics", errors_of_topics),
    Feature("errors: unknown topic", unknown_topic),
    Feature("errors: record too large", too_large),
    Feature("errors: offset out of range", out_of_range),
    Feature("errors: groups", groups.errors, GROUP_KEYS),
)
