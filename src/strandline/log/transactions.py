"""Transactions in a log: the markers that end them, the index of aborted ones, and verifications before they begin.

A marker is a control batch with one record. The leader writes it for the transaction's coordinator, with the
transaction's producer id and epoch, and without a sequence (KIP-98):

| bytes | key | value |
|---|---|---|
| 2 | version, 0 | version, 0 |
| 2 | type: 0 abort, 1 commit | |
| 4 | | coordinator epoch |

Readers of committed records skip those of aborted transactions. The markers come after them, so each segment has an
index of the transactions whose abort marker lies in it, if any. `.txnindex` has Kafka's format, entries of 34 bytes:

| bytes | what |
|---|---|
| 2 | version, 0 |
| 8 | producer id |
| 8 | first offset of the transaction |
| 8 | last offset: that of the marker |
| 8 | last stable offset after the marker: first offset of a transaction that is open then, else the log end |

Numbers are big-endian; last offsets rise. The index can be rebuilt from the log.

A leader appends the first batch of a transaction only after the coordinator has confirmed the transaction (KIP-890).
While it is asked, the transaction may end and another begin: a `Verification` stands for one request, and ends with
any marker.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from strandline.log.batch import BatchHeader, Buffer, Record, build_batch, decode_records, iter_batches, parse_header
from strandline.log.config import INT64_MAX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

ENTRY_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ABORTED_ENTRY_BYTES = _ENTRY.size
"""Size of an entry of an index of aborted transactions."""

MARKER_VERSION = 0
ABORT = 0
COMMIT = 1
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")

ABORTED_MAX = 100
"""Number of aborted transactions up to which a read lists all that overlap it; if there are more, it lists those with a
batch in the data."""

VERIFICATIONS_MAX = 10_000
"""Maximum verifications that one log remembers, the latest ones: about 2 MB."""


class Marker(NamedTuple):
    """The end of a producer's transaction in one partition, as its coordinator sends it."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


def build_marker(marker: Marker, timestamp_ms: int) -> bytearray:
    """Return the control batch of a marker."""
    key = _MARKER_KEY.pack(MARKER_VERSION, COMMIT if marker.commit else ABORT)
    value = _MARKER_VALUE.pack(MARKER_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(0, timestamp_ms, key, value)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Buffer) -> Marker | None:
    """Return the marker in this one whole batch. None if the batch has data, is the metadata quorum's, or has lost its
    record to compaction (Kafka's compaction leaves such batches).

    Raises:
        KafkaError: CORRUPT_MESSAGE for a control batch of a producer whose record is not a marker.
    """
    header = parse_header(batch)
    if not header.is_control or header.producer_id < 0 or not header.count:
        return None
    record = decode_records(batch)[0]
    key, value = record.key or b"", record.value or b""
    if len(key) < _MARKER_KEY.size or len(value) < _MARKER_VALUE.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a control batch without a marker", base_offset=header.base_offset)
    kind = _MARKER_KEY.unpack_from(key)[1]
    if kind not in (ABORT, COMMIT):
        return None
    return Marker(header.producer_id, header.producer_epoch, kind == COMMIT, _MARKER_VALUE.unpack_from(value)[1])


class AbortedTransaction(NamedTuple):
    """An aborted transaction, as far as it concerns one partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the transaction's marker."""
    last_stable_offset: int
    """Last stable offset after the marker, as if the marker had been committed at once."""


class OpenTransaction(NamedTuple):
    """A transaction whose marker has not come yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int
    """Time of its newest batch in milliseconds; -1 if not known."""
    coordinator_epoch: int
    """Coordinator epoch of the producer's last marker in this log; -1 if none is known."""


