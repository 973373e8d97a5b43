"""The active controller's shell: the pure machine on the quorum, with timers and the network around it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

import structlog

import strandline
from strandline.controller import broker_api, methods
from strandline.controller.command_queue import Command, CommandQueue
from strandline.controller.machine import brokers, elections
from strandline.controller.machine.sessions import NEVER
from strandline.controller.machine.state import MachineSettings, MachineState, Progress, Result
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.features import METADATA_FEATURE, OWN_LEVELS, Supported, first_levels, is_level
from strandline.controller.metadata.image import CLUSTER_DEFAULT, MetadataImage
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.metadata.records import ConfigRecord, MetadataRecord
from strandline.controller.metadata.settings import AGREED_KEYS
from strandline.controller.methods import served
from strandline.controller.operations import OPERATIONS, Operation
from strandline.controller.quorum.api import CommittedBatch, LeaderAndEpoch, QuorumLog
from strandline.controller.session_server import SessionServer
from strandline.controller.survey import Survey, survey
from strandline.proto.errors import FatalError, KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.messages.method import handler
from strandline.proto.ports import Clock, Rng, Rpc, StreamHandler, UnaryHandler
from strandline.proto.settings import INT32_MAX, ConfigType, Part, Scope, Settings, boolean, whole
from strandline.proto.tasks import Report

Request = TypeVar("Request")
Reply = TypeVar("Reply")
log = structlog.get_logger("strandline.controller")

STALL_MS = 250.0
"""A timer that is this late was held up by a stopped process or machine, not by work: a turn takes milliseconds."""

HOLD_OFF_MS = 1_000.0
"""Milliseconds for which the controller's own commands pause after a replay refused one, so that refusals do not
loop."""


class ControllerConfig(Settings, scope=Scope.NODE):
    """Settings of a controller.

    Attributes:
        static: the node's file, by broker config names; defaults of topics fall back on it.
        bootstrap: what the directory was formatted with: the first records of a cluster that has none yet.
    """

    auto_leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        "true: leadership returns to the preferred replica without a request once that replica is in sync again.",
    )
    leader_imbalance_check_interval_s = whole(
        "leader.imbalance.check.interval.seconds",
        5,
        "Interval between checks for partitions that are not led by their preferred replica (Kafka: 300).",
        low=1,
        high=INT32_MAX,
        unit="s",
        type=ConfigType.LONG,
    )
    machine = Part(MachineSettings)
    static: Mapping[str, str] = MappingProxyType({})
    bootstrap: Sequence[MetadataRecord] = ()


class Controller:
    """Runs on every controller node; acts while its node leads the quorum, and answers NOT_CONTROLLER otherwise.

    Register it with the quorum *after* its publisher: the publisher's image is the committed state it begins on. Every
    operation answers only after what it rests on is committed.

    States and their triggers: STANDBY -> ACTIVE when the quorum names this node leader (by then everything committed
    has been handed over); ACTIVE -> STANDBY when it names another, when an append finds the leadership gone, or at
    `close`. Going to STANDBY fails every open command, drops the working image and ends all sessions.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        quorum: QuorumLog,
        publisher: ImagePublisher,
        rpc: Rpc,
        clock: Clock,
        rng: Rng,
        config: ControllerConfig,
        on_fatal: Report,
    ) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self._publisher = publisher
        self._rpc = rpc
        self._clock = clock
        self._rng = rng
        self._config = config
        self._resolver = ConfigResolver(config.static)
        self._on_fatal = on_fatal
        self._queue = CommandQueue(quorum, self._lost, self._fatal)
        self._queue.decided = self._log_losses
        self._queue.before_turn = self._before_turn
        self._queue.after_turn = self._after_turn
        self._sessions = SessionServer(self._queue, rpc, clock, self._queue.schedule, self._fatal)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = NEVER
        self._next_balance_ms = 0.0
        self._hold_off_until_ms = -NEVER
        self._fencing = Progress()
        self._applied = -1
        self._led_last: NodeId | None = None

    @property
    def active(self) -> bool:
        """This node is the active controller as far as it knows."""
        return self._queue.state is not None

    @property
    def working_image(self) -> MetadataImage | None:
        """The image with what is appended and not yet committed; None on a standby. For inspection alone."""
        state = self._queue.state
        return None if state is None else state.image

    def close(self) -> None:
        """Stop acting; open commands fail with NOT_CONTROLLER."""
        self._deactivate()

    # QuorumListener

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Answer what waited for this batch."""
        self._applied = batch.last_offset
        if self.active:
            self._queue.committed(batch.last_offset)

    def handle_load_snapshot(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> None:
        """The publisher loads it; a leader never gets one (invariant LeaderNeverLoadSnapshot)."""
        if self.active:  # rule A10/leader-loads-a-snapshot
            raise FatalError(f"A snapshot that ends at {end_offset} was loaded into the active controller.")
        self._applied = end_offset - 1

    def handle_leader_change(self, leader_and_epoch: LeaderAndEpoch) -> None:
        """Become active, or stop being it."""
        self._deactivate()
        leader, led_before = leader_and_epoch.leader_id, self._led_last
        if leader is not None:
            self._led_last = leader
        if leader == self._node_id:
            self._activate(leader_and_epoch.epoch, led_before if led_before != leader else None)

    def take_snapshot(self) -> None:
        """The publisher's business."""
        return

    # Activation

    def _activate(self, epoch: int, led_before: NodeId | None) -> None:
        image = self._publisher.image
        if image.offset < self._applied:
            raise FatalError(
                f"The controller was handed offset {self._applied}, its publisher only {image.offset}: "
                "register the publisher with the quorum first."
            )
        now_ms = self._clock.monotonic_ms()
        machine, led = self._config.machine, led_before
        state = MachineState(image, self._resolver, self._rng, machine, now_ms, epoch=epoch, led_before=led)
        self._queue.begin(state, epoch)
        self._fencing = Progress()
        self._next_balance_ms = now_ms + self._config.leader_imbalance_check_interval_s * 1000.0
        log.info("this node is the active controller", node_id=self._node_id, epoch=epoch)
        if image.metadata_version == 0:
            future = self._queue.submit(self._bootstrap)
            future.add_done_callback(_retrieve)
        # rule A39/what-was-left-is-left
        self._queue.submit(lambda state, _: elections.elect_left_over(state)).add_done_callback(_retrieve)
        self._queue.schedule()

    def _bootstrap(self, state: MachineState, next_offset: int) -> Result[None]:
        """The first records of a cluster: the levels of its features, and the configs that all nodes must agree on."""
        given = self._config.bootstrap
        newest = self._config.machine.supported[METADATA_FEATURE].last
        first: Sequence[MetadataRecord] = [one for one in given if is_level(one)] or first_levels(newest)
        records = [*first]
        kind, name = CLUSTER_DEFAULT
        for key in sorted(AGREED_KEYS & self._config.static.keys()):
            records.append(ConfigRecord(int(kind), name, key, self._config.static[key]))
        records += [one for one in given if not is_level(one)]
        return Result(None, records)

    def _deactivate(self) -> None:
        self._timer_due_ms = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.active:
            log.info("this node is no longer the active controller", node_id=self._node_id)
            self._queue.end()
            self._sessions.close_all()

    def _lost(self) -> None:
        self._deactivate()

    def _fatal(self, error: BaseException) -> None:
        self._quorum.resign()
        self._on_fatal(error)

    def _log_losses(self, state: MachineState, records: Sequence[MetadataRecord]) -> None:
        """An unclean election that the topic allows has no reply that says what it costs."""
        for loss in elections.losses(state, records, self._clock.monotonic_ms()):
            log.error("an unclean election", partition=loss.partition, leader=loss.leader, cost=loss.message)

    # Timers

    def _before_turn(self) -> None:
        """Commands that time gives: brokers that are gone are fenced, leaderships go back to preferred leaders."""
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._timer_due_ms
        if late_ms > STALL_MS and self._queue.state is not None:
            log.warning("this controller stood still; every broker gets a full session", late_ms=round(late_ms))
            self._queue.state.sessions.forgive(now_ms)
            self._queue.state.unproven.forgive(now_ms)
        if now_ms < self._hold_off_until_ms:
            return
        try:
            self._run_own_commands(now_ms)
        except KafkaError as error:
            # It would be refused again at once: its state is the same until some other command changes it.
            self._hold_off_until_ms = now_ms + HOLD_OFF_MS  # rule A16/refused-decision-is-tried-again-at-once
            self._fencing = Progress()
            log.error("internal error: a decision of the controller's own was refused", error=str(error))

    def _run_own_commands(self, now_ms: float) -> None:
        while (gone := self._fence_expired(now_ms)) is not None:
            log.warning("a broker is gone, and fenced", broker=gone[0], why=gone[1])
        if waited := self._queue.run_now(lambda state, _: elections.end_waits(state, now_ms)):
            log.warning(
                "not all of a last ISR are back after a crash; the greatest log of the rest leads", partitions=waited
            )
        if now_ms >= self._next_balance_ms:
            self._next_balance_ms = now_ms + self._config.leader_imbalance_check_interval_s * 1000.0
            if self._config.auto_leader_rebalance_enable:
                moved = self._queue.run_now(lambda state, _: elections.balance_leaders(state))
                if moved:
                    log.info("leaderships go back to their preferred leaders", partitions=moved)

    def _fence_expired(self, now_ms: float) -> tuple[NodeId, str] | None:
        gone = self._queue.run_now(lambda state, _: brokers.fence_expired(state, now_ms), self._fencing)
        if self._fencing.finished:
            self._fencing = Progress()
        return gone

    def _after_turn(self) -> None:
        state = self._queue.state
        if state is None:
            return
        self._sessions.probe_suspects()
        self._sessions.ask_for_offsets()
        now_ms = self._clock.monotonic_ms()
        state.unproven.stamp(now_ms)
        next_ms = min(state.sessions.next_event_ms(), state.unproven.next_event_ms(), self._next_balance_ms)
        due_ms = max(next_ms, self._hold_off_until_ms)
        delay_ms = max(0.0, due_ms - now_ms)
        self._timer_due_ms = now_ms + delay_ms
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000.0, self._queue.schedule)

    # Operations

    @property
    def quorum(self) -> QuorumLog:
        """This node's."""
        return self._quorum

    def now_ms(self) -> float:
        """Monotonic time."""
        return self._clock.monotonic_ms()

    def submit(self, command: Command[Reply]) -> asyncio.Future[Reply]:
        """Run it in its turn; the reply comes once what it rests on is committed."""
        return self._queue.submit(command)

    async def carry_out(self, operation: Operation[Request, Reply], request: Request) -> Reply:
        """Do it, and answer once what the answer rests on is committed. Raises KafkaError, which refuses it."""
        return await operation.carry_out(self, request)

    async def survey(self) -> Survey:
        """Ask all brokers and voters which feature levels their builds support."""
        image = self._publisher.image if self.working_image is None else self.working_image
        voters = {voter.node_id: self._quorum.endpoint_of(voter.node_id) for voter in self._quorum.describe().voters}
        nodes = {node_id: endpoint for node_id, endpoint in voters.items() if endpoint is not None}
        return await survey(self._rpc, nodes | {broker.node_id: broker.internal for broker in image.brokers.values()})

    # The network

    def rpc_handlers(self) -> tuple[dict[str, UnaryHandler], dict[str, StreamHandler]]:
        """The methods of the Controller service, to be mounted on the node's internal listener."""

        def committed() -> int:
            return self._publisher.image.offset

        unary = (served(each.method, partial(self.carry_out, each), committed) for each in OPERATIONS)
        return dict(unary), {methods.SESSION.path: self._sessions.serve}


def _retrieve(future: asyncio.Future[None]) -> None:
    """Take the error of a lost leadership, so that it is not logged: the next active controller bootstraps."""
    future.exception()


def ping_handler(node_id: NodeId, incarnation_id: UUID, supported: Supported = OWN_LEVELS) -> UnaryHandler:
    """Serves `methods.PING`: says which process answers here, and what its build knows. Every node mounts it."""
    reply = broker_api.PingReply(node_id, incarnation_id, broker_api.told(supported), strandline.__version__)

    async def ping(_: broker_api.PingRequest) -> broker_api.PingReply:
        return reply

    return handler(methods.PING, ping)
