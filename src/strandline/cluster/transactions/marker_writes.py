"""Writing of markers at the leaders of their partitions: the call by which a coordinator sends them, and the writer.

A marker that is sent again while the first copy waits for its replicas joins the first one. A copy that arrives after
the first one was committed, from a slow connection, is answered and not written: under protocol version 1 the next
transaction may have the same epoch, and the marker of the last transaction would end it (schedule 124). Orders of one
process have rising numbers, and a producer's transactions follow one another. So the last order of each producer in
each partition identifies late copies, however many other producers have ended theirs meanwhile (schedule 135); a leader
remembers them in its process only. A copy that was sent to an earlier leadership is refused: meanwhile another broker
may have led and written the marker (schedule 180).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, NamedTuple, Protocol

from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import BrokerEpoch, LeaderEpoch, NodeId, ProducerId, TopicPartition
from strandline.proto.messages.fields import Int32, Int64, SInt32, SInt64
from strandline.proto.messages.method import handler, method
from strandline.proto.ports import UnaryHandler
from strandline.proto.tasks import Report, spawn
from strandline.replica.partition import Append, AppendDone

COMMITTED_MS_MAX = 1_000.0
"""Maximum milliseconds that a call waits until its markers are committed. Markers that are not committed by then are
answered with REQUEST_TIMED_OUT and sent again, so that a slow partition delays others no longer than this."""

ANY_EPOCH = LeaderEpoch(-1)
"""Leader epoch of a marker that any leadership may write."""

NO_ORDER = 0
"""Order number of a marker that an operator sends: such a marker is written each time."""

REMEMBERED_MAX = 10_000
"""Maximum (partition, producer) pairs whose last marker is remembered, the newest ones: about 3 MB."""


@dataclass(frozen=True, slots=True)
class NamedPartition:
    """Partition with the name of its topic."""

    topic: Annotated[str, 1]
    partition: Annotated[int, Int32(2)]

    @property
    def place(self) -> TopicPartition:
        """The partition as a TopicPartition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class MarkerToWrite:
    """One marker and the partitions in which it has to be written.

    Attributes:
        order: number of the marker's order, unique in the sender's process.
        transaction_version: level of transaction.version by which the transaction ends.
        leader_epochs: for each partition, the leader epoch that the marker is sent to; empty if the sender does not
            know them (an older build, or an operator).
    """

    order: Annotated[int, Int64(1)]
    producer_id: Annotated[ProducerId, Int64(2)]
    producer_epoch: Annotated[int, Int32(3)]
    commit: Annotated[bool, 4]
    coordinator_epoch: Annotated[int, SInt32(5)]
    transaction_version: Annotated[int, Int32(6)]
    partitions: Annotated[tuple[NamedPartition, ...], 7]
    leader_epochs: Annotated[tuple[LeaderEpoch, ...], Int32(8)] = ()

    @property
    def marker(self) -> Marker:
        """The marker as the log's type."""
        return Marker(self.producer_id, self.producer_epoch, self.commit, self.coordinator_epoch)


@dataclass(frozen=True, slots=True)
class WriteMarkersRequest:
    """Request by which a coordinator's broker has markers written by the leader of their partitions.

    Attributes:
        node_id, broker_epoch: the process that hosts the coordinator.
    """

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, SInt64(2)]
    markers: Annotated[tuple[MarkerToWrite, ...], 3]


@dataclass(frozen=True, slots=True)
class WriteMarkersReply:
    """Result for each partition of each marker, in order: NONE once every in-sync replica has the marker."""

    errors: Annotated[tuple[ErrorCode, ...], 1]


WRITE_MARKERS = method("/strandline.v1.Node/WriteMarkers", WriteMarkersRequest, WriteMarkersReply)
"""Method that every broker answers, without an envelope."""


class AppendsMarkers(Protocol):
    """Part of the replicas' interface that is used here."""

    def append_marker(
        self, tp: TopicPartition, marker: Marker, transaction_version: int, done: AppendDone, *, leader_epoch: int
    ) -> Append | None:
        """Append as `ReplicaManager.append_marker` does."""


class WritesOffsetMarkers(Protocol):
    """Runtime of the groups, in which a marker also takes effect in the memory of a shard (KAFKA-17507)."""

    def write_marker(
        self, partition: int, marker: Marker, transaction_version: int, *, leader_epoch: int
    ) -> Awaitable[ErrorCode]:
        """Append a marker to a partition of the groups' topic as its coordinator."""


