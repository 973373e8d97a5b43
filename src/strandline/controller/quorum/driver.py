"""Carries out what the core orders: in the core's order, on one disk, by calls and one timer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import structlog

from strandline.controller.quorum.addresses import Addresses
from strandline.controller.quorum.api import LeaderAndEpoch, QuorumConfig
from strandline.controller.quorum.callers import Callers
from strandline.controller.quorum.commits import Commits
from strandline.controller.quorum.dispatch import Dispatcher
from strandline.controller.quorum.fetched import Fetched
from strandline.controller.quorum.joining import Joining
from strandline.controller.quorum.memory import Memory
from strandline.controller.quorum.metadata_log import MetadataLog
from strandline.controller.quorum.methods import METHODS
from strandline.controller.quorum.snapshots import SnapshotStore
from strandline.controller.quorum.snapshotting import Snapshotting
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    Inbound,
    OffsetAndEpoch,
    Reply,
    Request,
    RequestFailed,
    RequestReceived,
    Response,
    ResponseReceived,
    SendRequest,
)
from strandline.controller.raft.ready import Append, LogAction, Ready, StoreSnapshotChunk, TruncateTo
from strandline.log.disk import Disk, DiskFull
from strandline.log.partition_log import PartitionLog
from strandline.log.syncer import Syncer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark
from strandline.proto.messages.method import Method
from strandline.proto.ports import Clock, Rpc, RpcError, RpcUnavailable
from strandline.proto.tasks import spawn

log = structlog.get_logger("strandline.quorum")

_TIMER_MS_MIN = 1.0
"""Never wake sooner: an overdue deadline must not turn into a busy loop."""

_HELD_BACK_S = 0.5
"""Seconds between two attempts at a vote that found no room on the disk, or on a disk that takes long."""

_NOTICE_INTERVAL_MS = 1_000.0
"""Milliseconds between two log lines on a peer's mistakes, at least; the line says how many before it were not logged.
"""

_RECOVERY_POINT_INTERVAL_MS = 30_000.0
"""Milliseconds between two records of how far the log is durable, at least: each costs two small syncs."""


@dataclass(frozen=True, slots=True)
class Durable:
    """Files that the driver writes to."""

    disk: Disk
    memory: Memory
    log: MetadataLog
    snapshots: SnapshotStore


class Driver:
    """The world around one `RaftCore`.

    Invariants:
    - a Ready is carried out whole, in its order, before the next input reaches the core;
    - after a failure nothing more is written, sent or handed over.
    """

    def __init__(
        self,
        *,
        core: RaftCore,
        durable: Durable,
        dispatcher: Dispatcher,
        addresses: Addresses,
        config: QuorumConfig,
        clock: Clock,
        stamp_ms: Callable[[], int],
        rpc: Rpc,
        on_fatal: Callable[[BaseException], None],
        fetched: Fetched | None = None,
    ) -> None:
        """`stamp_ms` says the time that is written down; `fetched` tries what a leader sends before it is appended."""
        self.core = core
        self._durable = durable
        self._log = durable.log
        self._dispatcher = dispatcher
        self.addresses = addresses
        self.joining: Joining | None = None
        """Handler of requests to become a voter; set by the part that changes voters."""
        self.unreached: dict[NodeId, str] = {}
        self._config = config
        self._clock = clock
        self._stamp_ms = stamp_ms
        self._rpc = rpc
        self._on_fatal = on_fatal
        self._fetched = fetched
        self._loop = asyncio.get_running_loop()
        self._syncer = Syncer(durable.disk, self._synced, self._sync_failed, self.fail)
        self._stopped = False
        self._pumping = False
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._callers = Callers(core, durable.log, durable.snapshots, self._spawn)
        self._snapshotting = Snapshotting(
            core=core,
            log=durable.log,
            snapshots=durable.snapshots,
            dispatcher=dispatcher,
            clock=clock,
            fetched=fetched,
            spawn=self._spawn,
        )
        self.commits = Commits(core)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._held_back: Ready | None = None
        self._recovery_point_armed = False
        self._quiet_until_ms = -math.inf
        self._suppressed = 0
        self._recovery_point_due_ms = self.now_ms() + _RECOVERY_POINT_INTERVAL_MS

    @property
    def stopped(self) -> bool:
        """True if nothing is done any more."""
        return self._stopped

    @property
    def reloads(self) -> int:
        """Fetched snapshots that replaced the log so far."""
        return self._snapshotting.reloads

    @property
    def log_start_offset(self) -> int:
        """Start offset of the log on the disk."""
        return self._log.start_offset

    @property
    def durable_offset(self) -> int:
        """Offset up to which the log on the disk is synced, whatever the core counts on."""
        return self._log.durable_offset

    # --- inputs ------------------------------------------------------------------------------------------------------

    def now_ms(self) -> float:
        """Time of this node's monotonic clock, in milliseconds."""
        return self._clock.monotonic_ms()

    def step(self, message: Inbound) -> None:
        """Give the core a message and do what follows from it."""
        if not self._stopped:
            self._guarded(lambda: self.core.step(message, self.now_ms()))
            self.pump()

    async def serve(self, method: Method[Any, Any], payload: bytes) -> bytes:
        """Answer a peer's call, once the core answers it.

        Raises:
            ProtocolError: the request does not parse.
            RpcUnavailable: this quorum has stopped.
        """
        request = method.request.decode(payload)
        if self._stopped:
            raise RpcUnavailable("this node's quorum has stopped")
        if isinstance(request, BeginQuorumEpochRequest):
            self.addresses.hear(request.leader_id, request.leader_at)
        token, future = self._callers.open()
        self.step(RequestReceived(token, request))
        try:
            return await future
        finally:
            self._callers.forget(token)

    def schedule_pump(self) -> None:
        """Pump once at the end of this turn of the loop: appends of one turn share their messages and their sync."""
        if not self._pump_scheduled and not self._stopped:
            self._pump_scheduled = True
            self._loop.call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def _synced(self, _: list[PartitionLog]) -> None:
        if not self._stopped:
            self._guarded(self._flushed)
            self.pump()

    def _flushed(self) -> None:
        now_ms = self.now_ms()
        self.core.flushed(self._log.durable_offset, now_ms)
        if self._recovery_point_armed:
            return
        if now_ms >= self._recovery_point_due_ms:
            self._note_recovery_point()
        else:  # also where nothing more is written: what has been synced by then is vouched for
            self._recovery_point_armed = True
            # rule E5/idle-log-is-not-vouched-for
            self._loop.call_later((self._recovery_point_due_ms - now_ms) / 1000, self._recovery_point_is_due)

    def _recovery_point_is_due(self) -> None:
        self._recovery_point_armed = False
        if not self._stopped:
            self._guarded(self._note_recovery_point)

    def _note_recovery_point(self) -> None:
        self._recovery_point_due_ms = self.now_ms() + _RECOVERY_POINT_INTERVAL_MS
        if not self._durable.disk.busy:
            self._log.note_recovery_point()
            self._durable.memory.hold(self._held())

    def _held(self) -> OffsetAndEpoch:
        """End of what this node has durably and what is committed: it is never truncated."""
        offset = min(self.core.high_watermark, self._log.durable_offset)
        return OffsetAndEpoch(offset, self.core.log.epoch_before(offset))

    def note_held(self) -> None:
        """Note after a clean stop that all that is committed and was synced is held. Raises DiskError."""
        self._durable.memory.hold(self._held())

    def _sync_failed(self, _: list[PartitionLog], error: OSError) -> None:
        """Never retried: a second fsync may succeed over bytes that are gone (schedule 32)."""
        self.fail(error)  # rule A9/failed-sync-does-not-stop-the-quorum, rule A9/failed-sync-is-retried

    # --- the pump ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Drain the core until it wants nothing more."""
        if self._pumping or self._stopped:
            return
        self._pumping = True
        try:
            self._guarded(self._drain)
        finally:
            self._pumping = False
        if not self._stopped:
            self._dispatch()
            self.commits.settle()
            if self.joining is not None:
                self.joining.look(self._spawn)
            self._arm_timer()

    def _drain(self) -> None:
        while not self._stopped:
            ready = self._held_back or self.core.ready()
            self._held_back = None
            if ready.empty:
                return
            if ready.persist is not None:
                if self._durable.disk.busy:
                    mark("quorum-disk-busy")
                    self._hold_back(ready)
                    return
                try:
                    self._durable.memory.remember(ready.persist, self._held())  # rule A1/vote-sent-before-it-is-durable
                except DiskFull:
                    mark("quorum-disk-full")
                    self._hold_back(ready)
                    return
            self._carry_out(ready)
            if self.core.is_voter:
                self._durable.memory.gain_vote(len(self.core.voters) if self.core.voters.dynamic else 0)

    def _log_notices(self, notices: tuple[str, ...]) -> None:
        """Log what the core noticed, at a bounded rate: a peer that repeats itself must not fill the disk."""
        for notice in notices:
            if self.now_ms() < self._quiet_until_ms:
                self._suppressed += 1
                continue
            log.warning("metadata quorum: " + notice, node=self.core.key.node_id, suppressed=self._suppressed)
            self._suppressed, self._quiet_until_ms = 0, self.now_ms() + _NOTICE_INTERVAL_MS

    def _hold_back(self, ready: Ready) -> None:
        """No room to remember an epoch or a vote, or a sync under way that takes long, behind which the whole node
        would wait. Nothing leaves this node until there is: to the others it is silent, which Raft bears, and it need
        not fall."""
        self._held_back = ready
        self._loop.call_later(_HELD_BACK_S, self.pump)

    def _carry_out(self, ready: Ready) -> None:
        """Carry out all but `persist`, which is durable by now."""
        self._log_notices(ready.notices)
        for action in ready.log:
            if not self._change_log(action):
                break
        if ready.flush:
            self._syncer.mark(self._log.partition_log)
        for message in ready.send:
            if isinstance(message, SendRequest):
                self._spawn(self._call(message))
            else:
                self._callers.reply(self._telling(message))
        # rule A13/uncommitted-records-are-handed-over
        if ready.high_watermark is not None:
            # The core takes its own back to the log's end when not everything could be written.
            # rule A8/what-was-not-written-is-handed-over
            self._dispatcher.advance(min(ready.high_watermark, self.core.high_watermark))

    def _telling(self, message: Reply) -> Reply:
        """The answer with the leader's address, for peers of another voter set."""
        leader_at = self.addresses.to_tell(message.response.leader_id)
        if leader_at is None:  # rule A37/nobody-tells-where-the-leader-is
            return message
        return replace(message, response=replace(message.response, leader_at=leader_at))

    def _change_log(self, action: LogAction) -> bool:
        """Carry out one order; False if it failed harmlessly and those after it cannot follow."""
        if isinstance(action, Append):
            if not self._log.write(action.batch, self._stamp_ms()):
                self.core.append_failed(self._log.end_offset, self.now_ms())
                return False
        elif isinstance(action, TruncateTo):
            self._log.truncate_to(action.offset)
        elif isinstance(action, StoreSnapshotChunk):
            try:
                self._durable.snapshots.store_chunk(action.snapshot, action.position, action.data)
            except DiskFull:
                self._durable.snapshots.forget_part()
                self.core.snapshot_refused(self.now_ms())
                return False
        else:
            self._snapshotting.install(action.snapshot, self.now_ms())
        return True

    def snapshot_soon(self) -> None:
        """Take a snapshot with the next dispatch."""
        self._snapshotting.wanted = True
        self.schedule_pump()

    def _dispatch(self) -> None:
        leading = self.core.leading
        epoch_start = leading.epoch_start_offset if leading is not None else 0
        self._dispatcher.set_leader(LeaderAndEpoch(self.core.leader_id, self.core.epoch), epoch_start)
        self._dispatcher.run()
        self._snapshotting.take_if_due(self._config.snapshot_max_new_record_bytes)

    # --- calls -------------------------------------------------------------------------------------------

    async def _call(self, sent: SendRequest) -> None:
        request = sent.request
        method = METHODS[type(request)]
        outcome: ResponseReceived | RequestFailed
        if isinstance(request, BeginQuorumEpochRequest):
            request = replace(request, leader_at=self.addresses.to_tell(request.leader_id))
        try:
            endpoint = self.addresses.to_call(sent.to)
            if endpoint is None:
                raise RpcUnavailable("an address that this node does not know")
            payload = await self._rpc.call(
                endpoint,
                method.path,
                method.request.encode(request),
                timeout_ms=self._timeout_ms(sent.request),
            )
            self.unreached.pop(sent.to, None)
            response: Response = method.reply.decode(payload)
            another = response.error is ErrorCode.INVALID_VOTER_KEY
            if response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:  # rule A37/a-bootstrap-address-stays-the-leaders
                another = endpoint != self.addresses.of(sent.to)
            if another:  # rule A37/who-answers-for-another-is-asked-again
                self.addresses.failed(sent.to)
            self.addresses.hear(response.leader_id, response.leader_at)
            outcome = ResponseReceived(sent.request_id, self._judged(request, response))
        except RpcUnavailable as error:
            self.addresses.failed(sent.to)
            self.unreached[sent.to] = str(error)
            outcome = RequestFailed(sent.request_id, broken=True)
        except (RpcError, ProtocolError):
            outcome = RequestFailed(sent.request_id, broken=False)
        self.step(outcome)

    def _judged(self, request: Request, response: Response) -> Response:
        """The answer without records that this node could not replay: once appended they count as acknowledged."""
        if self._fetched is None or not isinstance(request, FetchRequest) or not isinstance(response, FetchResponse):
            return response
        if not self.core.is_voter:
            return response
        judged, why = self._fetched.judged(request, response, self._dispatcher.handed_over)
        if why:
            self._log_notices((why,))
        return judged

    def _timeout_ms(self, request: Request) -> float:
        """A fetch may be parked: its answer is not late before twice that time."""
        parked_ms = request.max_wait_ms if isinstance(request, FetchRequest) else 0
        return max(self._config.request_timeout_ms, 2 * parked_ms)

    # --- time --------------------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        """Arm the one timer. It is left alone when the next deadline is later: it then fires early, and arms again."""
        deadline_ms = self.core.deadline_ms()
        if deadline_ms == math.inf or self._held_back is not None:
            return
        at = self._loop.time() + max(deadline_ms - self.now_ms(), _TIMER_MS_MIN) / 1000.0
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        if not self._stopped:
            self._guarded(lambda: self.core.tick(self.now_ms()))
            self.pump()

    # --- tasks, failure, end -----------------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = spawn(coroutine, self.fail)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Stop for good: after a failed write, sync or invariant nothing here can be trusted to go on."""
        if not self._stopped:
            self.stop()
            self._on_fatal(error)

    def stop(self) -> None:
        """Do nothing more; calls that wait fail."""
        self._stopped = True
        self._dispatcher.close()
        self._snapshotting.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._callers.close()
        self.commits.close()
        for task in list(self._tasks):
            task.cancel()

    def abandon(self) -> None:
        """`stop`, and wait for no sync."""
        self.stop()
        self._syncer.abandon()

    async def finish(self) -> None:
        """Wait, after `stop`, until every task has ended and no sync is under way."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._syncer.drain()

    async def drain_calls(self, timeout_s: float) -> None:
        """Wait until the calls under way are answered, or for the timeout."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)
