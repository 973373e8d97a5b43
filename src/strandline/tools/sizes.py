"""Sizes of topics, their growth, and when a broker's disk is full (`strandline topic size`).

- *Records* are offsets between log start and high watermark. A compacted topic has fewer records than that.
- *In the store* are the offsets between log start and the last one that was copied (KIP-405), those included that are
  on the disks as well. How many bytes they take the metrics of the leader tell, Kafka's protocol does not.
- *Growth* is of the last day: the offsets whose timestamps lie in it (ListOffsets by time), and so many bytes as the
  log's offsets take on average now. A log that is younger counts from its first record. Records whose times are not
  those of their arrival (a table's history, a restored backup) make it wrong.
- *Days until full* lets every replica of the directory grow at this rate, each up to what its retention leaves of it
  and a segment more, until less than the broker's reserve (`log.dir.reserve.bytes`) is left. A compacted partition
  grows with what is written, as if compaction took nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strandline.client.admin import Admin
from strandline.client.types import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    ConfigResource,
    PartitionDescription,
)
from strandline.log.free_space import reserve_of
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition

DAY_MS = 24 * 3600 * 1000
YOUNGEST_MS = 3600 * 1000
"""A log of less than an hour says nothing about a day."""

_AS_THE_WHOLE = -2

FIRST = 0
"""A time before which no record was written: ListOffsets answers with the first one that has a time."""


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """One replica. `role`: leader, in sync, or behind."""

    topic: str
    partition: int
    node: int
    path: str
    role: str
    bytes: int
    lag_records: int
    bytes_a_day: float | None
    """Bytes written per day; None if unknown."""
    known_at_ms: int | None = None
    """Time from which the growth will be known, as far as that is sure: the log is too young."""


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """One partition, by its leader. Offsets are None while it has none.

    Attributes:
        local_start_offset: where it begins on the disks; the start but for a tiered topic.
        tiered_end_offset: one past the last offset that was copied to the object store; the start where none was.
    """

    topic: str
    partition: int
    start_offset: int | None
    local_start_offset: int | None
    tiered_end_offset: int | None
    end_offset: int | None
    records_a_day: float | None
    replicas: tuple[ReplicaSize, ...]

    @property
    def records(self) -> int | None:
        """Offsets between start and end."""
        if self.start_offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.start_offset

    @property
    def local_records(self) -> int | None:
        """Records on the disks."""
        if self.local_start_offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.local_start_offset

    @property
    def tiered_records(self) -> int | None:
        """Records in the object store."""
        if self.start_offset is None or self.tiered_end_offset is None:
            return None
        return self.tiered_end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class DiskSize:
    """One log directory of a broker.

    Attributes:
        reserve_bytes: with less left the broker writes nothing more for clients; 0: it has none.
        bytes_a_day: of the replicas whose growth is known.
        days_until_full: until then; 0: it is full. None: never, or not known. With `unknown` replicas: or sooner.
        why: which of these; empty where it is a number of days.
    """

    node: int
    path: str
    total_bytes: int | None
    usable_bytes: int | None
    reserve_bytes: int
    bytes_a_day: float
    unknown: int
    """Replicas whose growth is not known: with them the disk is full sooner than without."""
    known_at_ms: int | None
    """Time when the growth of all logs that are too young will be known; None: of none of them, or nothing is unknown.
    """
    days_until_full: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a cluster. `silent`: brokers that did not answer, and why; nothing is known of their disks."""

    partitions: tuple[PartitionSize, ...]
    disks: tuple[DiskSize, ...]
    silent: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Growing:
    """One replica as its disk sees it: what it takes now, what comes in a day, and where retention stops it."""

    bytes: int
    bytes_a_day: float
    bytes_max: float


