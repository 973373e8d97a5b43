"""Sender of a coordinator's transaction markers to the leaders of the partitions. It retries without limit.

Markers that are ordered in one turn of the loop go to a broker in one call. Several calls run at once, so that a slow
partition delays only the markers in the same call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from strandline.cluster.transactions.commands import MarkerOrder
from strandline.cluster.transactions.marker_orders import ANOTHER_HAS_IT, Addressed, Done, MarkerOrders, Written
from strandline.cluster.transactions.marker_writes import (
    ANY_EPOCH,
    WRITE_MARKERS,
    MarkerToWrite,
    MarkerWriter,
    NamedPartition,
    Sender,
    WriteMarkersRequest,
)
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import NO_NODE, BrokerEpoch, LeaderEpoch, NodeId, ProducerId, TopicPartition
from strandline.proto.messages.method import call
from strandline.proto.notes import Notes
from strandline.proto.ports import Clock, Rpc, RpcError
from strandline.proto.tasks import Report, spawn

log = structlog.get_logger("strandline.transactions")

CALL_MS = 5_000.0
"""Milliseconds to wait for a broker's answer. It answers within a second, even if its replicas are slow."""

CALLS_MAX = 16
"""Maximum calls to one broker at a time; further markers are collected for the next call."""

MARKERS_MAX = 1_000
"""Maximum markers in one call."""

_GIVEN_UP = ErrorCode.NETWORK_EXCEPTION

LOUD_AFTER = 10
"""Failed attempts to send a marker, which take some seconds, before a line is logged."""


