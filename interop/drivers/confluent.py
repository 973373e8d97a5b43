"""Driver of confluent-kafka (librdkafka)."""

from __future__ import annotations

import sys
import time
from typing import Any

import confluent_kafka
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from loop import LOGIN, Refused, record, serve, unpacked

BOOTSTRAP = sys.argv[1]
WAIT_S = 20
COMMON: dict[str, Any] = {"bootstrap.servers": BOOTSTRAP, "log_level": 0, **LOGIN.get("librdkafka", {})}

notes: list[KafkaError] = []
"""librdkafka tells an application's callback why it cannot come in; what waits meanwhile times out."""


def note(error: KafkaError) -> None:
    if error.code() != KafkaError._ALL_BROKERS_DOWN:
        notes.append(error)


if LOGIN:
    COMMON["error_cb"] = note


def why(error: KafkaError) -> KafkaException:
    return KafkaException(notes[-1] if notes and error.code() == KafkaError._MSG_TIMED_OUT else error)


class Driver:
    def __init__(self) -> None:
        self.admin = AdminClient(COMMON)
        self.consumer: Consumer | None = None
        self.kept: Producer | None = None
        self.transactional: dict[str, Producer] = {}

    def hello(self) -> dict[str, Any]:
        return {"version": f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"}

    # Topics

    def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        made = self.admin.create_topics([NewTopic(topic, partitions, replication, config=configs)])
        made[topic].result(WAIT_S)

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(WAIT_S)

    def describe_topic(self, topic: str) -> dict[str, Any]:
        found = self.admin.list_topics(topic, timeout=WAIT_S).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return {"partitions": [{"leader": p.leader, "replicas": p.replicas} for p in found.partitions.values()]}

    def alter_config(self, topic: str, configs: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def describe_config(self, topic: str) -> dict[str, Any]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self.admin.describe_configs([resource])[resource].result(WAIT_S)
        return {"configs": {name: entry.value for name, entry in found.items()}}

    def create_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(WAIT_S)

    def delete_records(self, topic: str, partition: int, before: int) -> dict[str, Any]:
        where = TopicPartition(topic, partition, before)
        return {"low": self.admin.delete_records([where])[where].result(WAIT_S).low_watermark}

    def offset_at(self, topic: str, partition: int, at: str | int) -> dict[str, Any]:
        kinds = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
        spec = kinds[at]() if isinstance(at, str) else OffsetSpec.for_timestamp(at)
        where = TopicPartition(topic, partition)
        return {"offset": self.admin.list_offsets({where: spec})[where].result(WAIT_S).offset}

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
        sent: list[dict[str, int]] = [{} for _ in records]
        failures: list[KafkaError] = []

        def told(number: int, error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
            sent[number] = {"partition": message.partition(), "offset": message.offset()}

        for number, each in enumerate(records):
            producer.produce(
                topic,
                unpacked(each.get("value")),
                key=unpacked(each.get("key")),
                headers=[(name, unpacked(data)) for name, data in each.get("headers", [])],
                partition=each.get("partition", -1),
                timestamp=each.get("timestamp", 0),
                on_delivery=lambda error, message, number=number: told(number, error, message),
            )
        producer.flush(WAIT_S)
        if failures:
            raise why(failures[0])
        return {"sent": sent}

    @staticmethod
    def _producer(acks: str, codec: str, idempotent: bool) -> Producer:
        return Producer(
            {
                **COMMON,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "partitioner": "murmur2_random",  # by default librdkafka hashes keys with CRC32 (consistent_random)
                "linger.ms": 20,
                "message.max.bytes": 8_000_000,
                "message.timeout.ms": 15_000,
                "topic.metadata.propagation.max.ms": 1_000,
            }
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
            producer = Producer({**COMMON, "transactional.id": id, "message.timeout.ms": 15_000})
            producer.init_transactions(WAIT_S)
            self.transactional[id] = producer
        producer.begin_transaction()
        for each in records:
            producer.produce(topic, unpacked(each["value"]), partition=each["partition"])
        if group:
            consumer = Consumer({**COMMON, "group.id": group})
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([TopicPartition(source, partition, offset)], metadata, WAIT_S)
            consumer.close()
        producer.flush(WAIT_S)
        if end == "commit":
            producer.commit_transaction(WAIT_S)
        elif end == "abort":
            producer.abort_transaction(WAIT_S)

    def fetch(
        self, topic: str, partition: int, offset: int, count: int, timeout_ms: int, committed: bool = True
    ) -> dict[str, Any]:
        isolation = {"isolation.level": "read_committed" if committed else "read_uncommitted"}
        settings = {**COMMON, **isolation, "group.id": "none", "enable.auto.commit": False}
        consumer = Consumer({**settings, "auto.offset.reset": "error"})
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return {"records": self._take(consumer, count, timeout_ms)}
        finally:
            consumer.close()

    @staticmethod
    def _take(consumer: Consumer, count: int, timeout_ms: int) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout_ms / 1000
        while len(records) < count and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                if message.error().code() == KafkaError._AUTO_OFFSET_RESET:  # the client's wrapping of the broker's 1
                    raise Refused(1 if "out of range" in message.error().str().lower() else -1, str(message.error()))
                raise KafkaException(message.error())
            where = (message.partition(), message.offset(), message.timestamp()[1])
            records.append(record(*where, message.key(), message.value(), message.headers()))
        return records

    # Groups

    def join(self, group: str, topics: list[str], assignor: str, instance: str | None, protocol: str) -> None:
        settings: dict[str, Any] = {
            **COMMON,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "group.protocol": protocol,
        }
        if protocol == "classic":
            settings |= {"partition.assignment.strategy": assignor, "heartbeat.interval.ms": 500}
        if instance is not None:
            settings["group.instance.id"] = instance
        self.consumer = Consumer(settings)
        self.consumer.subscribe(topics)

    def poll(self, timeout_ms: int, count: int) -> dict[str, Any]:
        assert self.consumer is not None
        records = self._take(self.consumer, count, timeout_ms)
        return {"records": records, "assigned": [[each.topic, each.partition] for each in self.consumer.assignment()]}

    def commit(self) -> None:
        assert self.consumer is not None
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()
            self.consumer = None

    def list_groups(self) -> dict[str, Any]:
        found = self.admin.list_consumer_groups().result(WAIT_S)
        return {"groups": [each.group_id for each in found.valid]}

    def describe_group(self, group: str) -> dict[str, Any]:
        found = self.admin.describe_consumer_groups([group])[group].result(WAIT_S)
        return {"state": found.state.name, "members": len(found.members)}

    def delete_group(self, group: str) -> None:
        self.admin.delete_consumer_groups([group])[group].result(WAIT_S)

    def committed(self, group: str, topic: str, partitions: list[int]) -> dict[str, Any]:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, each) for each in partitions])
        found = self.admin.list_consumer_group_offsets([wanted])[group].result(WAIT_S).topic_partitions
        return {"offsets": {str(each.partition): each.offset for each in found}}

    def reset_group(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
        told = self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])
        for each in told[group].result(WAIT_S).topic_partitions:
            if each.error is not None:
                raise KafkaException(each.error)


LOCAL = {
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._FENCED: KafkaError.INVALID_PRODUCER_EPOCH,
}


def code_of(error: Exception) -> int:
    code = int(error.args[0].code()) if isinstance(error, KafkaException) else -1
    return int(LOCAL.get(code, code))


driver = Driver()
serve({name: getattr(driver, name) for name in dir(Driver) if not name.startswith("_")}, code_of)
