"""The open batches of a producer in pure Python: what the compiled ones do where there is no compiler, and the words
for both.

Any thread may append. Compiled, an append is one step to the other threads, and to a signal's handler; here the lock of
`Memory` makes it one to threads, and what is changed is changed by plain statements, between which no handler runs.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from strandline.log.batch import HEADER_SIZE, RECORD_OVERHEAD_BYTES
from strandline.log.records_python import append

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`), as an unsigned number."""
    size = len(data)
    digest = _SEED ^ size
    for word in struct.unpack_from(f"<{size >> 2}I", data):
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        digest = digest * _M & _MASK ^ mixed
    tail = size & 3
    if tail:
        digest ^= int.from_bytes(data[size - tail :], "little")
        digest = digest * _M & _MASK
    digest = (digest ^ digest >> 13) * _M & _MASK
    return digest ^ digest >> 15


_CACHED_KEY_BYTES_MAX = 64
_cached_murmur2 = lru_cache(maxsize=8192)(murmur2)
"""Keys repeat, and the hash in Python costs 0.1 us a byte; long keys are not worth their memory."""


class RecordSlot:
    """A record's place among the results of its batch; futures for threads are made of it. An append fills it in."""

    __slots__ = ("_index", "_results", "_timestamp_ms")

    _results: Any
    _index: int
    """Number of the record in the batch that it was appended to."""
    _timestamp_ms: int


class Memory:
    """`buffer.memory`: what all records take that have no answer yet. Invariant: `used` <= `limit`.

    Args:
        limit: bytes.
        record_max: no `OpenBatches.append` takes a record of more bytes.
        batch_max: bytes of a batch, header included, above which it gets no second record unless it was let grow.
    """

    def __init__(self, limit: int, record_max: int, batch_max: int) -> None:
        self.limit = limit
        self.record_max = record_max
        self.batch_max = batch_max
        self.used = 0
        self.closed = False
        self.lock = threading.RLock()

    def take(self, size: int) -> bool:
        """Reserve bytes; false where there is no room for them, or it was closed."""
        with self.lock:
            if self.closed or size > self.limit - self.used:
                return False
            self.used += size
            return True

    def give_back(self, size: int) -> None:
        """Free bytes that `take` or an append has reserved."""
        with self.lock:
            self.used -= size

    def close(self) -> None:
        """Let no append find room from now on."""
        with self.lock:
            self.closed = True


class OpenBatch:
    """The records of one batch, encoded as they come, until it is sealed.

    Args:
        results: what the records' futures ask.
        make: a kind of RecordSlot, of which every record gets an instance as its future; or a function that makes a
            future. Such futures, and the records' timestamps, are appended to the two lists.
    """

    def __init__(
        self,
        memory: Memory,
        results: Any,
        make: Callable[[], Any],
        futures: list[Any] | None,
        timestamps: list[int] | None,
    ) -> None:
        self._slots = isinstance(make, type) and issubclass(make, RecordSlot)
        if not self._slots and not (isinstance(futures, list) and isinstance(timestamps, list)):
            raise TypeError("a kind of RecordSlot, or a function that makes a future and two lists")
        self.memory = memory
        self._results = results
        self._make = make
        self._futures = futures
        self._timestamps = timestamps
        self._data: bytearray | None = bytearray(HEADER_SIZE)
        self.sealed = False
        self.count = 0
        self.size_bytes = HEADER_SIZE
        """Bytes of the batch before compression, header included."""
        self._size_max = memory.batch_max
        self.reserved_bytes = 0
        """Bytes of `buffer.memory` that its records take."""
        self.base_timestamp = 0
        self.max_timestamp = -1

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> Any | None:
        """Write one record; its future, or None: it has no place here, or none in `buffer.memory`.

        The first record of a batch may be of any size: `OpenBatches` takes none above `record_max`, and a caller that
        appends here checks that itself.

        Raises:
            TypeError: something else than bytes.
            ValueError: a timestamp before 1970, or more than 2 GB.
        """
        if not isinstance(timestamp_ms, int):
            raise TypeError("a timestamp is a whole number")
        if timestamp_ms < 0:
            raise ValueError("a timestamp before 1970")
        if timestamp_ms > _INT64_MAX:
            raise OverflowError("a timestamp of more than 64 bits")
        bound = bound_of(key, value, headers)
        if bound is None:
            raise TypeError("key and value are bytes or None, headers a tuple of (str, bytes or None)")
        return self.write(timestamp_ms, key, value, headers, bound)

    def write(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Any, bound: int) -> Any | None:
        """Write one record whose types and size (`bound`) were checked; as `append`."""
        if self.sealed:
            return None
        future: Any = object.__new__(self._make) if self._slots else self._make()  # type: ignore[arg-type]
        memory = self.memory
        with memory.lock:
            while True:
                number, used = self.count, memory.used
                if (
                    self.sealed
                    or memory.closed
                    or bound > memory.limit - used
                    or (number and self.size_bytes + bound > self._size_max)
                ):
                    return None
                if bound > _INT32_MAX - self.size_bytes:
                    raise ValueError("a batch of more than 2 GB")
                base = self.base_timestamp if number else timestamp_ms
                record = bytearray()
                highest = max(self.max_timestamp, timestamp_ms)
                size = append(record, timestamp_ms - base, number, key, value, headers)
                if (number, used) == (self.count, memory.used) and not self.sealed and not memory.closed:
                    break  # else a signal's handler has been here
            assert self._data is not None
            self._data += record
            self.size_bytes += size
            if self._slots:
                future._results, future._index, future._timestamp_ms = self._results, number, timestamp_ms
            else:
                assert self._futures is not None
                assert self._timestamps is not None
                self._timestamps += (timestamp_ms,)
                self._futures += (future,)
            self.base_timestamp = base
            self.max_timestamp = highest
            self.count += 1
            self.reserved_bytes += bound
            memory.used += bound
        return future

    def grow(self, size_max: int) -> bool:
        """Take records up to `size_max` bytes. False: it is sealed, or took as many before."""
        with self.memory.lock:
            if self.sealed or self._size_max >= size_max:
                return False
            self._size_max = size_max
            return True

    def seal(self) -> None:
        """Take no more records. Idempotent."""
        with self.memory.lock:
            self.sealed = True

    def take(self) -> bytearray:
        """The records behind room for the batch's header, once. Raises ValueError before it is sealed, and after."""
        if not self.sealed or self._data is None:
            raise ValueError("a batch is taken once, when it is sealed")
        data, self._data = self._data, None
        return data


