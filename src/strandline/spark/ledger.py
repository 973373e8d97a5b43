"""What a task wrote before: how the sink keeps rows from being written twice without transactions.

Before its first record each attempt at a task writes an entry to the ledger topic: which rows it is to write (query,
epoch, and the ranges that feed the task, or else its number), the id of its producer, and where the partitions of its
topic end. An attempt that finds entries of earlier ones at the same rows reads from those places on, takes the records
of those producers, and leaves out the rows that are there.

An entry has the topic's id too (schedule 63; those of older releases have none): of a topic that was deleted and made
anew under its name the records count from its beginning on, wherever the old one ended.

The ledger names ranges, not task numbers (schedule 66): a batch that is repeated may number its tasks otherwise. Where
no range is known (a shuffle, another source) there is the number alone, and `strandline.spark.repeats` holds the rows
of the earlier runs against those of this one.

Each batch in the log carries the id of its producer, so records need no mark. A row is known by a digest of topic,
key, value and headers, each record standing for one row: rows may come in another order, and equal rows are counted.

Entries of one epoch are in the order of the ledger's offsets, and the last one to begin goes on: an attempt that finds
a newer one behind its own entry stops (speculative execution, an executor that was taken for dead).
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
"""A task that is repeated later than this finds no trace of its first run."""

_WINDOW = 512

_COMMIT_MS = 45_000
"""How long it waits for what lies in a leader's log to be committed: longer than replica.lag.time.max.ms (30 s), after
which a leader goes on without a silent follower."""

_LOOK_AGAIN_S = 0.2

Entries = Sequence[tuple[int, Mapping[str, Any]]]
"""Entries with their offsets in the ledger."""

Headers = Sequence[tuple[str, bytes | None]]


class LedgerDamaged(StrandlineError):
    """A record of the ledger topic is no entry: another program writes there."""


class TaskKey(NamedTuple):
    """What is written once: the rows of one task of one micro-batch of one query."""

    query: str
    epoch: int
    task: int


@dataclass
class Attempt:
    """One attempt at a task, as its entries in the ledger tell it."""

    name: str
    """Drawn at random; no two attempts have the same."""
    run: str
    """The run of the query, or the batch write: in one run the number of a task means the same rows throughout."""
    task: int
    fed: Fed | None
    """What fed it as far as it had come; None where no source has told."""
    offset: int = -1
    """Where its first entry lies in the ledger."""
    producers: set[int] = field(default_factory=set)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the partitions of its topics ended before its first record to each."""
    ids: dict[str, str] = field(default_factory=dict)
    """The ids of the topics that ended there; none from an older release, or from brokers older than Kafka 2.8."""
    ended: bool = False
    """Whether it has said that it writes no more, as attempts do that fail."""
    transaction: str = ""
    """The transactional.id under which it writes; empty: outside of transactions."""
    prepared: PreparedTransaction | None = None
    """Its transaction, once all of its rows lie in it."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Where its records end then, in the partitions that it has written to."""


