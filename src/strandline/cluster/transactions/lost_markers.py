"""Transactions whose markers an unclean election lost (rules C29 and C31).

A leader that was elected uncleanly may lack markers that were committed. Their transactions are open in its log, and no
coordinator sends those markers again: coordinators regard them as written. Readers of committed records would wait
there for ever. The producer's next transaction would be refused, or under the first protocol be taken for the same
transaction.

So such a leader asks every coordinator for the outcomes of the transactions that are open in its log, and accepts
nothing from their producers until it knows them. A transaction that is open at its coordinator goes on. One that is
known to be committed is committed here as well, and every other is aborted: if the producer has gone on since, no
coordinator knows the decision any more, and after an unclean election a reader may miss records but must not see
aborted ones.

A leader that dies before it has asked may be followed by one that was elected cleanly. So every leader also asks about
transactions that have been open for longer than any transaction may be, whatever the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import structlog

from strandline.cluster.transactions.commands import Outcome
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.marker_writes import NO_ORDER, MarkerToWrite, MarkerWriter, NamedPartition, Sender
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import TRANSACTION_TOPIC
from strandline.controller.metadata.image import MetadataImage
from strandline.log.transactions import OpenTransaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import NO_BROKER_EPOCH, LeaderEpoch, NodeId, ProducerId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.messages.fields import Int32, Int64
from strandline.proto.messages.method import call, handler, method
from strandline.proto.ports import Clock, Rpc, RpcError, UnaryHandler
from strandline.proto.tasks import Report, spawn
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Partition

log = structlog.get_logger("strandline.transactions")

CALL_MS = 5_000.0
"""Maximum milliseconds to wait for the answer of a coordinator's broker."""

AGAIN_MS = (50.0, 1_000.0)
"""First and longest pause in milliseconds before a question or a marker is repeated."""

GRACE_MS = 300_000.0
"""Milliseconds beyond transaction.max.timeout.ms for which a transaction may be open here: its abort is decided within
seconds of its time-out, and its markers take as long as a failover. Kafka's tool regards older ones as hanging."""

LOOK_MS = 60_000.0
"""Milliseconds between two searches for transactions that have been open too long."""


@dataclass(frozen=True, slots=True)
class FoundOpen:
    """Transaction that is open in a log."""

    producer_id: Annotated[ProducerId, Int64(1)]
    producer_epoch: Annotated[int, Int32(2)]


@dataclass(frozen=True, slots=True)
class TransactionOutcomesRequest:
    """Question of a leader to the coordinators on a broker about transactions that are open in one partition."""

    partition: Annotated[NamedPartition, 1]
    transactions: Annotated[tuple[FoundOpen, ...], 2]


@dataclass(frozen=True, slots=True)
class TransactionOutcomesReply:
    """Answer to TransactionOutcomesRequest.

    Attributes:
        asked: partitions of `__transaction_state` that the broker has answered for.
        outcomes: outcome of each transaction, in the order of the request.
    """

    asked: Annotated[tuple[int, ...], Int32(1)]
    outcomes: Annotated[tuple[Outcome, ...], 2]


TRANSACTION_OUTCOMES = method(
    "/strandline.v1.Node/TransactionOutcomes", TransactionOutcomesRequest, TransactionOutcomesReply
)
"""Method that every broker answers, without an envelope."""


class Coordinator(Protocol):
    """Part of the interface of this broker's transaction coordinator that is used here."""

    async def outcomes_of(
        self, partition: TopicPartition, producers: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[Outcome]]:
        """Return the partitions of `__transaction_state` that it hosts, and the outcome for each producer and epoch."""