class OpenBatches:
    """The open batch of each partition of a topic, and which partition records without a key go to for now.

    Args:
        partitions: how many the topic has.
        wall_ms: the clock for records that bring no time; None: `time.time_ns`, which costs less.
    """

    def __init__(self, partitions: int, wall_ms: Callable[[], int] | None) -> None:
        if not 1 <= partitions <= _INT32_MAX:
            raise ValueError("a topic has at least one partition")
        self.partitions = partitions
        self.sticky = -1
        """The partition of records without a key; -1: none was chosen yet."""
        self.sticky_left = 0
        """Bytes that this partition may still get."""
        self._wall_ms = wall_ms
        self._open: dict[int, OpenBatch] = {}

    def append(self, value: Any, key: Any, headers: Any, partition: Any, timestamp_ms: Any) -> Any | None:
        """Write one record into the open batch of its partition; its future, or None where that cannot be done here.

        None says no more than that: there is no open batch, or it is full, there is no room in `buffer.memory`, another
        partition has to be chosen, or the record is none, which who is asked next says.
        """
        bound = bound_of(key, value, headers)
        if bound is None:
            return None
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000 if self._wall_ms is None else self._wall_ms()
        if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms <= _INT64_MAX:
            return None
        batch = self._batch_of(partition, key)
        if batch is None or batch.sealed or bound > batch.memory.record_max:
            return None
        future = batch.write(timestamp_ms, key, value, headers, bound)
        if future is not None and partition is None and key is None:
            self.sticky_left -= bound
        return future

    def _batch_of(self, partition: Any, key: bytes | None) -> OpenBatch | None:
        if partition is not None:
            return self._open.get(partition) if isinstance(partition, int) else None
        if key is not None:
            digest = _cached_murmur2(key) if len(key) <= _CACHED_KEY_BYTES_MAX else murmur2(key)
            return self._open.get((digest & 0x7FFFFFFF) % self.partitions)
        return self._open.get(self.sticky) if self.sticky_left > 0 else None

    def open(self, partition: int, batch: OpenBatch) -> None:
        """Put records of this partition into this batch from now on."""
        if not 0 <= partition < self.partitions:
            raise IndexError("a partition that the topic does not have")
        self._open[partition] = batch

    def stick(self, partition: int, size: int) -> None:
        """Send the next `size` bytes of records without a key to this partition."""
        if not 0 <= partition < self.partitions:
            raise IndexError("a partition that the topic does not have")
        self.sticky = partition
        self.sticky_left = size

    def spend(self, size: int) -> None:
        """Count a record without a key, of `size` bytes, that was appended by another way."""
        self.sticky_left -= size


def bound_of(key: Any, value: Any, headers: Any) -> int | None:
    """The most bytes that a record takes, as it counts towards `buffer.memory`; None where it is no record."""
    if not isinstance(key, bytes | None) or not isinstance(value, bytes | None) or not isinstance(headers, tuple):
        return None
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for pair in headers:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return None
        name, content = pair
        if not isinstance(name, str) or not isinstance(content, bytes | None):
            return None
        size += len(name) * 4 + 10 + len(content or b"")
    return size
