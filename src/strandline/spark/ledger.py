"""Ledger topic of the Spark sink: it keeps repeated tasks from writing rows twice, without transactions.

Before its first record, each attempt at a task writes an entry to the ledger topic: which rows it will write (query,
epoch, and the offset ranges that the task reads, or else the task's number), its producer id, and the end offsets of
its topic's partitions. An attempt that finds entries of earlier attempts at the same rows reads the topic from those
offsets on, finds the records of those producers, and skips the rows that are already written.

An entry also holds the topic's id (schedule 63; entries of older releases have none). If a topic was deleted and
created again under its name, it is read from its beginning, wherever the old one ended.

The ledger names ranges, not task numbers (schedule 66), because a repeated batch may number its tasks differently.
Where no range is known (after a shuffle, or from another source) the entry has only the number, and
`strandline.spark.repeats` compares the rows of the earlier runs with those of this one.

Each batch in the log carries its producer's id, so that records need no mark. A row is identified by a digest of
topic, key, value and headers. Rows may come in another order; equal rows are counted.

Of several attempts that run at once (speculative execution, an executor wrongly taken for dead), the one with the last
entry continues: an attempt that finds a newer entry after its own stops.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from strandline.client import Admin, NewTopic, Producer
from strandline.client.errors import ClientTimeout, OffsetOutOfRange, UnknownTopic
from strandline.client.fetcher import consumer_records
from strandline.client.prepared import PreparedTransaction
from strandline.client.producer_batch import SEQUENCE_MASK
from strandline.client.range_reader import RangeReader
from strandline.client.types import EARLIEST, LATEST
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.json_text import read_json
from strandline.proto.system import SystemClock
from strandline.spark.handover import Fed, PlannedRange

LEDGER_RETENTION_MS = 7 * 24 * 3600 * 1000
"""Retention of the ledger topic in milliseconds. A task repeated later than this does not find its first run."""

_WINDOW = 512

_COMMIT_MS = 45_000
"""Milliseconds to wait for records in a leader's log to be committed. It exceeds replica.lag.time.max.ms (30 s), after
which a leader drops a silent follower from the ISR and commits without it."""

_LOOK_AGAIN_S = 0.2

Entries = Sequence[tuple[int, Mapping[str, Any]]]
"""(offset in the ledger, entry) pairs."""

Headers = Sequence[tuple[str, bytes | None]]


class LedgerDamaged(StrandlineError):
    """A record of the ledger topic is not a valid entry: another program writes to the topic."""


class TaskKey(NamedTuple):
    """Identity of rows that must be written once: those of one task of one micro-batch of one query."""

    query: str
    epoch: int
    task: int


@dataclass
class Attempt:
    """One attempt at a task, as described by its entries in the ledger."""

    name: str
    """Random name; no two attempts share one."""
    run: str
    """Id of the query's run, or of the batch write. Within one run a task number always means the same rows."""
    task: int
    fed: Fed | None
    """Ranges that the task had read when it wrote its last entry; None if its source did not report them."""
    offset: int = -1
    """Offset of its first entry in the ledger; -1 before it is written."""
    producers: set[int] = field(default_factory=set)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """End offset of each partition of its topics before its first record to that topic."""
    ids: dict[str, str] = field(default_factory=dict)
    """Topic name -> id of the topic that `starts` refers to; empty from older releases and brokers before Kafka 2.8."""
    ended: bool = False
    """True if it has noted that it writes no more, as a failed attempt does."""
    transaction: str = ""
    """The transactional.id under which it writes; "" outside of transactions."""
    prepared: PreparedTransaction | None = None
    """Its transaction, once this holds all of its rows; else None."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Offset after its last record in each partition that it wrote to, once `prepared` is set."""


