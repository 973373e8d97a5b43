"""The broker's side of its session: registration, heartbeats, unfencing, controlled shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from uuid import UUID

import structlog

from strandline.controller import methods, operations
from strandline.controller.broker_api import (
    Heartbeat,
    HeartbeatReply,
    RegisterBrokerRequest,
    ReplicaOffsets,
    ReplicaSet,
)
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.metadata.records import RegisterBrokerRecord
from strandline.controller.quorum.api import LeaderAndEpoch
from strandline.log.incarnations import incarnation_of_epoch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, KafkaError, ProtocolError
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, Endpoint, NodeId, Offset, TopicIdPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock, Rpc, RpcError, Stream
from strandline.proto.settings import Scope, Settings, milliseconds
from strandline.proto.tasks import Report, spawn

log = structlog.get_logger("strandline.broker")

_FINAL = {
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_REGISTRATION,
}
"""Refusals of a registration that no retry changes."""

_IMAGE_POLLS_MAX = 100
"""Most looks at the image, one each `registration_retry_ms`, for the own registration that is being replaced."""

RECONNECT_MS = (20.0, 160.0)
"""First and longest pause before a session is tried anew; a change of the leader ends it at once."""


class BrokerSessionConfig(Settings, scope=Scope.NODE):
    """Of the broker's session with the controller.

    Attributes:
        shutdown_interval_ms: between heartbeats while the broker waits to be let go.
        registration_retry_ms: while an earlier process of this node still holds its session.
        connect_timeout_ms: for opening the session stream.
    """

    heartbeat_interval_ms = milliseconds(
        "broker.heartbeat.interval.ms", 2000, "Interval between heartbeats of a broker to the controller."
    )
    registration_timeout_ms = milliseconds(
        "initial.broker.registration.timeout.ms",
        60_000,
        "Time without a successful registration with the controller after which a starting broker stops with an error.",
    )
    shutdown_interval_ms = 25.0
    registration_retry_ms = 50.0
    connect_timeout_ms = 1000.0


class BrokerSession:
    """Registers the broker, holds its session with the active controller, and reports where its replicas stand.

    The broker is unfenced once its metadata reach its own registration record and `ready()` is true (it has opened its
    logs and its listeners serve); call `wake()` when that changes, when a replica fails or loses its leader, or when
    the disk fills up or has room again: the controller must know at once.

    Callbacks: `collect_offsets()` gives the offsets of all hosted replicas, of which only the changed are sent;
    `collect_unserved()` the replicas that cannot be served, which are sent where they changed; `disk_full()` whether
    this broker's disk has no room, which every heartbeat says; `on_registered(epoch)` is called at each registration;
    `held()` is the offset below which this node's disk had the metadata when it started;
    `on_fatal` when the broker must stop: a final refusal, or another process registered under its node id.

    A process registers once, but for one case: an operator unregisters a broker that is still fenced. As it has led and
    followed nothing yet, it registers once more.
    """

    def __init__(
        self,
        *,
        registration: RegisterBrokerRequest,
        channel: ControllerChannel,
        publisher: ImagePublisher,
        rpc: Rpc,
        clock: Clock,
        config: BrokerSessionConfig,
        collect_offsets: Callable[[], Iterable[ReplicaOffsets]],
        on_fatal: Report,
        collect_unserved: Callable[[], ReplicaSet] = ReplicaSet,
        collect_rotten: Callable[[], ReplicaSet] = ReplicaSet,
        collect_without_room: Callable[[], ReplicaSet] = ReplicaSet,
        disk_full: Callable[[], bool] = lambda: False,
        ready: Callable[[], bool] = lambda: True,
        on_registered: Callable[[BrokerEpoch], None] = lambda _: None,
        held: Callable[[], int] = lambda: 0,
    ) -> None:
        self._registration = registration
        self._channel = channel
        self._publisher = publisher
        self._rpc = rpc
        self._clock = clock
        self._config = config
        self._collect_offsets = collect_offsets
        self._collect_unserved = collect_unserved
        self._collect_rotten = collect_rotten
        self._collect_without_room = collect_without_room
        self._disk_full = disk_full
        self._on_fatal = on_fatal
        self._ready = ready
        self._on_registered = on_registered
        self._held = held
        self._epoch = NO_BROKER_EPOCH
        self._want_shutdown = False
        self._may_stop = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._was_unfenced = False
        self._displaced = False
        self._wake = asyncio.Event()
        self._report_at = -1
        self._sent_offset = -1
        self._endpoint: Endpoint | None = None
        self._stream: Stream | None = None
        self._reported: dict[TopicIdPartition, ReplicaOffsets] = {}
        self._reported_unserved: ReplicaSet | None = None
        self._reported_rotten: ReplicaSet | None = None
        self._reported_without_room: ReplicaSet | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def node_id(self) -> NodeId:
        """This broker's node id."""
        return self._registration.node_id

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """The epoch of this process lifetime; -1 before the registration is committed."""
        return self._epoch

    @property
    def fenced(self) -> bool:
        """This broker is fenced, as far as its own image says; true before it has registered."""
        broker = self._own(self._publisher.image)
        return broker is None or broker.fenced

    @property
    def connected(self) -> bool:
        """There is a controller to talk to: the session's stream is open."""
        return self._stream is not None

    def start(self) -> None:
        """Begin: register, then hold the session, until `close`."""
        self._publisher.subscribe(self._on_metadata)
        self._publisher.subscribe_leader(self._on_leader)
        self._task = spawn(self._run(), self._on_fatal, endless=True)

    async def wait_unfenced(self) -> None:
        """Return once this broker's own image has it unfenced."""
        await self._unfenced.wait()

    def wake(self) -> None:
        """Send a heartbeat now: what it says has changed, and must not wait."""
        self._wake.set()

    async def controlled_shutdown(self, timeout_ms: float) -> bool:
        """Ask to be let go; true once the controller has moved every leadership away and the others know.

        False when that took longer than `timeout_ms`: the broker may stop all the same, at the price of an election.
        """
        self._want_shutdown = True
        self._wake.set()
        if self._epoch == NO_BROKER_EPOCH:
            return True
        try:
            async with asyncio.timeout(timeout_ms / 1000.0):
                await self._may_stop.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End the session without asking."""
        self._publisher.unsubscribe(self._on_metadata)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    # Registration

    async def _run(self) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._config.registration_timeout_ms
        await self._register(deadline_ms)
        pause_ms = RECONNECT_MS[0]
        while True:
            held = await self._hold_session()
            if self._displaced:
                self._displaced = False
                await self._register(deadline_ms)
                continue
            pause_ms = RECONNECT_MS[0] if held else min(pause_ms * 2, RECONNECT_MS[1])
            await self._channel.wait_for_leader_change(pause_ms)

    async def _register(self, deadline_ms: float) -> None:
        while True:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                reply = await self._channel.ask(
                    operations.REGISTER_BROKER, self._registration, timeout_ms=max(left_ms, 1.0)
                )
            except KafkaError as error:
                if error.code in _FINAL or left_ms <= 0:
                    raise FatalError(f"Broker {self.node_id} cannot join the cluster: {error.message}") from error
                log.info("this broker is not registered yet", broker=self.node_id, why=str(error))
                await asyncio.sleep(self._config.registration_retry_ms / 1000.0)
                continue
            if reply.broker_epoch == NO_BROKER_EPOCH:
                lives = self._registration.lives
                if reply.registered is not None and reply.registered not in lives:
                    lives = await self._lives_with(reply.registered)
                self._registration = replace(self._registration, replaces=reply.registered, lives=lives)
                continue
            self._epoch = reply.broker_epoch
            self._on_registered(reply.broker_epoch)
            return

    async def _lives_with(self, registered: UUID) -> tuple[UUID, ...]:
        """The lives of the directory, with that of the `registered` process where the metadata on this node's disk had
        its registration when this process started. A build that notes no lives leaves that much, however it ends; an
        older copy of the directory has older metadata."""
        lives = self._registration.lives
        for _ in range(_IMAGE_POLLS_MAX if self._held() else 0):
            broker = self._publisher.image.brokers.get(self.node_id)
            if broker is None or broker.incarnation_id != registered:  # the image is behind
                await asyncio.sleep(self._config.registration_retry_ms / 1000.0)
                continue
            # rule B38/any-registration-proves-the-directory
            if broker.broker_epoch < self._held():  # rule B38/a-kill-of-an-earlier-build-loses-all
                mark("known-by-its-metadata")
                return (incarnation_of_epoch(broker.broker_epoch), *lives)
            break
        return lives

    # The session

    async def _hold_session(self) -> bool:
        """One stream to one controller, until it breaks or another node leads the quorum; false: none was opened."""
        endpoint = self._channel.active_endpoint()
        if endpoint is None:
            return False
        try:
            stream = await self._rpc.open_stream(
                endpoint, methods.SESSION.path, timeout_ms=self._config.connect_timeout_ms
            )
        except RpcError:
            return False
        self._stream, self._endpoint = stream, endpoint
        self._reported = {}
        # schedule 56/unserved-replicas-are-told-to-one-controller
        self._reported_unserved = self._reported_rotten = self._reported_without_room = None
        reader = asyncio.get_running_loop().create_task(self._read(stream))
        try:
            await self._write(stream, reader)
        except RpcError:
            pass
        finally:
            self._stream = self._endpoint = None
            stream.close()
            reader.cancel()
            await asyncio.wait([reader])
        if not reader.cancelled():
            error = reader.exception()
            if error is not None:
                raise error
        return True

    async def _write(self, stream: Stream, reader: asyncio.Task[None]) -> None:
        """Heartbeats at their interval, and at once when there is a reason, while the reader lives."""
        reader.add_done_callback(lambda _: self._wake.set())
        while not reader.done():
            self._wake.clear()
            await stream.write(methods.SESSION.request.encode(self._heartbeat()))
            interval_ms = (
                self._config.shutdown_interval_ms if self._want_shutdown else self._config.heartbeat_interval_ms
            )
            try:
                async with asyncio.timeout(interval_ms / 1000.0):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _heartbeat(self) -> Heartbeat:
        changed = []
        for item in self._collect_offsets():
            key = TopicIdPartition(item.topic_id, item.partition)
            if self._reported.get(key) != item:
                self._reported[key] = item
                changed.append(item)
        # schedule 56/unserved-replicas-are-not-told, schedule 80/rot-is-not-reported
        unserved, rotten = self._collect_unserved(), self._collect_rotten()
        without_room = self._collect_without_room()
        without_room_before, self._reported_without_room = self._reported_without_room, without_room
        unserved_before, self._reported_unserved = self._reported_unserved, unserved
        rotten_before, self._reported_rotten = self._reported_rotten, rotten
        self._sent_offset = self._publisher.image.offset
        # schedule 57/a-full-directory-is-not-told, schedule 57/full-disk-is-not-told
        return Heartbeat(
            node_id=self.node_id,
            broker_epoch=self._epoch,
            metadata_offset=Offset(self._sent_offset),
            want_fence=not self._ready(),
            want_shutdown=self._want_shutdown,
            offsets=tuple(changed),
            unserved=None if unserved == unserved_before else unserved,
            disk_full=self._disk_full(),
            rotten=None if rotten == rotten_before else rotten,
            without_room=None if without_room == without_room_before else without_room,
        )

    async def _read(self, stream: Stream) -> None:
        """Replies, until the stream ends or an answer says that it is over."""
        while True:
            try:
                frame = await stream.read()
            except RpcError:
                return
            if frame is None:
                return
            try:
                reply, _ = methods.read_answer(methods.SESSION, frame)
            except KafkaError as error:
                if error.code is ErrorCode.STALE_BROKER_EPOCH:
                    self._displaced_by(error)
                return
            except ProtocolError:
                return
            self._take(reply)

    def _displaced_by(self, error: KafkaError) -> None:
        if self._was_unfenced:  # rule B12/a-displaced-broker-stops
            raise FatalError(
                f"Broker {self.node_id} of epoch {self._epoch} is not registered any more: {error.message}"
            ) from error
        mark("registration-displaced")
        log.warning("not registered any more, and never served: once more", broker=self.node_id, why=error.message)
        self._displaced = True

    def _take(self, reply: HeartbeatReply) -> None:
        if reply.should_shut_down:
            self._may_stop.set()
        self._report_at = reply.report_at_offset
        # schedule 71/displaced-broker-is-not-asked
        if reply.heartbeat_now or self._sent_offset < self._report_at <= self._publisher.image.offset:
            self._wake.set()

    # Reasons for a heartbeat at once

    def _on_metadata(self, _: MetadataDelta, image: MetadataImage) -> None:
        broker = self._own(image)
        if broker is None:
            return
        if broker.fenced:
            self._unfenced.clear()
            # Registered and caught up, or fenced though alive: a heartbeat says so.
            self._wake.set()
        else:
            self._was_unfenced = True
            self._unfenced.set()
            if self._sent_offset < self._report_at <= image.offset:
                self._wake.set()

    def _on_leader(self, leader_and_epoch: LeaderAndEpoch) -> None:
        """A session with the former controller is worth nothing: leave it for one with the new leader."""
        self._channel.handle_leader_change(leader_and_epoch)
        known = leader_and_epoch.leader_id is not None
        if known and self._stream is not None and self._channel.active_endpoint() != self._endpoint:
            self._stream.close()

    def _own(self, image: MetadataImage) -> RegisterBrokerRecord | None:
        broker = image.brokers.get(self.node_id)
        if broker is None or broker.broker_epoch != self._epoch:
            return None
        return broker
