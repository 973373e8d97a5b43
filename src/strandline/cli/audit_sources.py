"""Sources of `strandline audit tail`: the files of one node, through their rotation, or the topic `__audit`."""

from __future__ import annotations

import heapq
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from strandline.cli.common import CommandFailed
from strandline.cli.screen import echo
from strandline.client.errors import UnknownTopic
from strandline.client.types import ConsumerRecord
from strandline.proto.audit import ATTEMPTS_SUFFIX, AUDIT_TOPIC, BROKER_HEADER, read_audit_line
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock

if TYPE_CHECKING:
    from strandline.client.consumer import Consumer

BLOCK_BYTES = 64 * 1024

LINE_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a line. A longer one cannot be an audit line, and is cut."""

FILES_MAX = 1_000
"""Files read at most, as `audit.log.files` allows at most."""

ATTEMPTS = 10
"""Attempts to open a file while a rotation goes on."""

LOOK_MS = 5_000.0
"""Milliseconds between two checks for new partitions of the topic."""


class Raw(NamedTuple):
    """A line as it was found.

    Attributes:
        where: where it stands, in words.
        text: its bytes; of one that is too long the first `LINE_BYTES_MAX` and one more.
        broker: the node that wrote it, where that is known.
        timestamp_ms: of the record, where it is one.
    """

    where: str
    text: bytes
    broker: int | None = None
    timestamp_ms: int = 0


Fits = Callable[[Raw], bool]
"""True if a line is one of those asked for."""


class Source(Protocol):
    """An audit, as it is when this is made, and what comes after that."""

    @property
    def unfinished(self) -> str:
        """A sentence about a last line whose end is not there yet: `newest` leaves it out; or empty."""

    def newest(self, count: int, fits: Fits) -> list[Raw]:
        """The newest lines that fit, `count` at most, the oldest of them first."""

    def begin_at_end(self) -> None:
        """Start at the end of the existing lines. Call it before the first `poll`."""

    def poll(self, wait_s: float) -> list[Raw]:
        """Lines that have come since: at once if there are some, else after `wait_s` at most."""


class AuditFiles:
    """The files of a node's audit: PATH, PATH.1, ... as long as there are some; PATH is the newest.

    A file is known by its inode, whatever its name is by now: so none is read twice, and none is left out but those
    that were removed before they were read, which is said.
    """

    def __init__(self, path: str) -> None:
        """Open it. Raises OSError."""
        self._path = path
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115  # closed by `close`, or when the next one is read
        self._rest = b""
        size = self._file.seek(0, os.SEEK_END)
        last = _after_last_newline(self._file, size)
        self._end = size - last
        self.unfinished = f"{path}: its last line has no end yet ({last:,} bytes): left out" if last else ""

    def close(self) -> None:
        """Read no more."""
        self._file.close()

    def newest(self, count: int, fits: Fits) -> list[Raw]:
        """Implement `Source.newest`."""
        found: deque[Raw] = deque()
        end = self._end
        file, name, older = self._file, self._path, True
        while older and len(found) < count:
            for text in lines_backwards(file, end):
                raw = Raw(name, text)
                if fits(raw):
                    found.appendleft(raw)
                    if len(found) == count:
                        break
            older = False
            before = self._neighbour(file, 1)
            if file is not self._file:
                file.close()
            if before is not None:
                file, name, older = before, before.name, True
                end = file.seek(0, os.SEEK_END)
        if file is not self._file:
            file.close()
        return list(found)

    def begin_at_end(self) -> None:
        """Implement `Source.begin_at_end`."""
        self._file.seek(self._end)

    def begin_at_start(self) -> None:
        """Let the first `poll` find the whole file."""
        self._file.seek(0)

    def poll(self, wait_s: float) -> list[Raw]:
        """Implement `Source.poll`."""
        lines = self._read_on()
        if not lines:
            lines = self._move_on()
            if not lines:
                threading.Event().wait(wait_s)
        return lines

    def _read_on(self) -> list[Raw]:
        """Lines written to this file since the last read."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._say("it was cut by something else: read anew from its beginning")
            self._file.seek(0)
            self._rest = b""
        pieces = (self._rest + self._file.read(BLOCK_BYTES)).split(b"\n")
        # A line too long stays too long, however much of it there is.
        self._rest = pieces.pop()[: LINE_BYTES_MAX + 1]
        return [Raw(self._path, piece) for piece in pieces if piece]

    def _move_on(self) -> list[Raw]:
        """Go on to the file that was begun after this one, once this one has no more to come."""
        place = self._place_of(self._file)
        if place == 0:
            return []
        # It was written to before it was renamed, perhaps since it was read.
        last = self._read_on()
        if last:
            return last
        if place is None:
            try:
                following: BinaryIO | None = open(self._path, "rb")  # noqa: SIM115  # as in __init__
            except FileNotFoundError:
                return []
            self._say("the file that was read is gone: lines of files between it and this one may be missing")
        else:
            following = self._neighbour(self._file, -1)  # rule A20/files-between-are-skipped
        if following is None:
            return []
        rest, self._rest = self._rest, b""
        self._file.close()
        self._file = following
        return [Raw(self._path, rest)] if rest else []

    def _neighbour(self, file: BinaryIO, step: int) -> BinaryIO | None:
        """The file begun before this one (`step` 1) or after it (-1), if there is one now."""
        for _ in range(ATTEMPTS):
            place = self._place_of(file)
            if place is None or place + step < 0:
                return None
            try:
                found = open(self._name(place + step), "rb")  # noqa: SIM115  # the caller's
            except FileNotFoundError:
                return None
            if self._place_of(file) == place:
                return found
            found.close()
        return None

    def _place_of(self, file: BinaryIO) -> int | None:
        """The number that a file has by now; None: it has been removed. Files move upwards, as this looks."""
        own, missing = os.fstat(file.fileno()), 0
        for place in range(FILES_MAX + 1):
            try:
                if os.path.samestat(os.stat(self._name(place)), own):
                    return place
                missing = 0
            except FileNotFoundError:
                missing += 1
                if missing > 2:  # one may be missing, while a rotation goes on
                    return None
        return None

    def _name(self, place: int) -> str:
        return f"{self._path}.{place}" if place else self._path

    def _say(self, words: str) -> None:
        echo(f"{self._path}: {words}", err=True)