class _Open(NamedTuple):
    """Transaction that is open while this broker leads its partition."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    producer_id: int
    first_offset: int


class _Watched(NamedTuple):
    leader_epoch: LeaderEpoch
    task: asyncio.Task[None]


class LostMarkers:
    """Asks coordinators for one broker, and answers for the coordinator of this broker. Subscribe `on_metadata` after
    the subscriber that applies metadata to the replicas, so that no record comes between an election and the check of
    its log."""

    def __init__(
        self,
        node_id: NodeId,
        *,
        coordinator: Coordinator,
        replicas: ReplicaManager,
        writer: MarkerWriter,
        image: Callable[[], MetadataImage],
        rpc: Rpc,
        clock: Clock,
        config: TransactionConfig,
        report: Report,
    ) -> None:
        """Create it without any partitions. `report` gets internal errors."""
        self._node_id = node_id
        self._coordinator = coordinator
        self._replicas = replicas
        self._writer = writer
        self._image = image
        self._rpc = rpc
        self._clock = clock
        self._config = config
        self._report = report
        self._watched: dict[TopicPartition, _Watched] = {}
        self._seen: dict[_Open, float] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to check regularly for transactions that are open for too long."""
        self._looking = spawn(self._look_again_and_again(), self._report)

    def close(self) -> None:
        """Stop all checks and questions."""
        if self._looking is not None:
            self._looking.cancel()
        for watched in self._watched.values():
            watched.task.cancel()
        self._watched.clear()

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Check each partition whose leader may have changed."""
        names = {topic.topic_id: name for name, topic in image.topics.items() if topic.topic_id in delta.partitions}
        for topic_id, partitions in delta.partitions.items():
            for number in sorted(partitions) if topic_id in names else ():
                self.look(TopicPartition(names[topic_id], number))

    def look(self, tp: TopicPartition) -> None:
        """Check whether this broker leads the partition after an unclean election, and ask about the open
        transactions."""
        replica = self._replicas.partition(tp)
        watched = self._watched.get(tp)
        if watched is not None:
            if replica is not None and _leads_in(replica, watched.leader_epoch):
                return
            watched.task.cancel()
            self._forget(tp, replica)
        if replica is None or replica.leader is None or replica.log is None:
            return
        if not replica.state.recovering:  # rule C29/unclean-leaders-ask-nobody
            return
        self._ask_about(replica, replica.log.open_transactions())

    def _ask_about(self, replica: Partition, found: Sequence[OpenTransaction]) -> None:
        """Accept nothing from these producers until the outcomes of their transactions are known."""
        if found and replica.log is not None:
            replica.log.producers.unsettled.update(one.producer_id for one in found)
            tp, epoch = replica.topic_partition, replica.state.leader_epoch
            self._watched[tp] = _Watched(epoch, spawn(self._settle(replica, epoch), self._report))

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            self._look_for_hanging()

    def _look_for_hanging(self) -> None:
        """Ask about transactions that have been open in this leadership for longer than a transaction may be, as after
        an unclean election. The timestamps of records are not used: producers set them."""
        now_ms = self._clock.monotonic_ms()
        before_ms = now_ms - self._config.max_timeout_ms - GRACE_MS
        seen: dict[_Open, float] = {}
        for replica in self._replicas.with_open_transactions():
            tp, epoch = replica.topic_partition, replica.state.leader_epoch
            hanging = []
            for one in replica.log.open_transactions() if replica.log is not None else ():
                key = _Open(tp, epoch, one.producer_id, one.first_offset)
                seen[key] = self._seen.get(key, now_ms)
                if seen[key] <= before_ms:  # rule C31/open-transactions-are-asked-about-at-once
                    hanging.append(one)
            if tp not in self._watched:
                self._ask_about(replica, hanging)  # rule C31/nobody-asks-what-is-open-for-too-long
        self._seen = seen

    def _forget(self, tp: TopicPartition, replica: Partition | None) -> None:
        self._watched.pop(tp, None)
        if replica is not None and replica.log is not None:
            replica.log.producers.unsettled.clear()

    async def _settle(self, replica: Partition, epoch: LeaderEpoch) -> None:
        """Ask the coordinators until the outcome of every open transaction is known."""
        tp = replica.topic_partition
        pause_ms, longest_ms = AGAIN_MS
        while left := _unsettled(replica, epoch):
            outcomes = await self._ask(tp, left)
            for one in left:
                if one.producer_id in outcomes and one in _unsettled(replica, epoch):
                    await self._end(replica, epoch, one, outcomes[one.producer_id])
            if _unsettled(replica, epoch):
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, longest_ms)
        if _leads_in(replica, epoch):
            self._forget(tp, replica)

    async def _end(self, replica: Partition, epoch: LeaderEpoch, one: OpenTransaction, outcome: Outcome) -> None:
        tp = replica.topic_partition
        figures = {
            "partition": str(tp),
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "first_offset": one.first_offset,
        }
        if outcome is Outcome.OPEN and replica.log is not None:
            replica.log.producers.unsettled.discard(one.producer_id)
            log.info("a transaction that may have lost its end is open at its coordinator, and goes on", **figures)
            return
        commit = outcome is Outcome.COMMITTED  # rule C29/what-is-unknown-is-committed
        marker = MarkerToWrite(
            NO_ORDER,
            ProducerId(one.producer_id),
            one.producer_epoch,
            commit,
            max(one.coordinator_epoch, 0),
            1,  # the epoch of its records is the marker's
            (NamedPartition(*tp),),
            (epoch,),
        )
        (code,) = await self._writer.write(Sender(self._node_id, NO_BROKER_EPOCH), [marker])
        if code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
            mark("lost-marker-written")
            known = "" if outcome is not Outcome.UNKNOWN else "; no coordinator knows its decision any more"
            log.warning(
                f"the end of a transaction was lost, by an unclean election as a rule: it is "
                f"{'committed' if commit else 'aborted'} anew{known}",
                **figures,
            )

    async def _ask(self, tp: TopicPartition, left: Sequence[OpenTransaction]) -> Mapping[int, Outcome]:
        """Ask every coordinator for the outcomes. UNKNOWN is returned for a transaction only once all coordinators have
        said so."""
        topic = self._image().topics.get(TRANSACTION_TOPIC)
        partitions = {} if topic is None else topic.partitions
        named = tuple(FoundOpen(ProducerId(one.producer_id), one.producer_epoch) for one in left)
        request = TransactionOutcomesRequest(NamedPartition(*tp), named)
        asked: set[int] = set()
        outcomes: dict[int, Outcome] = {}
        for broker in sorted({one.leader for one in partitions.values() if one.has_leader}):
            for number, answer in zip(left, await self._ask_one(broker, request, asked), strict=False):
                if answer is not Outcome.UNKNOWN:
                    outcomes[number.producer_id] = answer
        if asked.issuperset(partitions):  # rule C29/a-coordinator-that-is-silent-knows-nothing
            for one in left:
                outcomes.setdefault(one.producer_id, Outcome.UNKNOWN)
        return outcomes

    async def _ask_one(self, broker: NodeId, request: TransactionOutcomesRequest, asked: set[int]) -> Iterable[Outcome]:
        """Return the answers of one broker, nothing if it does not answer. Adds the partitions that it answered for to
        `asked`."""
        if broker == self._node_id:
            reply = await self._answer(request)
        else:
            registered = self._image().brokers.get(broker)
            if registered is None:
                return ()
            try:
                reply = await call(self._rpc, registered.internal, TRANSACTION_OUTCOMES, request, timeout_ms=CALL_MS)
            except (RpcError, ProtocolError):
                return ()
        if len(reply.outcomes) != len(request.transactions):
            return ()
        asked.update(reply.asked)
        return reply.outcomes

    # Questions of other brokers

    def handlers(self) -> dict[str, UnaryHandler]:
        """Handlers that the node's internal listener has to serve."""
        return {TRANSACTION_OUTCOMES.path: handler(TRANSACTION_OUTCOMES, self._answer)}

    async def _answer(self, request: TransactionOutcomesRequest) -> TransactionOutcomesReply:
        producers = [(one.producer_id, one.producer_epoch) for one in request.transactions]
        asked, outcomes = await self._coordinator.outcomes_of(request.partition.place, producers)
        return TransactionOutcomesReply(tuple(asked), tuple(outcomes))


def _leads_in(replica: Partition, epoch: LeaderEpoch) -> bool:
    return replica.leader is not None and replica.log is not None and replica.state.leader_epoch == epoch


def _unsettled(replica: Partition, epoch: LeaderEpoch) -> list[OpenTransaction]:
    """Open transactions whose outcome is not known yet; empty if the leadership has ended."""
    if replica.log is None or not _leads_in(replica, epoch):
        return []
    unsettled = replica.log.producers.unsettled
    return [one for one in replica.log.open_transactions() if one.producer_id in unsettled]
