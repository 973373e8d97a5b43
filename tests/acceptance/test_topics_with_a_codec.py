"""Topics with a codec of their own, on real nodes: written and read by other people's clients, altered live."""

from __future__ import annotations

import json
from collections import Counter

import confluent_kafka
import pytest
from click.testing import CliRunner

from strandline.cli.configs import config as config_command
from strandline.cluster.node.dev import DevCluster
from strandline.log.batch import parse_header
from tests.acceptance.foreign import stored_batches, topic_cli
from tests.acceptance.helpers import QUICK, eventually, read_all

TOPIC = "packed"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def send(bootstrap: str, codec: str, values: list[bytes], **settings: object) -> list[int]:
    """By librdkafka, idempotent, as one batch; the error codes."""
    options = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 200, "enable.idempotence": True}
    producer = confluent_kafka.Producer({**options, **{name.replace("_", "."): of for name, of in settings.items()}})
    codes: list[int] = []
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: codes.append(0 if error is None else error.code()))
    assert producer.flush(30) == 0
    return codes


def codecs_on_disk(cluster: DevCluster, node: int) -> Counter[str]:
    """How many batches a node has of each codec."""
    return Counter(parse_header(batch).codec.name.lower() for batch in stored_batches(cluster.data_dir(node), TOPIC))


def alter(cluster: DevCluster, *settings: str) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    result = CliRunner().invoke(config_command, ["alter", "topic", TOPIC, *words, "--bootstrap", cluster.bootstrap])
    assert result.exit_code == 0, result.output
    assert "no effect" not in result.output + result.stderr


@pytest.mark.parametrize("target", ["gzip", "lz4", "zstd", "snappy", "uncompressed"])
def test_whatever_is_sent_is_stored_in_the_codec_of_the_topic(target: str) -> None:
    """Row S32: on every replica, and every client reads the same; short batches and long ones."""
    name = "none" if target == "uncompressed" else target
    large = [json.dumps({"number": number, "text": "words and words " * 40}).encode() for number in range(500)]
    with DevCluster(settings=QUICK) as cluster:
        topic_cli(cluster.bootstrap, "create", TOPIC, "--partitions", "1", "-c", f"compression.type={target}")
        sent: list[bytes] = []
        for codec in CODECS:
            for values in ([b"lone with " + codec.encode()], large):
                assert set(send(cluster.bootstrap, codec, values)) == {0}
                sent += values
        assert read_all(cluster, TOPIC) == sent
        for node in cluster.node_ids:
            eventually(lambda node=node: sum(codecs_on_disk(cluster, node).values()) >= 10)
            assert set(codecs_on_disk(cluster, node)) == {name}


def test_codec_and_bound_are_altered_while_records_come() -> None:
    """Row S90: what is stored keeps its codec, what comes next has the new one; the bound is on what is stored."""
    with DevCluster(settings=QUICK) as cluster:
        topic_cli(cluster.bootstrap, "create", TOPIC, "--partitions", "1")
        leader = cluster.node_ids[0]
        value = b"words and more words " * 20_000
        assert send(cluster.bootstrap, "zstd", [value]) == [0]
        alter(cluster, "compression.type=gzip", "compression.gzip.level=9")
        eventually(
            lambda: send(cluster.bootstrap, "zstd", [value]) == [0] and "gzip" in codecs_on_disk(cluster, leader)
        )
        alter(cluster, "compression.type=uncompressed", "max.message.bytes=100000")
        too_large = confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
        eventually(lambda: send(cluster.bootstrap, "zstd", [value], message_max_bytes=10_000_000) == [too_large])
        alter(cluster, "max.message.bytes=1000000")
        eventually(lambda: send(cluster.bootstrap, "zstd", [value], message_max_bytes=10_000_000) == [0])
        alter(cluster, "compression.type=producer")
        eventually(lambda: send(cluster.bootstrap, "lz4", [value]) == [0] and "lz4" in codecs_on_disk(cluster, leader))
        assert set(codecs_on_disk(cluster, leader)) == {"zstd", "gzip", "none", "lz4"}
        assert set(read_all(cluster, TOPIC)) == {value}