class Ledger:
    """Access of one task to the ledger topic."""

    def __init__(self, topic: str, bootstrap: str, settings: Mapping[str, Any], admin: Admin) -> None:
        self._topic = topic
        self._bootstrap = bootstrap
        self._settings = settings
        self._admin = admin
        self._reader: RangeReader | None = None

    def close(self) -> None:
        """Close the connection for reading. Idempotent."""
        if self._reader is not None:
            self._reader.close()

    def ensure(self) -> None:
        """Create the ledger topic unless it exists."""
        if self._topic in self._admin.list_topics():
            return
        configs = {"cleanup.policy": "delete", "retention.ms": str(LEDGER_RETENTION_MS)}
        try:
            self._admin.create_topics([NewTopic(self._topic, 1, configs=configs)])
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # two tasks may be the first ones
                raise

    def end(self) -> int:
        """End offset of the ledger. The caller's own entries will follow it, perhaps among those of other tasks."""
        [end] = self._admin.list_offsets({TopicPartition(self._topic, 0): LATEST}).values()
        return end.offset

    def attempts(self, query: str, epoch: int, floor: int = 0, end: int = 0) -> list[Attempt]:
        """Every attempt at a task of this epoch, in the order of their first entries.

        The ledger is read backwards, to the entry that marks an earlier epoch of the query as complete, or to the
        offset `floor`.

        Args:
            end: an end offset that the ledger is known to have reached. A leader that has just been elected may report
                a lower one.

        Raises:
            LedgerDamaged: a record with the query's name is not a valid entry.
        """
        return attempts_of(self.entries(query, epoch, floor, end))

    def entries(self, query: str, epoch: int, floor: int = 0, end: int = 0) -> Entries:
        """Every entry of this epoch, in the order of offsets. Arguments and errors are those of `attempts`."""
        entries: list[tuple[int, dict[str, Any]]] = []
        [first] = self._admin.list_offsets({TopicPartition(self._topic, 0): EARLIEST}).values()
        low, high = max(first.offset, floor), max(self.end(), end)
        window = _WINDOW
        while high > low:
            start = max(low, high - window)
            found = list(self._entries(query, start, high))
            entries[:0] = [(offset, entry) for offset, entry in found if entry["epoch"] == epoch]
            if any(entry.get("committed") and entry["epoch"] < epoch for _, entry in found):
                break  # nothing of a later epoch lies before it
            high, window = start, window * 4
        return entries

    def since(self, query: str, offset: int) -> tuple[list[dict[str, Any]], int]:
        """The query's entries from `offset` on, and the offset to continue from."""
        end = max(self.end(), offset)
        return [entry for _, entry in self._entries(query, offset, end)], end

    def begin(
        self,
        producer: Producer,
        key: TaskKey,
        attempt: Attempt,
        ends: Mapping[TopicPartition, int],
        ids: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Note, before the first record to a topic, which producer writes and from which offsets on. Returns once the
        entry is committed.

        Args:
            ends: end offset of each partition of the topics.
            ids: topic name -> id, as far as they are known.

        Returns:
            Offset after the entry in the ledger; 0 if the broker did not report it.
        """
        starts: dict[str, dict[str, int]] = {}
        for partition, offset in ends.items():
            starts.setdefault(partition.topic, {})[str(partition.partition)] = offset
        told = {"run": attempt.run, "attempt": attempt.name, "producer": producer.producer_id(), "starts": starts}
        if ids:
            told["ids"] = dict(ids)
        if attempt.fed is not None:
            told |= {"ranges": attempt.fed.ranges, "shift": attempt.fed.shift}
        if attempt.transaction:
            told["transaction"] = attempt.transaction
        return self._append(producer, {**key._asdict(), **told})

    def prepared(
        self,
        producer: Producer,
        key: TaskKey,
        attempt: Attempt,
        transaction: PreparedTransaction,
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Note that all rows of an attempt are in its transaction, and the offsets after its last records."""
        told = [[*partition, end] for partition, end in ends.items()]
        who = {**key._asdict(), "run": attempt.run, "attempt": attempt.name}
        self._append(producer, {**who, "prepared": transaction, "ends": told})

    def decided(self, producer: Producer, query: str, epoch: int, run: str, attempts: Sequence[str]) -> int:
        """Note which attempts' transactions are to be committed. Returns the offset after the entry."""
        return self._append(producer, {"query": query, "epoch": epoch, "run": run, "decided": list(attempts)})

    def torn(self, producer: Producer, query: str, epoch: int, decision: int, lost: Sequence[str]) -> None:
        """Note which transactions of a decision were aborted nevertheless; the others were committed."""
        self._append(producer, {"query": query, "epoch": epoch, "torn": list(lost), "of": decision})

    def ended(self, producer: Producer, key: TaskKey, attempt: Attempt) -> None:
        """Note that an attempt writes no more, so that the next one need not wait for it."""
        self._append(producer, {**key._asdict(), "run": attempt.run, "attempt": attempt.name, "ended": True})

    def committed(self, producer: Producer, query: str, epoch: int) -> None:
        """Note that an epoch is complete, so that later epochs need not read further back."""
        self._append(producer, {"query": query, "epoch": epoch, "committed": True})

    def _append(self, producer: Producer, entry: Mapping[str, object]) -> int:
        future = producer.send(self._topic, json.dumps(entry).encode(), key=str(entry["query"]).encode(), partition=0)
        producer.flush()
        return future.result().offset + 1

    def _entries(self, query: str, start: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Entries of one query in [start, end), with their offsets. Entries of other queries are skipped."""
        if self._reader is None:
            self._reader = RangeReader(self._bootstrap, **self._settings)
        mine = query.encode()
        for record in self._reader.read_records(self._topic, 0, start, end):
            if record.key != mine:
                continue
            try:
                entry = read_json(record.value or b"")
                whole = type(entry["epoch"]) is int
            except (ValueError, KeyError, TypeError):
                whole = False
            if not whole:
                raise LedgerDamaged(
                    f"{self._topic}, offset {record.offset}: no entry of a sink's ledger, so another program writes "
                    f"there; give the option ledgerTopic a topic that is the sinks' own"
                )
            yield record.offset, entry


def attempts_of(entries: Entries) -> list[Attempt]:
    """The attempts that these entries describe, in the order of their first entries."""
    found: dict[str, Attempt] = {}
    for offset, entry in entries:
        if "attempt" not in entry:
            continue
        name = entry["attempt"]
        attempt = found.setdefault(name, Attempt(name, entry["run"], entry["task"], None, offset))
        if entry.get("ended"):
            attempt.ended = True
            continue
        if "prepared" in entry:
            attempt.prepared = PreparedTransaction(*entry["prepared"])
            attempt.ends = {TopicPartition(topic, number): end for topic, number, end in entry["ends"]}
            continue
        attempt.transaction = entry.get("transaction", "")
        if "ranges" in entry:
            attempt.fed = Fed(tuple(PlannedRange(*told) for told in entry["ranges"]), entry["shift"])
        attempt.producers.add(entry["producer"])
        for topic, offsets in entry["starts"].items():
            for number, start in offsets.items():
                partition = TopicPartition(topic, int(number))
                attempt.starts[partition] = min(start, attempt.starts.get(partition, start))
        attempt.ids.update(entry.get("ids", {}))
    return list(found.values())


class Written:
    """Records that earlier runs of a task wrote. Each is matched with one row of the task, which is then skipped."""

    def __init__(self, records: Iterable[tuple[bytes, int]] = ()) -> None:
        self._records: dict[bytes, Counter[int]] = {}
        for digest, partition in records:
            self._records.setdefault(digest, Counter())[partition] += 1

    def take(self, digest: bytes, partition: int | None) -> bool:
        """True if a row is in the log already. The record that matched is used up: each stands for one row."""
        places = self._records.get(digest)
        if not places:
            return False
        if partition is None:
            partition = min(places)
        if places[partition] <= 0:
            return False
        places[partition] -= 1
        if not places[partition]:
            del places[partition]
        return True

    def __len__(self) -> int:
        return sum(places.total() for places in self._records.values())


def row_digest(topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Digest that identifies a row: equal only for equal topic, key, value and headers."""
    digest = hashlib.blake2b(digest_size=16)
    fields: list[bytes | None] = [topic.encode(), key, value]
    for name, content in headers:
        fields += [name.encode(), content]
    for item in fields:
        digest.update(b"-" if item is None else b"%d:" % len(item) + item)
    return digest.digest()


class LogRecord(NamedTuple):
    """A record that an attempt wrote, with the digest of its row."""

    producer: int
    digest: bytes
    partition: int


def records_of(
    attempts: Collection[Attempt], bootstrap: str, settings: Mapping[str, Any], admin: Admin
) -> Iterator[LogRecord]:
    """The records that these attempts wrote, without those of deleted topics and without deleted records.

    Raises:
        ClientTimeout: a record of theirs in a leader's log was not committed within `_COMMIT_MS`.
    """
    producers = {producer for attempt in attempts for producer in attempt.producers}
    known = {partition.topic for attempt in attempts for partition in attempt.starts}
    described = admin.describe_topics(sorted(known & set(admin.list_topics())))
    present = {topic.name: str(topic.topic_id) for topic in described if topic.topic_id is not None}
    starts: dict[TopicPartition, int] = {}
    for attempt in attempts:
        for partition, noted in attempt.starts.items():
            topic_id = present.get(partition.topic)
            is_same = topic_id is None or attempt.ids.get(partition.topic, topic_id) == topic_id
            start = noted if is_same else 0  # schedule 63/ledger-knows-topics-by-name
            starts[partition] = min(start, starts.get(partition, start))
    for topic in described:
        for index in range(len(topic.partitions)):
            starts.setdefault(TopicPartition(topic.name, index), 0)  # a partition added since
    if not starts:
        return
    with RangeReader(bootstrap, **settings) as reader:
        for partition, start in starts.items():
            try:
                yield from _partition_of(partition, start, producers, reader, admin)
            except (UnknownTopic, OffsetOutOfRange):
                continue  # deleted since: not written


def _partition_of(
    partition: TopicPartition, start: int, producers: Collection[int], reader: RangeReader, admin: Admin
) -> Iterator[LogRecord]:
    """The records of these producers in one partition from `start` on, including those that are in the leader's log but
    not committed yet.

    A batch that waits for a silent follower cannot be read yet, but may be committed later. The leader reports each
    producer's last sequence from the append on (KIP-664). Until the record with that sequence has been read, more
    records are to come, unless the leader dies and its successor does not have them.

    Raises:
        ClientTimeout: a batch was not committed within `_COMMIT_MS`.
    """
    clock, pause = SystemClock(), threading.Event()
    give_up_ms = clock.monotonic_ms() + _COMMIT_MS
    last: dict[int, tuple[int, int]] = {}
    [low] = (listed.offset for listed in admin.list_offsets({partition: EARLIEST}).values())
    position = max(start, low)
    while True:
        [high] = (listed.offset for listed in admin.list_offsets({partition: LATEST}).values())
        for batch in reader.read_batches(*partition, position, max(position, high)):
            header = batch.header
            if header.producer_id not in producers:
                continue
            last_sequence = (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK
            last[header.producer_id] = (header.producer_epoch, last_sequence)
            for record in consumer_records(partition, header, batch.data, position, check_crcs=False):
                digest = row_digest(partition.topic, record.key, record.value, record.headers)
                yield LogRecord(header.producer_id, digest, partition.partition)
        position = max(position, high)
        appended = _appended(partition, producers, admin)
        # A producer has no record left because records were deleted: those were committed, so nothing is awaited.
        waiting = {told for told, end in appended.items() if last.get(told, end if low > start else None) != end}
        if not waiting:
            return
        if clock.monotonic_ms() >= give_up_ms:
            raise ClientTimeout(
                f"{partition}: rows of an earlier run of this task lie in the leader's log and were not committed for "
                f"{_COMMIT_MS / 1000:g} s; without them it is not known what is missing"
            )
        pause.wait(_LOOK_AGAIN_S)


def _appended(partition: TopicPartition, producers: Collection[int], admin: Admin) -> dict[int, tuple[int, int]]:
    """Producer id -> epoch and last sequence in the leader's log; empty if the broker is too old to say (< 2.8)."""
    try:
        told = admin.describe_producers([partition])[partition]
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}
    return {one.producer_id: (one.producer_epoch, one.last_sequence) for one in told if one.producer_id in producers}