class Sender(NamedTuple):
    """Broker process that has a marker written."""

    node_id: NodeId
    broker_epoch: BrokerEpoch


class _Copy(NamedTuple):
    """Identity of a marker, by which repeated markers are recognised."""

    partition: TopicPartition
    marker: Marker
    sender: Sender
    order: int


class _Last(NamedTuple):
    """Last order of a producer in a partition."""

    sender: Sender
    order: int


class MarkerWriter:
    """Writes markers to the replicas of this broker.

    Invariants: the marker of an order is not written again while it is being written, nor once it, or the marker of a
    later order, is committed and remembered.
    """

    def __init__(self, replicas: AppendsMarkers, groups: WritesOffsetMarkers, report: Report) -> None:
        """Create a writer. `report` gets internal errors."""
        self._replicas = replicas
        self._groups = groups
        self._report = report
        self._writing: dict[_Copy, asyncio.Future[ErrorCode]] = {}
        self._written: dict[tuple[TopicPartition, int], _Last] = {}

    async def write(self, sender: Sender, wanted: Sequence[MarkerToWrite]) -> list[ErrorCode]:
        """Append markers. Returns a result for each partition of each marker, in order, after COMMITTED_MS_MAX at the
        latest.

        NONE: every in-sync replica has the marker. REQUEST_TIMED_OUT: it is being written. FENCED_LEADER_EPOCH: it was
        sent to an earlier leadership. UNKNOWN_LEADER_EPOCH: it was sent to a leadership that is not known here yet.
        """
        results = [
            self._begin(_Copy(named.place, one.marker, sender, one.order), one.transaction_version, leader_epoch)
            for one in wanted
            for named, leader_epoch in zip(one.partitions, one.leader_epochs or repeat(ANY_EPOCH), strict=False)
        ]
        waiting = [result for result in results if not result.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=COMMITTED_MS_MAX / 1000)
        return [result.result() if result.done() else ErrorCode.REQUEST_TIMED_OUT for result in results]

    def _begin(self, copy: _Copy, transaction_version: int, leader_epoch: int) -> asyncio.Future[ErrorCode]:
        writing = self._writing.get(copy)
        if writing is not None:  # rule C16/a-copy-is-written-beside-the-first
            return writing
        result: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self._is_late(copy):  # rule C16/a-late-copy-is-written
            result.set_result(ErrorCode.NONE)
            return result
        self._writing[copy] = result
        if copy.partition.topic == OFFSETS_TOPIC:
            spawn(self._write_to_group(copy, transaction_version, leader_epoch), self._report)
        else:
            self._replicas.append_marker(
                copy.partition,
                copy.marker,
                transaction_version,
                lambda outcome: self._end(copy, outcome.error),
                leader_epoch=leader_epoch,
            )
        return result

    def _is_late(self, copy: _Copy) -> bool:
        """Return whether this order's marker, or one of a later order of the same producer, is written already."""
        last = self._written.get((copy.partition, copy.marker.producer_id))
        # rule C21/later-orders-are-not-known
        return last is not None and last.sender == copy.sender and NO_ORDER < copy.order <= last.order

    async def _write_to_group(self, copy: _Copy, transaction_version: int, leader_epoch: int) -> None:
        try:
            code = await self._groups.write_marker(
                copy.partition.partition, copy.marker, transaction_version, leader_epoch=leader_epoch
            )
        except KafkaError as error:
            code = error.code
        self._end(copy, code)

    def _end(self, copy: _Copy, code: ErrorCode) -> None:
        result = self._writing.pop(copy)
        if not result.done():
            result.set_result(code)
        if code is ErrorCode.NONE and copy.order != NO_ORDER:
            key = copy.partition, copy.marker.producer_id
            self._written.pop(key, None)
            self._written[key] = _Last(copy.sender, copy.order)
            if len(self._written) > REMEMBERED_MAX:  # rule C21/as-many-markers-as-producers-are-remembered
                del self._written[next(iter(self._written))]

    # Calls of other brokers

    def handlers(self) -> dict[str, UnaryHandler]:
        """Return the handlers that the node's internal listener has to serve, by path."""
        return {WRITE_MARKERS.path: handler(WRITE_MARKERS, self._take)}

    async def _take(self, request: WriteMarkersRequest) -> WriteMarkersReply:
        sender = Sender(request.node_id, request.broker_epoch)
        return WriteMarkersReply(tuple(await self.write(sender, request.markers)))
