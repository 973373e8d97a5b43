"""Driver of kafka-python."""

from __future__ import annotations

import sys
import time
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, KafkaTimeoutError, OffsetOutOfRangeError
from kafka.net.sasl.oauth import AbstractTokenProvider
from loop import LOGIN, Unsupported, login_settings, record, serve, unpacked

WAIT_S = 20
ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


class Token(AbstractTokenProvider):
    def token(self) -> str:
        return str(LOGIN["token"])


CLUSTER: dict[str, Any] = {"bootstrap_servers": sys.argv[1].split(","), **login_settings(Token())}


class Driver:
    def __init__(self) -> None:
        self._admin: KafkaAdminClient | None = None
        self.consumer: KafkaConsumer | None = None
        self.kept: KafkaProducer | None = None
        self.transactional: dict[str, KafkaProducer] = {}

    def _client(self) -> KafkaAdminClient:
        self._admin = self._admin or KafkaAdminClient(**CLUSTER)
        return self._admin

    def hello(self) -> dict[str, Any]:
        return {"version": kafka.__version__}

    # Topics

    def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        wanted = {"num_partitions": partitions, "replication_factor": replication, "configs": configs}
        self._client().create_topics({topic: wanted})

    def delete_topic(self, topic: str) -> None:
        self._client().delete_topics([topic])

    def describe_topic(self, topic: str) -> dict[str, Any]:
        [found] = self._client().describe_topics([topic])
        if found["error_code"]:
            raise kafka.errors.for_code(found["error_code"])(topic)
        return {"partitions": [{"leader": p["leader_id"], "replicas": p["replica_nodes"]} for p in found["partitions"]]}

    def alter_config(self, topic: str, configs: dict[str, str]) -> None:
        self._client().alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])

    def describe_config(self, topic: str) -> dict[str, Any]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, None)
        found = self._client().describe_configs([resource], config_filter="all")
        entries = next(iter(found.values()))[topic]
        return {"configs": {name: entry["value"] for name, entry in entries.items()}}

    def create_partitions(self, topic: str, total: int) -> None:
        self._client().create_partitions({topic: total})

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._client().delete_records({TopicPartition(topic, partition): before})

    def offset_at(self, topic: str, partition: int, at: str | int) -> dict[str, Any]:
        where = TopicPartition(topic, partition)
        consumer = KafkaConsumer(**CLUSTER)
        try:
            if at == "earliest":
                return {"offset": consumer.beginning_offsets([where])[where]}
            if at == "latest":
                return {"offset": consumer.end_offsets([where])[where]}
            found = consumer.offsets_for_times({where: at})[where]
            return {"offset": -1 if found is None else found.offset}
        finally:
            consumer.close()

    # Records

    def produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        acks: str,
        codec: str,
        idempotent: bool,
        kept: bool = False,
    ) -> dict[str, Any]:
        producer = self.kept if kept and self.kept is not None else self._producer(acks, codec, idempotent)
        self.kept = producer if kept else self.kept
        try:
            futures = [
                producer.send(
                    topic,
                    unpacked(each.get("value")),
                    key=unpacked(each.get("key")),
                    partition=each.get("partition"),
                    timestamp_ms=each.get("timestamp"),
                    headers=[(name, unpacked(data)) for name, data in each.get("headers", [])],
                )
                for each in records
            ]
            told = [future.get(WAIT_S) for future in futures]
        finally:
            if not kept:
                producer.close(5)
        return {"sent": [{"partition": each.partition, "offset": each.offset} for each in told]}

    @staticmethod
    def _producer(acks: str, codec: str, idempotent: bool) -> KafkaProducer:
        return KafkaProducer(
            **CLUSTER,
            acks="all" if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=8_000_000,
            linger_ms=20,
            max_block_ms=5_000,
        )

    def transact(
        self,
        id: str,
        topic: str,
        records: list[dict[str, Any]],
        end: str,
        group: str = "",
        source: str = "",
        partition: int = 0,
        offset: int = -1,
    ) -> None:
        producer = self.transactional.get(id)
        if producer is None:
            producer = KafkaProducer(**CLUSTER, transactional_id=id, max_block_ms=WAIT_S * 1000)
            producer.init_transactions()
            self.transactional[id] = producer
        producer.begin_transaction()
        futures = [producer.send(topic, unpacked(each["value"]), partition=each["partition"]) for each in records]
        for future in futures:
            future.get(WAIT_S)
        if group:
            offsets = {TopicPartition(source, partition): OffsetAndMetadata(offset, "", -1)}
            producer.send_offsets_to_transaction(offsets, group)
        if end == "commit":
            producer.commit_transaction()
        elif end == "abort":
            producer.abort_transaction()

    def fetch(
        self, topic: str, partition: int, offset: int, count: int, timeout_ms: int, committed: bool = False
    ) -> dict[str, Any]:
        where = TopicPartition(topic, partition)
        level = "read_committed" if committed else "read_uncommitted"
        consumer = KafkaConsumer(**CLUSTER, auto_offset_reset="none", isolation_level=level)
        try:
            consumer.assign([where])
            consumer.seek(where, offset)
            return {"records": self._take(consumer, count, timeout_ms)}
        finally:
            consumer.close()

    @staticmethod
    def _take(consumer: KafkaConsumer, count: int, timeout_ms: int) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout_ms / 1000
        while len(records) < count and time.monotonic() < deadline:
            # Not in small steps: a poll that ends while 3.0.12 joins anew for new metadata forgets what it is assigned.
            left_ms = max(1, int(1000 * (deadline - time.monotonic())))
            polled = consumer.poll(timeout_ms=left_ms, max_records=count - len(records))
            for each in [each for batch in polled.values() for each in batch]:
                records.append(record(each.partition, each.offset, each.timestamp, each.key, each.value, each.headers))
        return records

    # Groups

    def join(self, group: str, topics: list[str], assignor: str, instance: str | None, protocol: str) -> None:
        if protocol != "classic":
            raise Unsupported("has no KIP-848 protocol")
        self.consumer = KafkaConsumer(
            *topics,
            **CLUSTER,
            group_id=group,
            group_instance_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[ASSIGNORS[assignor]],
            heartbeat_interval_ms=500,
        )

    def poll(self, timeout_ms: int, count: int) -> dict[str, Any]:
        assert self.consumer is not None
        records = self._take(self.consumer, count, timeout_ms)
        return {"records": records, "assigned": [[each.topic, each.partition] for each in self.consumer.assignment()]}

    def commit(self) -> None:
        assert self.consumer is not None
        self.consumer.commit()

    def close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()
            self.consumer = None

    def list_groups(self) -> dict[str, Any]:
        return {"groups": [each["group_id"] for each in self._client().list_groups()]}

    def describe_group(self, group: str) -> dict[str, Any]:
        found = self._client().describe_groups([group])[group]
        return {"state": found["group_state"], "members": len(found["members"])}

    def delete_group(self, group: str) -> None:
        told = self._client().delete_groups([group])[group]
        if told != "OK":
            raise getattr(kafka.errors, told)(group)

    def committed(self, group: str, topic: str, partitions: list[int]) -> dict[str, Any]:
        wanted = [TopicPartition(topic, each) for each in partitions]
        found = self._client().list_group_offsets({group: wanted})[group]
        return {"offsets": {str(where.partition): told.offset for where, told in found.items()}}

    def reset_group(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = {
            TopicPartition(topic, int(partition)): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        for kind in self._client().alter_group_offsets(group, wanted).values():
            if kind.errno:
                raise kind(group)


def code_of(error: Exception) -> int:
    if isinstance(error, OffsetOutOfRangeError):
        return 1
    if isinstance(error, KafkaTimeoutError) and "Failed to update metadata" in str(error):
        return 3  # all that this client tells of a topic that is not there
    return int(getattr(error, "errno", -1)) if isinstance(error, KafkaError) else -1


driver = Driver()
serve({name: getattr(driver, name) for name in dir(Driver) if not name.startswith("_")}, code_of)
