"""Rows S01 to S03, S11 to S16, S18, S20: topics, partitions, replicas, payloads, on clusters of real processes."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as ForeignTopic

from strandline.client import Admin, ConfigChange, ConfigResource, Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.acceptance.faults import FaultyCluster
from tests.acceptance.foreign import kcat, needs_kcat, segment_files, stored_batches, topic_cli
from tests.acceptance.helpers import describe, eventually, read_all, send_all, wait_led
from tests.acceptance.topics import create

EVERY_BROKER = ConfigResource("broker", "")


@contextmanager
def broker_setting(bootstrap: str, name: str, value: str) -> Iterator[None]:
    """A dynamic setting of every broker, for a while."""
    with Admin(bootstrap) as admin:
        admin.alter_configs({EVERY_BROKER: [ConfigChange(name, value)]})
        try:
            yield
        finally:
            admin.alter_configs({EVERY_BROKER: [ConfigChange(name, operation="delete")]})


@needs_kcat
def test_a_record_is_a_pair_of_bytes(cluster: DevCluster) -> None:
    """Row S01: kcat's pair comes back as it was; the batch is byte-identical on every replica.

    Left out: "no call rewrites an offset" is no run, it is the absence of such a call.
    """
    create(cluster.bootstrap, "s01")
    kcat("-b", cluster.bootstrap, "-P", "-t", "s01", "-K:", stdin=b"table-7:soup\n")
    read = kcat("-b", cluster.bootstrap, "-C", "-t", "s01", "-e", "-q", "-f", "%k=%s\n")
    assert read == "table-7=soup\n"

    def replicas_equal() -> bool:
        copies = [stored_batches(cluster.data_dir(node), "s01") for node in cluster.broker_ids]
        assert copies[0]
        assert copies[0] == copies[1] == copies[2]
        return True

    eventually(replicas_equal)


def test_a_topic_is_an_append_only_log(cluster: DevCluster) -> None:
    """Row S02: what is in the file stays as it is, later records come behind it; offsets 0 to 5."""
    create(cluster.bootstrap, "s02")
    node = describe(cluster, "s02").leader
    assert node is not None
    assert send_all(cluster, "s02", [b"a", b"b", b"c"]) == [0, 1, 2]
    before = b"".join(stored_batches(cluster.data_dir(node), "s02"))
    digest = hashlib.sha256(before).digest()
    assert send_all(cluster, "s02", [b"d", b"e", b"f"]) == [3, 4, 5]
    [segment] = segment_files(cluster.data_dir(node), "s02")
    after = segment.read_bytes()
    assert hashlib.sha256(after[: len(before)]).digest() == digest
    assert len(b"".join(stored_batches(cluster.data_dir(node), "s02"))) > len(before)
    assert read_all(cluster, "s02") == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_partitions_are_spread_over_brokers(cluster: DevCluster) -> None:
    """Row S03: of 6 partitions each of 3 nodes leads 2."""
    create(cluster.bootstrap, "s03", partitions=6)
    foreign = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partitions = eventually(lambda: foreign.list_topics("s03", timeout=10).topics["s03"].partitions)
    assert Counter(part.leader for part in partitions.values()) == {1: 2, 2: 2, 3: 2}


def test_topic_commands(cluster: DevCluster) -> None:
    """Row S11: create, list, describe, delete from the CLI; another client's same request leaves the same description.

    Left out: kafka-topics.sh itself, whose jar is not among Apache Kafka's server artifacts; librdkafka's admin asks.
    """
    ours = topic_cli(
        cluster.bootstrap, "create", "s11-ours", "-p", "3", "-r", "2", "-c", "retention.ms=60000", "-o", "json"
    )
    [created] = json.loads(ours.stdout)["created"]
    assert (created["partitions"], created["replication_factor"]) == (3, 2)
    foreign = AdminClient({"bootstrap.servers": cluster.bootstrap})
    foreign.create_topics([ForeignTopic("s11-theirs", 3, 2, config={"retention.ms": "60000"})])["s11-theirs"].result(10)
    for name in ("s11-ours", "s11-theirs"):
        wait_led(cluster.bootstrap, name)

    def described(name: str) -> dict[str, Any]:
        [document] = json.loads(topic_cli(cluster.bootstrap, "describe", name, "-o", "json").stdout)
        for part in document["partitions"]:
            assert len(part["replicas"]) == len(part["isr"]) == 2
            for placed in ("leader", "replicas", "isr"):
                del part[placed]  # another topic, another place
        del document["name"], document["topic_id"]
        return dict(document)

    assert described("s11-ours") == described("s11-theirs")
    assert described("s11-ours")["configs"]["retention.ms"] == "60000"
    listed = {item["name"]: len(item["partitions"]) for item in json.loads(list_json(cluster))}
    assert (listed["s11-ours"], listed["s11-theirs"]) == (3, 3)
    assert "would delete topic s11-ours" in topic_cli(cluster.bootstrap, "delete", "s11-ours", "--dry-run").stdout
    topic_cli(cluster.bootstrap, "delete", "s11-ours", "--yes")
    eventually(lambda: "s11-ours" not in list_json(cluster))
    refused = topic_cli(cluster.bootstrap, "describe", "s11-ours", exit_code=1)
    assert "strandline topic create s11-ours" in refused.stderr
    foreign.delete_topics(["s11-theirs"])["s11-theirs"].result(10)


def list_json(cluster: DevCluster) -> str:
    return topic_cli(cluster.bootstrap, "list", "-o", "json").stdout


def test_fallback_partition_count(cluster: DevCluster) -> None:
    """Row S12: without a count a topic has 1 partition, or as many as num.partitions says."""
    create(cluster.bootstrap, "s12-one", partitions=-1)
    with broker_setting(cluster.bootstrap, "num.partitions", "3"):
        create(cluster.bootstrap, "s12-three", partitions=-1)
        with Admin(cluster.bootstrap) as admin:
            assert [len(item.partitions) for item in admin.describe_topics(["s12-one", "s12-three"])] == [1, 3]


def test_default_replication_factor(cluster: DevCluster) -> None:
    """Row S13: 3 replicas without asking on three nodes; a node alone makes 1 and says so aloud.

    Left out here: `doctor` flagging a factor of 1, tested with `doctor`.
    """
    made = topic_cli(cluster.bootstrap, "create", "s13")
    assert "3 replicas each" in made.stdout
    assert made.stderr == ""
    wait_led(cluster.bootstrap, "s13")
    assert len(describe(cluster, "s13").replicas) == 3
    with DevCluster(nodes=1) as alone:
        made = topic_cli(alone.bootstrap, "create", "s13")
        assert "1 replica each" in made.stdout
        assert "warning: s13 has 1 replica" in made.stderr
        assert send_all(alone, "s13", [b"kept"]) == [0]


def test_replication_above_the_broker_count(cluster: DevCluster) -> None:
    """Row S14: INVALID_REPLICATION_FACTOR, and nothing is created, by our client, the CLI and librdkafka."""
    refused = topic_cli(cluster.bootstrap, "create", "s14", "--replication", "4", exit_code=1)
    assert "INVALID_REPLICATION_FACTOR" in refused.stderr
    with pytest.raises(KafkaError) as ours:
        create(cluster.bootstrap, "s14", replication=4)
    assert ours.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    foreign = AdminClient({"bootstrap.servers": cluster.bootstrap})
    with pytest.raises(confluent_kafka.KafkaException) as theirs:
        foreign.create_topics([ForeignTopic("s14", 1, 4)])["s14"].result(10)
    assert theirs.value.args[0].code() == confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR
    with Admin(cluster.bootstrap) as admin:
        assert "s14" not in admin.list_topics()


@needs_kcat
def test_topics_are_not_made_by_typos(cluster: DevCluster) -> None:
    """Row S15, off (the default): produce and consume get UNKNOWN_TOPIC_OR_PARTITION, and no topic appears."""
    patience = ("-X", "topic.metadata.propagation.max.ms=200")  # how long librdkafka takes "unknown" for "not yet"
    told = kcat("-b", cluster.bootstrap, "-P", "-t", "s15-typo", *patience, stdin=b"x\n", fails=True)
    assert "Unknown topic or partition" in told
    told = kcat("-b", cluster.bootstrap, "-C", "-t", "s15-typo", "-e", *patience, fails=True)
    assert "Unknown topic or partition" in told
    with Admin(cluster.bootstrap) as admin:
        assert "s15-typo" not in admin.list_topics()


@needs_kcat
def test_topics_made_on_first_use(cluster: DevCluster) -> None:
    """Row S15, on: a topic appears on produce and on metadata, with default partitions, factor and retention."""
    with broker_setting(cluster.bootstrap, "auto.create.topics.enable", "true"), Admin(cluster.bootstrap) as admin:
        kcat("-b", cluster.bootstrap, "-P", "-t", "s15-kcat", stdin=b"x\n")
        with Producer(cluster.bootstrap) as producer:
            assert producer.send("s15-ours", b"x").result(20).offset == 0
        made = ("s15-kcat", "s15-ours", "s15-asked")

        def all_made() -> bool:
            # It asks once, and perhaps a broker that has not heard of the setting yet.
            kcat("-b", cluster.bootstrap, "-L", "-t", "s15-asked", "-X", "allow.auto.create.topics=true")
            return set(made) <= set(admin.list_topics())

        eventually(all_made)
        for topic in admin.describe_topics(made):
            assert [len(part.replicas) for part in topic.partitions] == [3]
            resource = ConfigResource("topic", topic.name)
            entries = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource]}
            assert entries["retention.ms"] == "604800000"


def test_partitions_added_to_a_live_topic(cluster: DevCluster) -> None:
    """Row S16: old offsets unchanged, clients in use learn of the new ones, the CLI warns that keys move.

    An assigned consumer goes on here; a running group does in `tests/acceptance/test_kafka_command_line_tools.py`.
    """
    create(cluster.bootstrap, "s16", partitions=3)
    old = [("s16", number) for number in range(3)]
    with (
        Producer(cluster.bootstrap, metadata_max_age_ms=300) as producer,
        Consumer(cluster.bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=300) as consumer,
    ):
        consumer.assign(old)
        acks = [producer.send("s16", b"%d" % number, partition=number % 3).result(20) for number in range(30)]
        altered = topic_cli(cluster.bootstrap, "alter", "s16", "--partitions", "6")
        assert "6 partitions, 3 before" in altered.stdout
        assert "a key may map to another partition" in altered.stderr
        eventually(lambda: producer.partitions_for("s16") == 6)
        new = producer.send("s16", b"30", partition=5).result(20)
        assert new.offset == 0
        consumer.assign([*old, ("s16", 5)])
        seen: set[tuple[int, int, bytes | None]] = set()

        def all_seen() -> bool:
            seen.update((one.partition, one.offset, one.value) for one in consumer.poll(1))
            return len(seen) >= 31

        eventually(all_seen)
        assert seen == {(ack.partition, ack.offset, b"%d" % number) for number, ack in enumerate([*acks, new])}
    refused = topic_cli(cluster.bootstrap, "alter", "s16", "--partitions", "4", exit_code=1)
    assert "INVALID_PARTITIONS" in refused.stderr


@pytest.mark.parametrize(("partitions", "copies"), [(2, 2), (3, 2), (4, 3)])
def test_balanced_for_any_shape(cluster: DevCluster, partitions: int, copies: int) -> None:
    """Row S18: no broker has two copies of a partition; copies and leaders a broker differ by at most 1."""
    name = f"s18-{partitions}-{copies}"
    create(cluster.bootstrap, name, partitions, copies)
    with Admin(cluster.bootstrap) as admin:
        [topic] = admin.describe_topics([name])
    for part in topic.partitions:
        assert len(set(part.replicas)) == len(part.replicas) == copies
    held = Counter(node for part in topic.partitions for node in part.replicas)
    led = Counter(part.leader for part in topic.partitions)
    for counts in (held, led):
        spread = [counts[node] for node in (1, 2, 3)]
        assert max(spread) - min(spread) <= 1, spread


def test_preferred_leaders_return(faulty: FaultyCluster) -> None:
    """Row S18: after a rolling restart every partition is led by its preferred replica again; what was acked is
    there."""
    create(faulty.bootstrap, "s18-rolling", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with Producer(faulty.bootstrap) as producer, Admin(faulty.bootstrap) as admin:
        sent = []
        for node in (1, 2, 3):
            sent += [producer.send("s18-rolling", b"%d" % node, partition=number) for number in range(3)]
            faulty.nodes.stop_node(node)
            sent += [producer.send("s18-rolling", b"%d" % node, partition=number) for number in range(3)]
            faulty.nodes.start_node(node)

        def preferred() -> bool:
            [topic] = admin.describe_topics(["s18-rolling"])
            return all(part.leader == part.replicas[0] and len(part.isr) == 3 for part in topic.partitions)

        eventually(preferred)
        acks = [future.result(30) for future in sent]
        ends = admin.list_offsets({("s18-rolling", number): -1 for number in range(3)})
    assert len({(ack.partition, ack.offset) for ack in acks}) == 18
    assert sorted(listed.offset for listed in ends.values()) == [6, 6, 6]


def test_payload_is_opaque(faulty: FaultyCluster) -> None:
    """Row S20: any bytes come back as they were, and the batch on disk is, from its CRC on, what the producer sent."""
    create(faulty.bootstrap, "s20", replicas=[[1, 2, 3]])
    rng = random.Random(20)
    values: list[bytes | None] = [b"", None, rng.randbytes(1_000_000), b"\xff\xfe\x80 not UTF-8"]
    values += [rng.randbytes(rng.randrange(300)) for _ in range(996)]
    with Producer(faulty.bootstrap) as producer:
        futures = [producer.send("s20", value, key=value and value[:9]) for value in values]
        assert [future.result(30).offset for future in futures] == list(range(1000))
    with Consumer(faulty.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("s20", 0)])
        read: list[Any] = []

        def all_read() -> bool:
            read.extend(consumer.poll(1))
            return len(read) >= 1000

        eventually(all_read)
    assert [one.value for one in read] == values
    assert [one.key for one in read] == [value and value[:9] for value in values]
    sent = b"".join(faulty.proxies[1].frames)
    batches = stored_batches(faulty.nodes.data_dir(1), "s20")
    assert batches
    for batch in batches:
        assert batch[17:] in sent  # CRC and everything under it; before it the broker writes offset and leader epoch