class AuditPair:
    """The files of changes, and those of all other lines beside them, as one audit by the time of its lines."""

    def __init__(self, path: str) -> None:
        """Open them. The others may not be there: an older build wrote one file. Raises OSError."""
        self._others = path + ATTEMPTS_SUFFIX
        self._files = [AuditFiles(path)]
        self._look()

    @property
    def unfinished(self) -> str:
        """Implement `Source.unfinished`."""
        return "\n".join(one.unfinished for one in self._files if one.unfinished)

    def close(self) -> None:
        """Read no more."""
        for one in self._files:
            one.close()

    def newest(self, count: int, fits: Fits) -> list[Raw]:
        """Implement `Source.newest`."""
        found = [one.newest(count, fits) for one in self._files]
        return _by_time(found)[-count:] if count else []

    def begin_at_end(self) -> None:
        """Implement `Source.begin_at_end`."""
        for one in self._files:
            one.begin_at_end()

    def poll(self, wait_s: float) -> list[Raw]:
        """Implement `Source.poll`."""
        self._look()
        found = [one.poll(0) for one in self._files]
        if not any(found):
            threading.Event().wait(wait_s)
        return _by_time(found)

    def _look(self) -> None:
        if len(self._files) == 1:
            with suppress(FileNotFoundError):
                self._files.append(AuditFiles(self._others))
                self._files[-1].begin_at_start()


def _by_time(found: list[list[Raw]]) -> list[Raw]:
    """Lines of several files in the order of their time, those of each in theirs; one that has none stays behind the
    line before it."""
    keyed: list[list[tuple[str, Raw]]] = []
    for raws in found:
        last, of_file = "", []
        for raw in raws:
            with suppress(ValueError):
                last = max(last, read_audit_line(raw.text)["timestamp"])
            of_file.append((last, raw))
        keyed.append(of_file)
    return [raw for _, raw in heapq.merge(*keyed, key=lambda one: one[0])]