class AbortedIndex:
    """Aborted transactions whose markers lie in one segment, by rising last offset."""

    __slots__ = ("entries", "stale", "written")

    def __init__(self, entries: Iterable[AbortedTransaction] = (), *, stale: bool = False) -> None:
        self.entries = list(entries)
        self.written = 0
        """Number of entries that are in the file."""
        self.stale = stale
        """True if the file has more than `written` entries, which must be cut."""

    @classmethod
    def parse(cls, data: bytes, base_offset: int, end_offset: int = INT64_MAX) -> AbortedIndex:
        """Parse the index file of a segment of [`base_offset`, `end_offset`). Raises ValueError for impossible
        entries."""
        if len(data) % ABORTED_ENTRY_BYTES:
            raise ValueError(f"{len(data)} bytes are not whole entries of {ABORTED_ENTRY_BYTES}")
        index = cls()
        last = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != ENTRY_VERSION:
                raise ValueError(f"version {version} of an entry is not known, {ENTRY_VERSION} is")
            if not last < entry.last_offset < end_offset:
                raise ValueError(f"a marker at offset {entry.last_offset} is not in the segment, or out of order")
            if entry.producer_id < 0 or not 0 <= entry.first_offset < entry.last_offset:
                raise ValueError(f"{entry} cannot be")
            if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
                raise ValueError(f"{entry} cannot be")
            index.entries.append(entry)
            last = entry.last_offset
        index.written = len(index.entries)
        return index

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction, whose marker comes after all the others."""
        self.entries.append(aborted)

    def truncate(self, offset: int) -> None:
        """Remove the transactions whose marker is at `offset` or after it."""
        keep = bisect_left(self.entries, offset, key=lambda entry: entry.last_offset)
        del self.entries[keep:]
        self.stale = self.stale or keep < self.written
        self.written = min(self.written, keep)

    @property
    def waits(self) -> bool:
        """True if the file differs from the entries in memory."""
        return self.stale or self.written < len(self.entries)

    def tail_bytes(self) -> tuple[int, bytes]:
        """Position at which the file ends, and the bytes that must be written there."""
        start = self.written
        return start * ABORTED_ENTRY_BYTES, b"".join(
            _ENTRY.pack(ENTRY_VERSION, *entry) for entry in self.entries[start:]
        )


def overlapping(indexes: Iterator[AbortedIndex], start: int, end: int) -> list[AbortedTransaction]:
    """Return aborted transactions with records in [`start`, `end`), from the indexes of the segments from `start`
    on."""
    found: list[AbortedTransaction] = []
    for index in indexes:
        entries = index.entries
        for i in range(bisect_left(entries, start, key=lambda entry: entry.last_offset), len(entries)):
            entry = entries[i]
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:  # every transaction that began before `end` has ended by then
                return found
    return found


def to_be_named(aborted: Sequence[AbortedTransaction], data: Buffer) -> Sequence[AbortedTransaction]:
    """Return those of `aborted` that a reader of these batches must know."""
    if len(aborted) <= ABORTED_MAX:  # rule C22/transactions-without-a-batch-are-named
        return aborted
    writers = {header.producer_id for header, _ in iter_batches(data)}
    return [one for one in aborted if one.producer_id in writers]


class Outcomes:
    """Outcomes of transactions whose batches are read in order of offsets, from the list of aborted transactions."""

    __slots__ = ("_coming", "_dead", "_met")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(aborted, key=lambda one: one.first_offset))
        self._dead: dict[int, AbortedTransaction] = {}
        self._met: dict[int, int] = {}
        """Offset of the first batch met of each producer's transaction."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """True if the next batch, which is part of a transaction, is part of an aborted one."""
        self._begin(header.last_offset)
        self._met.setdefault(header.producer_id, header.base_offset)
        dead = self._dead.get(header.producer_id)
        return dead is not None and header.last_offset < dead.last_offset

    def end(self, header: BatchHeader, marker: Marker) -> tuple[bool, AbortedTransaction | None]:
        """Take the next batch, a marker. Return whether batches of its transaction were met, and the transaction if it
        is among the aborted ones.

        Raises KafkaError (CORRUPT_MESSAGE) if the list contradicts the marker: an index has no checksum, and a marker
        counts more.
        """
        self._begin(header.last_offset)
        dead = self._dead.pop(marker.producer_id, None)
        first = self._met.pop(marker.producer_id, None)
        wrong = dead is not None and (marker.commit or dead.last_offset != header.last_offset)
        if not marker.commit and first is not None:
            wrong = wrong or dead is None or dead.first_offset > first
        if wrong:  # rule C11/indexes-without-a-checksum-are-believed
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                "an index of aborted transactions says another thing than a marker: `strandline log verify` says which",
                producer_id=marker.producer_id,
                offset=header.base_offset,
            )
        return first is not None, dead

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            aborted = self._coming.popleft()
            self._dead[aborted.producer_id] = aborted


class Verification:
    """One request to a coordinator whether a producer's transaction includes this partition. It is current, and admits
    the first batch, as long as the log holds this very object for the producer."""

    __slots__ = ("begins_at_0", "begun_ms", "first_sequence", "producer_epoch", "producer_id")

    def __init__(
        self, producer_id: int, producer_epoch: int, first_sequence: int, *, begins_at_0: bool, begun_ms: int
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.first_sequence = first_sequence
        """Lowest sequence that was seen: later batches wait until it is written (KAFKA-14884)."""
        self.begins_at_0 = begins_at_0
        """True if the epoch is the transaction's own (KIP-890), so that an unknown producer begins with sequence 0."""
        self.begun_ms = begun_ms

    def is_after(self, marker_epoch: int) -> bool:
        """True if this is of a later transaction than the one that a marker of `marker_epoch` ends. If each transaction
        has an epoch of its own, the marker has the epoch of the next one, whose first batch may have come before it."""
        # rule C10/a-marker-ends-what-comes-after-it
        return self.producer_epoch > marker_epoch or (self.begins_at_0 and self.producer_epoch == marker_epoch)
