"""Records whose handler gave up on them: kept in `<topic>.dead` with cause and origin, until they are replayed.

A dead letter is the record as it was, key, value and headers, with headers of its own behind them. Its timestamp is the
time of its death, so that the retention of `<topic>.dead` begins then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from strandline.client.aio.admin import Admin
from strandline.client.aio.consumer import Consumer
from strandline.client.aio.producer import Producer
from strandline.client.config import CommonConfig
from strandline.client.errors import UnknownTopic
from strandline.client.types import ConfigResource, ConsumerRecord, Header, NewTopic
from strandline.log.config import BATCH_BYTES_MAX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition

SUFFIX = ".dead"
PREFIX = "dead-letter."
REPLAYED = "replayed.dead-letter"
"""Header of a record that was replayed: which dead letter it was, and when it died, for the topic of dead letters may
have been made anew. It does not begin with PREFIX: it stays."""

LARGE_RECORDS: Mapping[str, Any] = {
    "max_request_size": 100 * 1024 * 1024,
    "buffer_memory": 128 * 1024 * 1024,
    "compression_type": "gzip",
}
"""Settings of a producer of records that were in a log before: how large one may be is the topic's to say, and one that
fitted in compressed shall fit again."""

_CAUSE_CHARACTERS_MAX = 2_000
_ROOM_BYTES = 64 * 1024
"""Bytes by which a dead letter may be larger than the record: its headers."""
_LARGEST = "max.message.bytes"


class DeadLetter(NamedTuple):
    """A record of `<topic>.dead`, taken apart.

    Attributes:
        where, offset: of the dead letter itself.
        origin, origin_offset, origin_timestamp_ms: of the record that nobody could handle.
        origin_topic_id: of its topic; empty where it was not known.
        error, message: the type of the last exception, and what it said.
        attempts: how often the handler was tried.
        group: whose handler; empty without one.
        died_ms: when (ms since 1970).
        key, value, headers: of the record as it was.
    """

    where: TopicPartition
    offset: int
    origin: TopicPartition
    origin_offset: int
    origin_timestamp_ms: int
    error: str
    message: str
    attempts: int
    group: str
    died_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    origin_topic_id: str = ""


def dead_headers(
    record: ConsumerRecord, error: BaseException, attempts: int, group: str | None, topic_id: UUID | None = None
) -> tuple[Header, ...]:
    """The headers of a dead letter: the record's own, then cause and origin."""
    kind = type(error)
    facts = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "error": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": str(error)[:_CAUSE_CHARACTERS_MAX],
        "attempts": attempts,
        "group": group or "",
        "topic-id": topic_id or "",
    }
    return own_headers(record) + tuple((PREFIX + name, str(value).encode()) for name, value in facts.items())


def own_headers(record: ConsumerRecord) -> tuple[Header, ...]:
    """The headers of a record without those of a dead letter."""
    return tuple(header for header in record.headers if not header[0].startswith(PREFIX))


def parse_dead_letter(record: ConsumerRecord) -> DeadLetter | None:
    """Parse a record of a dead-letter topic; None if `strandline.tools.handling` did not write it."""
    facts = {
        name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX)
    }
    try:
        return DeadLetter(
            TopicPartition(record.topic, record.partition),
            record.offset,
            TopicPartition(facts["topic"], int(facts["partition"])),
            int(facts["offset"]),
            int(facts["timestamp"]),
            facts["error"],
            facts["message"],
            int(facts["attempts"]),
            facts["group"],
            record.timestamp_ms,
            record.key,
            record.value,
            own_headers(record),
            facts.get("topic-id", ""),
        )
    except (KeyError, ValueError):
        return None


class DeadLetters:
    """Writes dead letters. Runs on one event loop; connects when the first one comes."""

    def __init__(self, consumer: Consumer) -> None:
        """Connect as the consumer does whose handler gives up."""
        session = consumer.session
        common = {name: getattr(session.config, name) for name in CommonConfig.attributes}
        self._made_like: dict[str, Any] = {"bootstrap": session.bootstrap, "clock": session.clock, "rng": session.rng}
        self._made_like |= common
        self._consumer = consumer
        self._producer: Producer | None = None
        self._counts: dict[str, int] = {}

    async def send(self, record: ConsumerRecord, error: BaseException, attempts: int) -> None:
        """Return once all in-sync replicas have the dead letter; its topic is made if need be.

        Raises:
            StrandlineError: it is not there, or nobody knows: the record must not count as done.
        """
        topic = record.topic + SUFFIX
        topic_id = self._consumer.topic_id(TopicPartition(record.topic, record.partition))
        if self._producer is None:
            self._producer = Producer(**{**self._made_like, **LARGE_RECORDS, "linger_ms": 0})
        if topic not in self._counts:
            self._counts[topic] = await self._make(topic, record.topic)
        await self._producer.send_and_wait(
            topic,
            record.value,
            key=record.key,
            headers=dead_headers(record, error, attempts, self._consumer.group_id, topic_id),
            partition=record.partition % self._counts[topic],
        )

    async def _make(self, topic: str, origin: str) -> int:
        """Make the topic with as many partitions as the origin has, so that the order per partition is kept, and room
        for every record of it; returns the number of partitions."""
        async with Admin(**{**self._made_like, "default_api_timeout_ms": 60_000}) as admin:
            try:
                [there] = await admin.describe_topics([topic])
            except UnknownTopic:
                [source] = await admin.describe_topics([origin])
                count = len(source.partitions)
                try:
                    await admin.create_topics([NewTopic(topic, count, configs=await self._room(admin, origin))])
                except KafkaError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another consumer may have been quicker
                        raise
                return count
            return len(there.partitions)

    async def _room(self, admin: Admin, origin: str) -> dict[str, str]:
        """Settings with which every record of a topic fits, headers added; none where the topic's own are not known."""
        try:
            [entries] = (await admin.describe_configs([ConfigResource("topic", origin)])).values()
        except KafkaError:
            return {}
        told = next((entry.value for entry in entries if entry.name == _LARGEST), None)
        return {} if told is None else {_LARGEST: str(min(int(told) + _ROOM_BYTES, BATCH_BYTES_MAX))}

    async def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            await self._producer.close()
