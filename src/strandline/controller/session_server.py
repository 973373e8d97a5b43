"""The controller's side of broker sessions: one stream a broker, and probes of those whose stream broke."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.controller import methods
from strandline.controller.broker_api import Heartbeat, HeartbeatReply, PingRequest
from strandline.controller.command_queue import CommandQueue
from strandline.controller.machine.brokers import heartbeat
from strandline.controller.machine.sessions import ProbeFinding
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.records import RegisterBrokerRecord
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import NodeId, Offset
from strandline.proto.messages.method import call
from strandline.proto.ports import Clock, Rpc, RpcError, RpcUnavailable, Stream
from strandline.proto.tasks import Report, spawn


class _ServedSession:
    """One open session stream; `frames` are what is to be written, None to end it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.node_id: NodeId | None = None
        self.broker_epoch = -1


class SessionServer:
    """Serves session streams and probes suspects. Everything it learns goes into the state's `BrokerSessions`."""

    def __init__(
        self, queue: CommandQueue, rpc: Rpc, clock: Clock, on_change: Callable[[], None], on_fatal: Report
    ) -> None:
        self._queue = queue
        self._rpc = rpc
        self._clock = clock
        self._on_change = on_change
        self._on_fatal = on_fatal
        self._open: dict[_ServedSession, None] = {}
        self._probes: dict[asyncio.Task[None], None] = {}
        self._wanted_offset = -1

    def close_all(self) -> None:
        """End every stream and every probe: this node is not the active controller any more."""
        for session in self._open:
            session.frames.put_nowait(None)
        for task in list(self._probes):
            task.cancel()
        self._wanted_offset = -1

    # Streams

    async def serve(self, stream: Stream) -> None:
        """Serve one session stream until it breaks, or this node stops being the active controller."""
        session = _ServedSession(stream)
        self._open[session] = None
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(session))
                await self._read(session)
                session.frames.put_nowait(None)
                await writer
        finally:
            del self._open[session]
            stream.close()
            self._broke(session)

    async def _read(self, session: _ServedSession) -> None:
        while True:
            try:
                frame = await session.stream.read()
            except RpcUnavailable:
                return
            if frame is None:
                return
            try:
                beat = methods.SESSION.request.decode(frame)
            except ProtocolError:
                return
            try:
                reply = await self._take(session, beat)
            except KafkaError as error:
                # The broker ends the stream when it has read this; ending it here could overtake the frame.
                session.frames.put_nowait(methods.refusal(error))
            else:
                session.frames.put_nowait(methods.answer(methods.SESSION, reply))

    async def _take(self, session: _ServedSession, beat: Heartbeat) -> HeartbeatReply:
        def operation(state: MachineState, next_offset: int) -> Result[HeartbeatReply]:
            result = heartbeat(state, beat, next_offset, self._clock.monotonic_ms())
            if session.node_id is None:
                session.node_id, session.broker_epoch = beat.node_id, beat.broker_epoch
                state.sessions.stream_opened(beat.node_id)
            return result

        return await self._queue.submit(operation)

    async def _write(self, session: _ServedSession) -> None:
        while True:
            frame = await session.frames.get()
            if frame is None:
                session.stream.close()
                return
            try:
                await session.stream.write(frame)
            except RpcUnavailable:
                return

    def _broke(self, session: _ServedSession) -> None:
        state = self._queue.state
        if state is None or session.node_id is None:
            return
        broker = state.image.brokers.get(session.node_id)
        if broker is not None and broker.broker_epoch == session.broker_epoch:
            state.sessions.stream_broke(session.node_id, self._clock.monotonic_ms())
            self._on_change()

    def ask_for_offsets(self) -> None:
        """If a controlled shutdown waits for the others to see its last move, ask them to report when they have."""
        state = self._queue.state
        if state is None:
            return
        wanted = state.sessions.wanted_offset()
        if wanted <= self._wanted_offset:
            return
        self._wanted_offset = wanted
        for broker in state.image.brokers.values():
            if broker.active:
                self._wish(broker, report_at_offset=Offset(wanted), heartbeat_now=False)

    def _wish(self, broker: RegisterBrokerRecord, *, report_at_offset: Offset, heartbeat_now: bool) -> None:
        """Send an unfenced broker a reply that no heartbeat asked for, over the streams of the process on record."""
        wish = HeartbeatReply(
            caught_up=True,
            fenced=False,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            should_shut_down=False,
            report_at_offset=report_at_offset,
            heartbeat_now=heartbeat_now,
        )
        frame = methods.answer(methods.SESSION, wish)
        for session in self._open:
            if (session.node_id, session.broker_epoch) == (broker.node_id, broker.broker_epoch):
                session.frames.put_nowait(frame)

    # Probes

    def probe_suspects(self) -> None:
        """Start the probes that are due, and ask for the heartbeats that are."""
        state = self._queue.state
        if state is None:
            return
        now_ms = self._clock.monotonic_ms()
        for node_id in state.sessions.due_probes(now_ms):
            broker = state.image.brokers.get(node_id)
            if broker is not None:
                task = spawn(self._probe(state, broker, now_ms), self._on_fatal)
                self._probes[task] = None
                task.add_done_callback(self._probes.pop)
        for node_id in state.sessions.due_heartbeats():
            broker = state.image.brokers.get(node_id)
            if broker is not None:
                self._wish(broker, report_at_offset=Offset(self._wanted_offset), heartbeat_now=True)

    async def _probe(self, state: MachineState, broker: RegisterBrokerRecord, sent_ms: float) -> None:
        finding = await self._ping(broker, state.sessions.times.answer_ms)
        if self._queue.state is state:
            state.sessions.probed(broker.node_id, finding, self._clock.monotonic_ms(), sent_ms=sent_ms)
            self._on_change()

    async def _ping(self, broker: RegisterBrokerRecord, timeout_ms: float) -> ProbeFinding:
        try:
            reply = await call(self._rpc, broker.internal, methods.PING, PingRequest(), timeout_ms=timeout_ms)
        except RpcUnavailable as error:
            return ProbeFinding.REFUSED if error.refused else ProbeFinding.SILENT
        except (RpcError, ProtocolError):
            return ProbeFinding.SILENT
        if reply.node_id != broker.node_id:
            return ProbeFinding.SILENT
        return ProbeFinding.ALIVE if reply.incarnation_id == broker.incarnation_id else ProbeFinding.OTHER_PROCESS
