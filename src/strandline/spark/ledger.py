"""What a task wrote before: how the sink keeps rows from being written twice without transactions.

Before its first record a task writes an entry to the ledger topic: (query, epoch, task), the id of its producer, and
where the partitions of its topic end. A task that finds entries of its own (query, epoch, task) was run before: it
reads from those places on, takes the records of those producers, and leaves out the rows that are there.

Each batch in the log carries the id of its producer, so records need no mark. A row is known by a digest of topic,
key, value and headers, each record standing for one row: rows may come in another order, and equal rows are counted.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.client import Admin, NewTopic, Producer
from strandline.client.decoding import consumer_records
from strandline.client.errors import ClientTimeout, OffsetOutOfRange, UnknownTopic
from strandline.client.fetching import RangeReader
from strandline.client.idempotence import SEQUENCE_MASK
from strandline.client.types import EARLIEST, LATEST
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

LEDGER_RETENTION_MS = 7 * 24 * 3600 * 1000
"""A task that is repeated later than this finds no trace of its first run."""

_WINDOW = 512
_SETTLE_S = 1.0
"""How long a repeated task waits before it looks: what a killed one had under way has reached its leader by then."""

_COMMIT_MS = 45_000
"""How long it waits for what lies in a leader's log to be committed: longer than replica.lag.time.max.ms (30 s), after
which a leader goes on without a silent follower."""

_LOOK_AGAIN_S = 0.2

Headers = Sequence[tuple[str, bytes | None]]


class TaskKey(NamedTuple):
    """What is written once: the rows of one task of one micro-batch of one query."""

    query: str
    epoch: int
    task: int


@dataclass
class Earlier:
    """What earlier runs of a task said of themselves."""

    producers: set[int] = field(default_factory=set)
    starts: dict[TopicPartition, int] = field(default_factory=dict)


class Ledger:
    """The ledger topic as one task uses it."""

    def __init__(self, topic: str, bootstrap: str, settings: Mapping[str, Any], admin: Admin) -> None:
        self._topic = topic
        self._bootstrap = bootstrap
        self._settings = settings
        self._admin = admin

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

    def earlier(self, key: TaskKey, floor: int = 0) -> Earlier:
        """What is known of earlier runs of this task: read backwards to an entry of an earlier epoch, or to `floor`."""
        found, mine = Earlier(), key.query.encode()
        [first] = self._admin.list_offsets({TopicPartition(self._topic, 0): EARLIEST}).values()
        low, high = max(first.offset, floor), self.end()
        window = _WINDOW
        with RangeReader(self._bootstrap, **self._settings) as reader:
            while high > low:
                start = max(low, high - window)
                older = False
                for record in reader.read_records(self._topic, 0, start, high):
                    if record.key != mine:
                        continue  # of another query: a first epoch comes past all of theirs
                    entry = json.loads(record.value or b"{}")
                    older = older or entry["epoch"] < key.epoch
                    if entry["epoch"] == key.epoch and entry.get("task") == key.task:
                        _add(found, entry)
                if older:
                    break
                high, window = start, window * 4
        return found

    def begin(self, producer: Producer, key: TaskKey, ends: Mapping[TopicPartition, int]) -> None:
        """Say, before the first record to a topic, who writes and from where on. Returns once it is committed."""
        starts: dict[str, dict[str, int]] = {}
        for partition, offset in ends.items():
            starts.setdefault(partition.topic, {})[str(partition.partition)] = offset
        self._append(producer, {**key._asdict(), "producer": producer.producer_id(), "starts": starts})

    def committed(self, producer: Producer, query: str, epoch: int) -> None:
        """Say that an epoch is whole: later ones need not read further back."""
        self._append(producer, {"query": query, "epoch": epoch, "committed": True})

    def _append(self, producer: Producer, entry: Mapping[str, object]) -> None:
        future = producer.send(self._topic, json.dumps(entry).encode(), key=str(entry["query"]).encode(), partition=0)
        producer.flush()
        future.result()


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


def find_written(earlier: Earlier, bootstrap: str, settings: Mapping[str, Any], admin: Admin) -> Written:
    """Read what earlier runs wrote. Topics deleted and records deleted since then count as not written."""
    if not earlier.starts:
        return Written()
    threading.Event().wait(_SETTLE_S)
    return Written(_records_of(earlier, bootstrap, settings, admin))


def _records_of(
    earlier: Earlier, bootstrap: str, settings: Mapping[str, Any], admin: Admin
) -> Iterator[tuple[bytes, int]]:
    starts = dict(earlier.starts)
    known = {partition.topic for partition in starts}
    for topic in admin.describe_topics(sorted(known & set(admin.list_topics()))):
        for index in range(len(topic.partitions)):
            starts.setdefault(TopicPartition(topic.name, index), 0)  # a partition added since
    with RangeReader(bootstrap, **settings) as reader:
        for partition, start in starts.items():
            try:
                yield from _partition_of(partition, start, earlier.producers, reader, admin)
            except (UnknownTopic, OffsetOutOfRange):
                continue  # deleted since: not written


def _partition_of(
    partition: TopicPartition, start: int, producers: Collection[int], reader: RangeReader, admin: Admin
) -> Iterator[tuple[bytes, int]]:
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
                yield row_digest(partition.topic, record.key, record.value, record.headers), partition.partition
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


def _add(found: Earlier, entry: Mapping[str, object]) -> None:
    producer, starts = entry["producer"], entry["starts"]
    assert isinstance(producer, int), entry
    assert isinstance(starts, dict), entry
    found.producers.add(producer)
    for topic, offsets in starts.items():
        for number, offset in offsets.items():
            partition = TopicPartition(topic, int(number))
            found.starts[partition] = min(offset, found.starts.get(partition, offset))