def _after_last_newline(file: BinaryIO, size: int) -> int:
    """Bytes of a file behind its last line end."""
    start = size
    while start > 0:
        end, start = start, max(0, start - BLOCK_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return size - (start + found + 1)
    return size


def lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The lines of a file up to an offset, the last one first, without empty ones. Of a line that is too long the last
    `LINE_BYTES_MAX` and one more."""
    rest = b""
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        first, *others = (file.read(end - start) + rest).split(b"\n")
        end = start
        for line in reversed(others):
            if line:
                yield line
        rest = first[-LINE_BYTES_MAX - 1 :]
    if rest:
        yield rest


class AuditRecords:
    """The topic `__audit` of a cluster: all partitions, each broker's lines in their order."""

    def __init__(self, consumer: Consumer) -> None:
        """Read the audit topic with this consumer. Raises KafkaError, CommandFailed."""
        self.unfinished = ""
        self._consumer = consumer
        try:
            self._partitions = [TopicPartition(AUDIT_TOPIC, number) for number in consumer.partitions_for(AUDIT_TOPIC)]
        except UnknownTopic:
            raise CommandFailed(
                f"there is no topic {AUDIT_TOPIC} here. Brokers with audit.topic.enable=true make it with their first "
                "line; --file reads a broker's file (audit.log.path)."
            ) from None
        self._ends = consumer.end_offsets(self._partitions)
        self._clock = SystemClock()
        self._looked_ms = self._clock.monotonic_ms()

    def newest(self, count: int, fits: Fits) -> list[Raw]:
        """Implement `Source.newest`, by the time of the lines. Windows of the partitions are read, each older and
        larger, until there are enough."""
        starts = self._consumer.beginning_offsets(self._partitions)
        found: dict[TopicPartition, list[Raw]] = {one: [] for one in self._partitions}
        low, size = dict(self._ends), max(count, 100)
        while todo := [one for one in self._partitions if low[one] > starts[one] and len(found[one]) < count]:
            windows = {one: (max(starts[one], low[one] - size), low[one]) for one in todo}
            for one, raws in self._read(windows, count, fits).items():
                found[one] = [*raws, *found[one]][-count:]
                low[one] = windows[one][0]
            size *= 4
        every = sorted((raw for raws in found.values() for raw in raws), key=lambda raw: raw.timestamp_ms)
        return every[-count:] if count else []

    def _read(
        self, windows: dict[TopicPartition, tuple[int, int]], count: int, fits: Fits
    ) -> dict[TopicPartition, deque[Raw]]:
        found = {one: deque[Raw](maxlen=count) for one in windows}
        consumer = self._consumer
        consumer.assign(list(windows))
        for one, (start, _) in windows.items():
            consumer.seek(one, start)
        while any(consumer.position(one) < end for one, (_, end) in windows.items()):
            for record in consumer.poll(1.0):
                place = TopicPartition(record.topic, record.partition)
                if record.offset < windows[place][1]:
                    raw = _raw(record)
                    if fits(raw):
                        found[place].append(raw)
        return found

    def begin_at_end(self) -> None:
        """Implement `Source.begin_at_end`."""
        self._consumer.assign(self._partitions)
        for one, end in self._ends.items():
            self._consumer.seek(one, end)

    def poll(self, wait_s: float) -> list[Raw]:
        """Implement `Source.poll`."""
        if self._clock.monotonic_ms() - self._looked_ms >= LOOK_MS:
            self._looked_ms = self._clock.monotonic_ms()
            self._read_new_partitions()
        return [_raw(record) for record in self._consumer.poll(wait_s)]

    def _read_new_partitions(self) -> None:
        there = {TopicPartition(AUDIT_TOPIC, number) for number in self._consumer.partitions_for(AUDIT_TOPIC)}
        fresh = sorted(there.difference(self._partitions))
        if fresh:
            self._partitions += fresh
            self._consumer.assign(self._partitions)
            self._consumer.seek_to_beginning(*fresh)


def _raw(record: ConsumerRecord) -> Raw:
    broker = next((value for name, value in record.headers if name == BROKER_HEADER), None) or b""
    where = f"{record.topic}-{record.partition} offset {record.offset}"
    node = int(broker) if broker.isdigit() else None
    return Raw(where, record.value or b"", node, record.timestamp_ms)
