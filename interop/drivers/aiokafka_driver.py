"""Driver of aiokafka."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, UnknownTopicOrPartitionError, for_code
from loop import LOGIN, Unsupported, login_settings, record, serve, unpacked

WAIT_S = 20


class Token(AbstractTokenProvider):
    async def token(self) -> str:
        return str(LOGIN["token"])


CLUSTER: dict[str, Any] = {"bootstrap_servers": sys.argv[1], **login_settings(Token())}


def check(response: Any) -> None:
    """Raise the first error in an answer that lists (topic, code, ...)."""
    listed = getattr(response, "topic_errors", None) or getattr(response, "topic_error_codes", None) or []
    for each in listed:
        if each[1]:
            raise for_code(each[1])(each[2] if len(each) > 2 else each[0])


class Driver:
    def __init__(self) -> None:
        self.admin: AIOKafkaAdminClient | None = None
        self.consumer: AIOKafkaConsumer | None = None
        self.kept: AIOKafkaProducer | None = None
        self.transactional: dict[str, AIOKafkaProducer] = {}

    async def _admin(self) -> AIOKafkaAdminClient:
        if self.admin is None:
            self.admin = AIOKafkaAdminClient(**CLUSTER)
            await self.admin.start()
        return self.admin

    async def hello(self) -> dict[str, Any]:
        return {"version": aiokafka.__version__}

    # Topics

    async def create_topic(self, topic: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        admin = await self._admin()
        check(await admin.create_topics([NewTopic(topic, partitions, replication, topic_configs=configs)]))

    async def delete_topic(self, topic: str) -> None:
        check(await (await self._admin()).delete_topics([topic]))

    async def describe_topic(self, topic: str) -> dict[str, Any]:
        [found] = await (await self._admin()).describe_topics([topic])
        if found["error_code"]:
            raise for_code(found["error_code"])(topic)
        return {"partitions": [{"leader": p["leader"], "replicas": p["replicas"]} for p in found["partitions"]]}

    async def alter_config(self, topic: str, configs: dict[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
        for answer in await (await self._admin()).alter_configs([resource]):
            for code, text, *_ in answer.resources:
                if code:
                    raise for_code(code)(text)

    async def describe_config(self, topic: str) -> dict[str, Any]:
        [answer] = await (await self._admin()).describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        [(code, text, _, _, entries)] = answer.resources
        if code:
            raise for_code(code)(text)
        return {"configs": {entry[0]: entry[1] for entry in entries}}

    async def create_partitions(self, topic: str, total: int) -> None:
        check(await (await self._admin()).create_partitions({topic: NewPartitions(total)}))

    async def delete_records(self, topic: str, partition: int, before: int) -> dict[str, Any]:
        where = TopicPartition(topic, partition)
        return {"low": (await (await self._admin()).delete_records({where: RecordsToDelete(before)}))[where]}

    async def offset_at(self, topic: str, partition: int, at: str | int) -> dict[str, Any]:
        where = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(**CLUSTER) as consumer:
            if at == "earliest":
                return {"offset": (await consumer.beginning_offsets([where]))[where]}
            if at == "latest":
                return {"offset": (await consumer.end_offsets([where]))[where]}
            found = (await consumer.offsets_for_times({where: at}))[where]
            return {"offset": -1 if found is None else found.offset}

    # Records

    async def produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        acks: str,
        codec: str,
        idempotent: bool,
        kept: bool = False,
    ) -> dict[str, Any]:
        if kept:
            if self.kept is None:
                self.kept = self._producer(acks, codec, idempotent)
                await self.kept.start()
            return await self._send(self.kept, topic, records)
        async with self._producer(acks, codec, idempotent) as producer:
            return await self._send(producer, topic, records)

    @staticmethod
    def _producer(acks: str, codec: str, idempotent: bool) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **CLUSTER,
            acks="all" if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=8_000_000,
            linger_ms=20,
            request_timeout_ms=3_000,
        )

    @staticmethod
    async def _send(producer: AIOKafkaProducer, topic: str, records: list[dict[str, Any]]) -> dict[str, Any]:
        futures = [
            await producer.send(
                topic,
                unpacked(each.get("value")),
                key=unpacked(each.get("key")),
                partition=each.get("partition"),
                timestamp_ms=each.get("timestamp"),
                headers=[(name, unpacked(data)) for name, data in each.get("headers", [])],
            )
            for each in records
        ]
        told = [await future for future in futures]
        return {"sent": [{"partition": each.partition, "offset": each.offset} for each in told if each is not None]}

    async def transact(
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
            producer = AIOKafkaProducer(**CLUSTER, transactional_id=id)
            await producer.start()
            self.transactional[id] = producer
        await producer.begin_transaction()
        futures = [await producer.send(topic, unpacked(each["value"]), partition=each["partition"]) for each in records]
        for future in futures:
            await future
        if group:
            await producer.send_offsets_to_transaction({TopicPartition(source, partition): offset}, group)
        if end == "commit":
            await producer.commit_transaction()
        elif end == "abort":
            await producer.abort_transaction()

    async def fetch(
        self, topic: str, partition: int, offset: int, count: int, timeout_ms: int, committed: bool = False
    ) -> dict[str, Any]:
        where = TopicPartition(topic, partition)
        level = "read_committed" if committed else "read_uncommitted"
        async with AIOKafkaConsumer(**CLUSTER, auto_offset_reset="none", isolation_level=level) as consumer:
            consumer.assign([where])
            consumer.seek(where, offset)
            return {"records": await self._take(consumer, count, timeout_ms)}

    @staticmethod
    async def _take(consumer: AIOKafkaConsumer, count: int, timeout_ms: int) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        clock = asyncio.get_running_loop()
        deadline = clock.time() + timeout_ms / 1000
        while len(records) < count and clock.time() < deadline:
            polled: dict[Any, list[ConsumerRecord[Any, Any]]] = await consumer.getmany(
                timeout_ms=100, max_records=count - len(records)
            )
            for each in [each for batch in polled.values() for each in batch]:
                records.append(record(each.partition, each.offset, each.timestamp, each.key, each.value, each.headers))
        return records

    # Groups

    async def join(self, group: str, topics: list[str], assignor: str, instance: str | None, protocol: str) -> None:
        if protocol != "classic" or assignor == "cooperative-sticky":
            raise Unsupported("has eager assignors alone" if protocol == "classic" else "has no KIP-848 protocol")
        self.consumer = AIOKafkaConsumer(
            *topics,
            **CLUSTER,
            group_id=group,
            group_instance_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor],
            heartbeat_interval_ms=500,
            session_timeout_ms=30_000,
        )
        # `start` waits for the group: another member may have to poll first
        self.starting = asyncio.create_task(self.consumer.start())
        await asyncio.wait([self.starting], timeout=1)

    async def poll(self, timeout_ms: int, count: int) -> dict[str, Any]:
        assert self.consumer is not None
        await asyncio.wait([self.starting], timeout=timeout_ms / 1000)
        if not self.starting.done():
            return {"records": [], "assigned": []}
        self.starting.result()
        records = await self._take(self.consumer, count, timeout_ms)
        return {"records": records, "assigned": [[each.topic, each.partition] for each in self.consumer.assignment()]}

    async def commit(self) -> None:
        assert self.consumer is not None
        await self.consumer.commit()

    async def close(self) -> None:
        if self.consumer is not None:
            await self.consumer.stop()
            self.consumer = None

    async def list_groups(self) -> dict[str, Any]:
        return {"groups": [each[0] for each in await (await self._admin()).list_consumer_groups()]}

    async def describe_group(self, group: str) -> dict[str, Any]:
        [answer] = await (await self._admin()).describe_consumer_groups([group])
        code, _, state, _, _, members, *_ = answer.groups[0]
        if code:
            raise for_code(code)(group)
        return {"state": state, "members": len(members)}

    async def committed(self, group: str, topic: str, partitions: list[int]) -> dict[str, Any]:
        wanted = [TopicPartition(topic, each) for each in partitions]
        found = await (await self._admin()).list_consumer_group_offsets(group, partitions=wanted)
        return {"offsets": {str(where.partition): told.offset for where, told in found.items()}}

    async def reset_group(self, group: str, topic: str, offsets: dict[str, int]) -> None:
        wanted = {TopicPartition(topic, int(partition)): offset for partition, offset in offsets.items()}
        async with AIOKafkaConsumer(**CLUSTER, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign(list(wanted))
            await consumer.commit(wanted)


def code_of(error: Exception) -> int:
    if isinstance(error, OffsetOutOfRangeError):
        return 1
    if "topic" in str(error).lower() and "not found" in str(error).lower():
        return int(UnknownTopicOrPartitionError.errno)
    return int(getattr(error, "errno", -1)) if isinstance(error, KafkaError) else -1


running = asyncio.new_event_loop()
driver = Driver()


def blocking(op: Callable[..., Coroutine[Any, Any, dict[str, Any] | None]]) -> Callable[..., dict[str, Any] | None]:
    return lambda **arguments: running.run_until_complete(op(**arguments))


serve({name: blocking(getattr(driver, name)) for name in dir(Driver) if not name.startswith("_")}, code_of)