class Ledger:
    """The ledger topic as one task uses it."""

    def __init__(self, topic: str, bootstrap: str, settings: Mapping[str, Any], admin: Admin) -> None:
        self._topic = topic
        self._bootstrap = bootstrap
        self._settings = settings
        self._admin = admin
        self._reader: RangeReader | None = None

    def close(self) -> None:
        """Close the connection it reads by. Idempotent."""
        if self._reader is not None:
            self._reader.close()

    def ensure(self) -> None:
        """Create the topic unless it is there."""
        if self._topic in self._admin.list_topics():
            return
        configs = {"cleanup.policy": "delete", "retention.ms": str(LEDGER_RETENTION_MS)}
        try:
            self._admin.create_topics([NewTopic(self._topic, 1, configs=configs)])
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # two tasks may be the first ones
                raise

    def end(self) -> int:
        """Where the ledger ends: entries from here on are those of who asks now, and of others beside."""
        [end] = self._admin.list_offsets({TopicPartition(self._topic, 0): LATEST}).values()
        return end.offset

    def attempts(self, query: str, epoch: int, floor: int = 0, end: int = 0) -> list[Attempt]:
        """Every attempt at a task of this epoch, by the order of their first entries.

        The ledger is read backwards, to the entry that an earlier epoch of the query is whole, or to `floor`.

        Args:
            end: the ledger reaches as far as this, even if a new leader does not know it yet.

        Raises:
            LedgerDamaged: a record under the query's name that is no entry.
        """
        return attempts_of(self.entries(query, epoch, floor, end))

    def entries(self, query: str, epoch: int, floor: int = 0, end: int = 0) -> Entries:
        """Every entry of this epoch, by their offsets. Arguments and errors as `attempts`."""
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
        """The query's entries from an offset on, and where to go on from."""
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
        """Say, before the first record to a topic, who writes and from where on. Returns once it is committed.

        Args:
            ids: of the topics that end there, as far as they are known.

        Returns:
            Where the ledger ends behind the entry; 0 where the broker does not say.
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
        """Say that all rows of an attempt lie in its transaction, and where they end."""
        told = [[*partition, end] for partition, end in ends.items()]
        who = {**key._asdict(), "run": attempt.run, "attempt": attempt.name}
        self._append(producer, {**who, "prepared": transaction, "ends": told})

    def decided(self, producer: Producer, query: str, epoch: int, run: str, attempts: Sequence[str]) -> int:
        """Say whose transactions are to be committed. Where the ledger ends behind it."""
        return self._append(producer, {"query": query, "epoch": epoch, "run": run, "decided": list(attempts)})

    def torn(self, producer: Producer, query: str, epoch: int, decision: int, lost: Sequence[str]) -> None:
        """Say which transactions of a decision were aborted all the same; the others were committed."""
        self._append(producer, {"query": query, "epoch": epoch, "torn": list(lost), "of": decision})

    def ended(self, producer: Producer, key: TaskKey, attempt: Attempt) -> None:
        """Say that an attempt writes no more: the next one need not wait for it."""
        self._append(producer, {**key._asdict(), "run": attempt.run, "attempt": attempt.name, "ended": True})

    def committed(self, producer: Producer, query: str, epoch: int) -> None:
        """Say that an epoch is whole: later ones need not read further back."""
        self._append(producer, {"query": query, "epoch": epoch, "committed": True})

    def _append(self, producer: Producer, entry: Mapping[str, object]) -> int:
        future = producer.send(self._topic, json.dumps(entry).encode(), key=str(entry["query"]).encode(), partition=0)
        producer.flush()
        return future.result().offset + 1

    def _entries(self, query: str, start: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Entries of one query, with their offsets; those of other queries between them are skipped."""
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
    """The attempts that entries tell of, by the order of their first ones."""
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
    """The records of earlier runs of a task, to be set off against its rows."""

    def __init__(self, records: Iterable[tuple[bytes, int]] = ()) -> None:
        self._records: dict[bytes, Counter[int]] = {}
        for digest, partition in records:
            self._records.setdefault(digest, Counter())[partition] += 1

    def take(self, digest: bytes, partition: int | None) -> bool:
        """Whether a row lies in the log already; each record stands for one row."""
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
    """What a row is known by: the same for equal topic, key, value and headers alone."""
    digest = hashlib.blake2b(digest_size=16)
    fields: list[bytes | None] = [topic.encode(), key, value]
    for name, content in headers:
        fields += [name.encode(), content]
    for item in fields:
        digest.update(b"-" if item is None else b"%d:" % len(item) + item)
    return digest.digest()


class LogRecord(NamedTuple):
    """A record that an attempt wrote, as a row is known."""

    producer: int
    digest: bytes
    partition: int


def records_of(
    attempts: Collection[Attempt], bootstrap: str, settings: Mapping[str, Any], admin: Admin
) -> Iterator[LogRecord]:
    """What these attempts wrote. Topics deleted and records deleted since then count as not written.

    Raises:
        ClientTimeout: a record of theirs lies in a leader's log, and was not committed for `_COMMIT_MS`.
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
    """The rows of these producers from `start` on, those that lie in the leader's log and are not committed among them.

    A batch that waits for a silent follower is read by nobody yet, and will stand in the log all the same. The leader
    knows each producer's last sequence from the moment of the append (KIP-664): while that one has not been read, there
    is more to come, or its leader dies and the next one knows nothing of it.

    Raises:
        ClientTimeout: it was not committed for `_COMMIT_MS`.
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
        # Of a producer without any record left, with records deleted since: they were committed once.
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
    """Epoch and last sequence of each of these producers in the leader's log; none where brokers cannot say (< 2.8)."""
    try:
        told = admin.describe_producers([partition])[partition]
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}
    return {one.producer_id: (one.producer_epoch, one.last_sequence) for one in told if one.producer_id in producers}