class MarkerSender:
    """Marker sender of one broker. `on_metadata` must be subscribed after the part that applies metadata to
    replicas."""

    def __init__(
        self,
        node_id: NodeId,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        image: Callable[[], MetadataImage],
        writer: MarkerWriter,
        rpc: Rpc,
        clock: Clock,
        report: Report,
    ) -> None:
        """`writer` appends the markers for partitions that this broker leads; `report` is called with internal
        errors."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._writer = writer
        self._rpc = rpc
        self._clock = clock
        self._report = report
        self._notes = Notes(clock, log)
        self._orders = MarkerOrders()
        self._queued: dict[NodeId, list[Addressed]] = {}
        self._calls: dict[asyncio.Task[None], tuple[NodeId, Sequence[Addressed]]] = {}
        self._flush: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pending(self) -> int:
        """Number of decided transactions whose markers are not all written."""
        return len(self._orders)

    def waiting(self) -> tuple[int, int]:
        """Numbers of markers that wait to be sent again: (because their partition has no leader, after a failure)."""
        led = [self._leader_of(partition) not in (None, NO_NODE) for partition in self._orders.waiting()]
        return led.count(False), led.count(True)

    def send(self, order: MarkerOrder, written: Written) -> None:
        """Write the order's marker into each of its partitions (at least one). Then call `written`, in a later turn of
        the loop; it is not called if the order is dropped, or another coordinator has the transaction."""
        ensure(bool(order.partitions), "OrderHasPartitions", transactional_id=order.transactional_id)
        self._orders.add(order, written)
        self._flush_soon()

    def drop(self, state_partition: int, coordinator_epoch: LeaderEpoch) -> None:
        """Drop the orders of the leader of a `__transaction_state` partition in this epoch."""
        self._orders.drop(state_partition, coordinator_epoch)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Send waiting markers at once whose partition has a new leader, or was deleted."""
        if not delta.partitions and not delta.deleted_topics:
            return
        self._orders.look_again(lambda partition: _concerns(delta, image, partition))
        for task, (broker, markers) in list(self._calls.items()):
            # A broker that lost its power does not say so, and a call to it would hold its markers up for seconds.
            # rule C16/calls-to-a-deposed-leader-are-waited-for
            if any(self._leader_of(partition) != broker for _, partition in markers):
                del self._calls[task]
                task.cancel()
                _tell(self._orders.answered([(one, _GIVEN_UP) for one in markers], self._clock.monotonic_ms()))
        self._flush_soon()

    def close(self) -> None:
        """Stop sending, without calling any callback."""
        self._closed = True
        if self._flush is not None:
            self._flush.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._calls:
            task.cancel()

    def _flush_soon(self) -> None:
        if self._flush is None and not self._closed:
            self._flush = asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        self._flush = None
        if self._closed:
            return
        to_send, done = self._orders.due(self._leader_of, self._clock.monotonic_ms())
        for broker, markers in to_send.items():
            self._queued.setdefault(broker, []).extend(markers)
        self._call_all()
        self._arm()
        _tell(done)

    def _leader_of(self, partition: TopicPartition) -> NodeId | None:
        """Leader of a partition, see `marker_orders.LeaderOf`. A partition that this image lacks was deleted: a
        coordinator had it in its image when it joined the transaction, and a later coordinator's image is at least as
        new."""
        found = self._image().partition(*partition)
        return None if found is None else found.leader

    def _call_all(self) -> None:
        for broker in list(self._queued):
            under_way = sum(1 for other, _ in self._calls.values() if other == broker)
            while self._queued.get(broker) and under_way < CALLS_MAX:
                markers = self._queued[broker]
                self._queued[broker] = markers[MARKERS_MAX:]
                task = spawn(self._call(broker, markers[:MARKERS_MAX]), self._report)
                self._calls[task] = broker, markers[:MARKERS_MAX]
                under_way += 1
            if not self._queued[broker]:
                del self._queued[broker]

    def _arm(self) -> None:
        next_ms = self._orders.next_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_ms is not None and not self._closed:
            delay_ms = max(next_ms - self._clock.monotonic_ms(), 1.0)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._send_due)

    async def _call(self, broker: NodeId, markers: Sequence[Addressed]) -> None:
        why = ""
        try:
            codes = await self._ask(broker, markers)
        except (RpcError, ProtocolError) as error:
            codes, why = [_GIVEN_UP] * len(markers), str(error)
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._calls.pop(task, None)
        answers = list(zip(markers, codes, strict=True))
        for addressed, code in answers:
            if code in ANOTHER_HAS_IT:
                self._note(
                    broker, addressed, code.name, "another coordinator has a transaction: no marker is sent here"
                )
            elif code is not ErrorCode.NONE and self._orders.failures(addressed) >= LOUD_AFTER:
                self._note(broker, addressed, why or code.name, "a marker of a transaction is not taken: sent again")
        done = self._orders.answered(answers, self._clock.monotonic_ms())
        self._flush_soon()
        _tell(done)

    async def _ask(self, broker: NodeId, markers: Sequence[Addressed]) -> list[ErrorCode]:
        """Send one call. Returns an error code for each marker. Raises RpcError, ProtocolError."""
        by_order: dict[int, list[TopicPartition]] = {}
        for number, partition in markers:
            by_order.setdefault(number, []).append(partition)
        wanted, places = [], []
        for number, partitions in by_order.items():
            order = self._orders.order(number)
            if order is not None:  # else it was dropped
                wanted.append(self._to_write(number, order, partitions))
                places += [Addressed(number, partition) for partition in partitions]
        sender = Sender(self._node_id, self._broker_epoch())
        if broker == self._node_id:
            codes: Sequence[ErrorCode] = await self._writer.write(sender, wanted)
        else:
            registered = self._image().brokers.get(broker)
            if registered is None:
                return [ErrorCode.BROKER_NOT_AVAILABLE] * len(markers)
            request = WriteMarkersRequest(*sender, tuple(wanted))
            reply = await call(self._rpc, registered.internal, WRITE_MARKERS, request, timeout_ms=CALL_MS)
            codes = reply.errors
        if len(codes) != len(places):
            raise ProtocolError(f"broker {broker} answered {len(codes)} results for {len(places)} markers")
        found = dict(zip(places, codes, strict=True))
        return [found.get(addressed, _GIVEN_UP) for addressed in markers]

    def _to_write(self, number: int, order: MarkerOrder, partitions: Sequence[TopicPartition]) -> MarkerToWrite:
        marker, image = order.marker, self._image()
        led = (image.partition(*partition) for partition in partitions)
        # rule C28/markers-name-no-leadership
        leader_epochs = tuple(ANY_EPOCH if one is None else one.leader_epoch for one in led)
        return MarkerToWrite(
            number,
            ProducerId(marker.producer_id),
            marker.producer_epoch,
            marker.commit,
            marker.coordinator_epoch,
            order.transaction_version,
            tuple(NamedPartition(*partition) for partition in partitions),
            leader_epochs,
        )

    def _note(self, broker: NodeId, addressed: Addressed, reason: str, event: str) -> None:
        order = self._orders.order(addressed.number)
        if order is not None:
            partition = str(addressed.partition)
            figures = {"partition": partition, "transactional_id": order.transactional_id}
            self._notes.warn(event, partition, leader=broker, reason=reason, **figures)


def _tell(done: Sequence[Done]) -> None:
    for order, written in done:
        written(order)


def _concerns(delta: MetadataDelta, image: MetadataImage, partition: TopicPartition) -> bool:
    topic = image.topics.get(partition.topic)
    return topic is None or partition.partition in delta.partitions.get(topic.topic_id, ())