def measure(admin: Admin, now_ms: int) -> Sizes:
    """Ask the cluster. `now_ms`: wall time.

    Raises:
        KafkaError, ClientTimeout: what every broker could tell was not told.
    """
    topics = admin.describe_topics(admin.list_topics(include_internal=True))
    parts = {TopicPartition(item.name, part.partition): part for item in topics for part in item.partitions}
    led = [tp for tp, part in parts.items() if part.leader is not None]
    starts = admin.list_offsets(dict.fromkeys(led, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(led, LATEST))
    limits = _limits(admin, [item.name for item in topics])
    tiered = [tp for tp in led if limits[tp.topic].tiered]
    local = admin.list_offsets(dict.fromkeys(tiered, EARLIEST_LOCAL))
    copied = admin.list_offsets(dict.fromkeys(tiered, LATEST_TIERED))
    local_starts = {tp: local[tp].offset if tp in local else starts[tp].offset for tp in led}
    tiered_ends = {tp: max(copied[tp].offset + 1 if tp in copied else 0, starts[tp].offset) for tp in led}
    firsts = admin.list_offsets(dict.fromkeys(led, FIRST))
    recent = admin.list_offsets(dict.fromkeys(led, now_ms - DAY_MS))
    rates = {
        tp: records_a_day(ends[tp].offset, firsts[tp].timestamp_ms, recent[tp].offset, starts[tp].offset, now_ms=now_ms)
        for tp in led
    }
    stored, silent = _stored(admin)
    replicas: dict[TopicPartition, list[ReplicaSize]] = {}
    disks: list[DiskSize] = []
    for node, path, total, usable, there in stored:
        growing: list[Growing] = []
        unknown = 0
        young: list[int] = []
        for tp, size, lag in there:
            part = parts.get(tp)
            if part is None:
                continue  # deleted meanwhile
            span = ends[tp].offset - local_starts[tp] if tp in ends else 0
            daily = bytes_a_day(size, span - lag, rates.get(tp))
            known = known_at(firsts[tp].timestamp_ms) if daily is None and tp in rates and rates[tp] is None else None
            replicas.setdefault(tp, []).append(
                ReplicaSize(tp.topic, tp.partition, node, path, _role(part, node), size, lag, daily, known)
            )
            unknown += daily is None
            young += [] if known is None else [known]
            if daily is not None:
                growing.append(Growing(size, daily, limits[tp.topic].bytes_max(size, daily)))
        reserve = _reserve(admin, node, total)
        days, why = days_until_full(None if usable is None else max(0, usable - reserve), growing)
        if unknown and usable is not None and days is None:
            why = "not known yet" if len(young) == unknown else "not known"
        daily_all = sum(one.bytes_a_day for one in growing)
        until = max(young, default=None)
        disks.append(DiskSize(node, path, total, usable, reserve, daily_all, unknown, until, days, why))
    sizes = tuple(
        PartitionSize(
            tp.topic,
            tp.partition,
            starts[tp].offset if tp in starts else None,
            local_starts.get(tp),
            tiered_ends.get(tp),
            ends[tp].offset if tp in ends else None,
            rates.get(tp),
            tuple(sorted(replicas.get(tp, ()), key=lambda replica: (replica.role != "leader", replica.node))),
        )
        for tp in sorted(parts)
    )
    return Sizes(sizes, tuple(disks), silent)


def records_a_day(end: int, first_ms: int, recent: int, start: int, *, now_ms: int) -> float | None:
    """Offsets written a day, lately; None where that is not known.

    Args:
        end: the high watermark.
        first_ms: the time of the first record that has one; -1: none has.
        recent: the offset of the first record of the last day; -1: there is none.
        start: the log start.
    """
    if end == start:
        return 0.0
    if recent < 0:
        return 0.0 if first_ms >= 0 else None
    if first_ms < 0 or first_ms > now_ms:
        return None
    age_ms = now_ms - first_ms
    if age_ms < YOUNGEST_MS:
        return None
    return (end - recent) * DAY_MS / min(DAY_MS, age_ms)


def known_at(first_ms: int) -> int | None:
    """Time when a log whose growth is not known will be old enough; None: never by itself, for no record has a time."""
    return None if first_ms < 0 else first_ms + YOUNGEST_MS


def bytes_a_day(size: int, span: int, rate: float | None) -> float | None:
    """A replica of `size` bytes that holds `span` offsets, and gets `rate` of them a day."""
    if rate is None or (span <= 0 and rate > 0):
        return None
    return rate * size / span if span > 0 else 0.0


def days_until_full(usable_bytes: int | None, replicas: Iterable[Growing]) -> tuple[float | None, str]:
    """Days until replicas have taken what is usable now; with a sentence where there is no such day."""
    if usable_bytes is None:
        return None, "the broker does not say how much room it has"
    if usable_bytes <= 0:
        return 0.0, "it is full"
    growing = [one for one in replicas if one.bytes_a_day > 0 and one.bytes_max > one.bytes]
    if not growing:
        return None, "nothing grows"
    ends = sorted((max(0.0, one.bytes_max - one.bytes) / one.bytes_a_day, one.bytes_a_day) for one in growing)
    rate = sum(one.bytes_a_day for one in growing)
    taken, day = 0.0, 0.0
    for until, own_rate in ends:
        if taken + rate * (until - day) >= usable_bytes:
            return day + (usable_bytes - taken) / rate, ""
        taken += rate * (until - day)
        day = until
        rate -= own_rate
    return None, "retention keeps it below"


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bounds that the settings of a topic put on a partition's growth."""

    tiered: bool
    deletes: bool
    retention_ms: int
    retention_bytes: int
    segment_bytes: int

    def bytes_max(self, size: int, daily: float) -> float:
        """Bytes that one replica takes in the long run."""
        bounds = [math.inf]
        if self.deletes and self.retention_ms >= 0:
            bounds.append(daily * self.retention_ms / DAY_MS + self.segment_bytes)
        if self.deletes and self.retention_bytes >= 0:
            bounds.append(self.retention_bytes + self.segment_bytes)
        return max(float(size), min(bounds))


def _limits(admin: Admin, topics: Iterable[str]) -> dict[str, _Limits]:
    found: dict[str, _Limits] = {}
    for resource, entries in admin.describe_configs([ConfigResource("topic", name) for name in topics]).items():
        values = {entry.name: entry.value for entry in entries}
        tiered = values.get("remote.storage.enable") == "true"
        found[resource.name] = _Limits(
            tiered=tiered,
            deletes="delete" in (values.get("cleanup.policy") or "delete"),
            retention_ms=_retention(values, "retention.ms", tiered),
            retention_bytes=_retention(values, "retention.bytes", tiered),
            segment_bytes=int(values.get("segment.bytes") or 0),
        )
    return found


def _retention(values: Mapping[str, str | None], name: str, tiered: bool) -> int:
    """Retention on the disks; -1: no bound. That of a tiered topic may be its own (-2: it is not)."""
    own = int(values.get(f"local.{name}") or _AS_THE_WHOLE) if tiered else _AS_THE_WHOLE
    return int(values.get(name) or -1) if own == _AS_THE_WHOLE else own


def _reserve(admin: Admin, node: int, total_bytes: int | None) -> int:
    """`log.dir.reserve.bytes`, at most its share of the disk. 0 of a broker that has no such setting."""
    resource = ConfigResource("broker", str(node))
    values = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource]}
    reserve = int(values.get("log.dir.reserve.bytes") or 0)
    return reserve if total_bytes is None else reserve_of(reserve, total_bytes)


_Stored = tuple[int, str, int | None, int | None, list[tuple[TopicPartition, int, int]]]


def _stored(admin: Admin) -> tuple[list[_Stored], dict[int, str]]:
    found: list[_Stored] = []
    silent: dict[int, str] = {}
    for node in admin.describe_cluster().nodes:
        if node.fenced:
            silent[node.node_id] = "it is fenced"
            continue
        try:
            [(_, directories)] = admin.describe_log_dirs([node.node_id]).items()
        except StrandlineError as error:
            silent[node.node_id] = str(error)
            continue
        for one in directories:
            if one.error is not None:
                silent[node.node_id] = f"its directory {one.path} is offline"
                continue
            there = [(tp, size.size_bytes, size.lag_records) for tp, size in one.replicas.items()]
            found.append((node.node_id, one.path, one.total_bytes, one.usable_bytes, there))
    return found, silent


def _role(part: PartitionDescription, node: int) -> str:
    if node == part.leader:
        return "leader"
    return "in sync" if node in part.isr else "behind"
