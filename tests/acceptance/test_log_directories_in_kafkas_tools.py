"""The log directories of a node as Apache Kafka's own tool sees them (KIP-113)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from interop.tools import KafkaTools

from strandline.client import NewTopic, Producer
from strandline.client.admin import Admin
from tests.acceptance.foreign import kafka_tools
from tests.acceptance.helpers import eventually
from tests.two_directories import directory_of, node_of_two_directories


def test_a_move_as_kafka_log_dirs_sees_it(tmp_path: Path) -> None:
    """Which replica lies where, and its size; before the move and after."""
    with (
        node_of_two_directories(tmp_path) as bootstrap,
        closing(kafka_tools(bootstrap)) as tools,
        Admin(bootstrap) as admin,
        Producer(bootstrap) as producer,
    ):
        admin.create_topics([NewTopic("t", 1, 1)])
        for number in range(500):
            producer.send("t", b"%d" % number)
        producer.flush()
        here = directory_of(tmp_path, "t-0")
        there = "b" if here == "a" else "a"
        before = seen(tools)
        assert before[str(tmp_path / there)] == {}
        assert before[str(tmp_path / here)]["t-0"] > 500
        assert admin.alter_replica_log_dirs({("t", 0, 1): str(tmp_path / there)}) == {("t", 0, 1): None}
        eventually(lambda: not (tmp_path / here / "t-0").exists())
        assert seen(tools) == {str(tmp_path / there): before[str(tmp_path / here)], str(tmp_path / here): {}}


def test_a_move_to_another_disk_by_kafka_reassign_partitions(tmp_path: Path) -> None:
    """`log_dirs` in its file: the replica stays on its broker and goes to the other directory."""
    with node_of_two_directories(tmp_path) as bootstrap, closing(kafka_tools(bootstrap)) as tools:
        with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            admin.create_topics([NewTopic("t", 1, 1)])
            producer.send("t", b"kept")
            producer.flush()
        here = directory_of(tmp_path, "t-0")
        there = str(tmp_path / ("b" if here == "a" else "a"))
        size = seen(tools)[str(tmp_path / here)]["t-0"]
        file = tmp_path / "moves.json"
        moves = [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [there]}]
        file.write_text(json.dumps({"version": 1, "partitions": moves}))
        which = ("--reassignment-json-file", str(file))
        assert "Successfully started" in tools.run("kafka-reassign-partitions", "--execute", *which)
        eventually(lambda: seen(tools) == {there: {"t-0": size}, str(tmp_path / here): {}})
        eventually(lambda: "completed successfully" in tools.run("kafka-reassign-partitions", "--verify", *which))


def seen(tools: KafkaTools) -> dict[str, dict[str, int]]:
    """The sizes of the topic's replicas by directory."""
    said = tools.run("kafka-log-dirs", "--describe", "--topic-list", "t")
    [broker] = json.loads(next(line for line in said.splitlines() if line.startswith("{")))["brokers"]
    return {
        directory["logDir"]: {replica["partition"]: replica["size"] for replica in directory["partitions"]}
        for directory in broker["logDirs"]
    }
