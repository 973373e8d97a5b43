"""The explored controller: the product's machine on committed metadata, one command at a time.

What a command appends counts as committed at once: how the quorum commits is explored by itself. In which order the
replicas are assigned is forgotten: a command is carried out for each order, so that every node may be the preferred
one, and nodes can be renamed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple
from uuid import UUID

from lab.explore.brokers import CLUSTER, ENDPOINT, NOW_MS
from lab.explore.logs import TOPIC_ID, TOPIC_PARTITION
from lab.explore.model import NODES
from strandline.cluster.node.replica_feed import ReplicaFeed
from strandline.controller import broker_api
from strandline.controller.broker_api import ReplicaOffsets, ReplicaSet, TopicFindings, TopicReplicaSet
from strandline.controller.machine import brokers, elections, isr
from strandline.controller.machine.partition_change import Election
from strandline.controller.machine.replica_reports import OffsetTracker, ReportedReplicas
from strandline.controller.machine.sessions import ProbeFinding
from strandline.controller.machine.state import MachineSettings, MachineState, Result
from strandline.controller.machine.unproven import WAIT_MS, UnprovenEnds
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import diff
from strandline.controller.metadata.features import METADATA_FEATURE, NEWEST_LEVEL
from strandline.controller.metadata.image import MetadataImage, TopicInfo, topic_resource
from strandline.controller.metadata.records import PartitionRecord, RegisterBrokerRecord, TopicRecord
from strandline.log.findings import LogCondition
from strandline.proto.errors import FatalError, KafkaError
from strandline.proto.ids import (
    NO_NODE,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionEpoch,
    TopicIdPartition,
)
from strandline.proto.isr import AlterPartitionItem
from strandline.replica.states import BrokerState, PartitionState, ReplicaConfig

RESOLVER = ConfigResolver({})
KEY = TopicIdPartition(TOPIC_ID, 0)
DIRECTORY = UUID(int=7)
"""The directory id of every broker's disk: none is ever another one's."""


class Reported(NamedTuple):
    """Report of a broker's heartbeats on its replica: that it cannot serve it; and the leader epoch that it knows,
    the epoch of its last record and its log end, -1 where it says nothing of them."""

    unserved: bool
    leader_epoch: int
    last_epoch: int
    log_end: int

    def heartbeat(self, node: NodeId, epoch: int, *, want_shutdown: bool = False) -> broker_api.Heartbeat:
        """The heartbeat that says so."""
        offsets = ReplicaOffsets(
            TOPIC_ID, 0, Offset(-1), Offset(self.log_end), LeaderEpoch(self.last_epoch), LeaderEpoch(self.leader_epoch)
        )
        unserved = ReplicaSet((TopicReplicaSet(TOPIC_ID, (0,)),) if self.unserved else ())
        return broker_api.Heartbeat(
            node,
            BrokerEpoch(epoch),
            Offset(epoch),
            want_fence=False,
            want_shutdown=want_shutdown,
            offsets=() if self.log_end < 0 else (offsets,),
            unserved=unserved,
        )


NOTHING_REPORTED = Reported(False, -1, -1, -1)


class Found(NamedTuple):
    """Finding of the recovery of a broker's log."""

    condition: LogCondition
    last_epoch: int
    log_end: int


class Metadata(NamedTuple):
    """Committed metadata: the brokers and the partition; and what the active controller was told beside that:
    `reported` by heartbeats, and by registrations, of which logs nothing proves that they end where they did
    (`unproven`)."""

    brokers: dict[NodeId, RegisterBrokerRecord]
    partition: PartitionRecord
    min_isr: int
    reported: dict[NodeId, Reported]
    unproven: tuple[NodeId, ...] = ()

    def counts(self, reported: Reported) -> Reported:
        """Part of a heartbeat that counts under these metadata: where a log ends only while nobody leads."""
        return reported if self.partition.leader == NO_NODE else NOTHING_REPORTED._replace(unserved=reported.unserved)


def first_metadata(min_isr: int) -> Metadata:
    """Three brokers, all in sync, of which one leads."""
    infos = {
        node: RegisterBrokerRecord(node, _incarnation(1), BrokerEpoch(1), {}, ENDPOINT, None, False, False, DIRECTORY)
        for node in NODES
    }
    partition = PartitionRecord(TOPIC_ID, 0, NODES, NODES, (), (), NODES[0], LeaderEpoch(0), PartitionEpoch(0), False)
    return Metadata(infos, partition, min_isr, dict.fromkeys(NODES, NOTHING_REPORTED))


def image_of(metadata: Metadata, order: tuple[NodeId, ...] = NODES) -> MetadataImage:
    """The metadata as the product has them, with the replicas in one of their orders."""
    partition = replace(metadata.partition, replicas=order)
    topic = TopicInfo(TopicRecord(TOPIC_PARTITION.topic, TOPIC_ID), {0: partition})
    return MetadataImage(
        CLUSTER,
        levels={METADATA_FEATURE: NEWEST_LEVEL},
        brokers=dict(metadata.brokers),
        topics={topic.name: topic},
        topic_by_id={TOPIC_ID: topic},
        configs={topic_resource(topic.name): {"min.insync.replicas": str(metadata.min_isr)}},
    )


Command = Callable[[MachineState], Any]
"""Runs one of the product's commands, applies its records, and returns its answer."""


def carried_out(metadata: Metadata, command: Command) -> Iterator[tuple[Metadata, Any]]:
    """Results that a command may have: the metadata after it, and its answer (a KafkaError where it is refused, a
    FatalError where it would make metadata that nobody can replay)."""
    met: dict[Any, None] = {}
    for order in permutations(NODES):
        state = _machine(metadata, order)
        try:
            answer = command(state)
        except (KafkaError, FatalError) as error:
            answer = error
        after = _metadata_of(state, metadata.min_isr)
        reported = tuple(after.reported.items())
        key = (tuple(sorted(after.brokers.items())), after.partition, reported, after.unproven, _plain(answer))
        if repr(key) not in met:
            met[repr(key)] = None
            yield after, answer


def _machine(metadata: Metadata, order: tuple[NodeId, ...]) -> MachineState:
    """The product's machine, with what it was told."""
    state = MachineState(image_of(metadata, order), RESOLVER, random.Random(0), MachineSettings(), NOW_MS)
    state.unproven = UnprovenEnds(MetadataImage(CLUSTER))
    for node in metadata.unproven:
        state.unproven.doubt(node, [KEY])
    for node, reported in metadata.reported.items():
        epoch = metadata.brokers[node].broker_epoch
        said = reported.heartbeat(node, epoch)
        assert said.unserved is not None
        state.offsets.report(node, epoch, said.offsets, NOW_MS)
        state.unserved.replace(node, said.unserved)
    return state


def _plain(answer: Any) -> Any:
    return answer.code if isinstance(answer, KafkaError) else str(answer)


def _metadata_of(state: MachineState, min_isr: int) -> Metadata:
    image = state.image
    topic = image.topics[TOPIC_PARTITION.topic]
    partition = topic.partitions[0]
    sorted_ = replace(
        partition,
        replicas=NODES,
        isr=tuple(sorted(partition.isr)),
        eligible_leader_replicas=tuple(sorted(partition.eligible_leader_replicas)),
        last_known_elr=tuple(sorted(partition.last_known_elr)),
    )
    reported = {}
    for node in NODES:
        position = state.position(node, topic, partition)
        where = (-1, -1, -1) if position is None else (int(partition.leader_epoch), *map(int, position))
        reported[node] = Reported(not state.can_serve(node, topic, partition), *where)
    unproven = tuple(node for node in NODES if not state.unproven.is_proven(node, KEY))
    return Metadata(dict(image.brokers), sorted_, min_isr, reported, unproven)


def _run(state: MachineState, result: Result[Any]) -> Any:
    if result.records:
        state.adopt(state.replay(result.records), 0)
    return result.reply


# Commands


def fence(node: NodeId) -> Command:
    """A broker's session has ended."""
    return lambda state: _run(state, Result(None, brokers.fence(state, node, "explored")))


def unfence(node: NodeId, epoch: int, reported: Reported) -> Command:
    """A broker that knows its registration sends a heartbeat."""
    return report(node, epoch, reported)


def report(node: NodeId, epoch: int, reported: Reported) -> Command:
    """A broker has something new to say of its replica, and sends a heartbeat."""
    beat = reported.heartbeat(node, epoch)
    return lambda state: _run(state, brokers.heartbeat(state, beat, 0, NOW_MS))


def stop(node: NodeId, epoch: int, reported: Reported, late: tuple[NodeId, ...]) -> Command:
    """A broker asks to be let go; `late` are those that have not heard of all that is committed."""
    beat = reported.heartbeat(node, epoch, want_shutdown=True)

    def command(state: MachineState) -> Any:
        for other, broker in state.image.brokers.items():
            known = Offset(0 if other in late else 1)
            state.sessions.touch(other, fenced=broker.fenced, metadata_offset=known, now_ms=NOW_MS)
        if state.image.brokers[node].in_controlled_shutdown:
            state.sessions.begin_controlled_shutdown(node, 1)
        return _run(state, brokers.heartbeat(state, beat, 0, NOW_MS))

    return command


def register(node: NodeId, life: int, found: Found) -> Command:
    """A new process of a broker registers: the old one is known to be dead, and fenced first if it was not."""

    def command(state: MachineState) -> Any:
        if not state.image.brokers[node].fenced:
            _run(state, Result(None, brokers.fence(state, node, "for another process answers")))
            state.sessions.mark_fenced(node)
        return _register_as(state, node, life, found)

    return command


def register_unfenced(node: NodeId, life: int, found: Found) -> Command:
    """The same, where the old process is known to be dead, and is not fenced yet."""

    def command(state: MachineState) -> Any:
        sessions = state.sessions
        sessions.stream_opened(node)
        sessions.stream_broke(node, NOW_MS)
        sessions.due_probes(NOW_MS)
        sessions.probed(node, ProbeFinding.OTHER_PROCESS, NOW_MS, sent_ms=NOW_MS)
        return _register_as(state, node, life, found)

    return command


def _register_as(state: MachineState, node: NodeId, life: int, found: Found) -> Any:
    """Register at the offset that makes `life` the broker epoch: only which process is newer matters here."""
    before = _incarnation(life - 1)
    columns = ((0,), (Offset(found.log_end),), (LeaderEpoch(found.last_epoch),), (found.condition,))
    request = broker_api.RegisterBrokerRequest(
        CLUSTER,
        node,
        _incarnation(life),
        {},
        ENDPOINT,
        directory_id=DIRECTORY,
        lives=(before, _incarnation(life)),
        replaces=before,
        findings=(TopicFindings(TOPIC_PARTITION.topic, TOPIC_ID, *columns),),
    )
    trial = MachineState(state.image, state.resolver, state.rng, state.settings, NOW_MS)
    trial.sessions, trial.offsets, trial.unserved = state.sessions, state.offsets, state.unserved
    trial.unproven = state.unproven
    records = len(brokers.register_broker(trial, request, 0, NOW_MS).records)
    return _run(state, brokers.register_broker(state, request, life - records + 1, NOW_MS))


def failover() -> Command:
    """Another controller becomes active: it has what is committed, and was told nothing."""
    return _failover


def _failover(state: MachineState) -> None:
    state.offsets, state.unserved = OffsetTracker(), ReportedReplicas()
    state.unproven = UnprovenEnds(state.image)


def wait_out() -> Command:
    """The rest of the last ISR has not come back in time."""

    def command(state: MachineState) -> Any:
        state.unproven.wait(KEY, waits=True)
        state.unproven.stamp(NOW_MS)
        return _run(state, elections.end_waits(state, NOW_MS + WAIT_MS))

    return command


def alter(node: NodeId, broker_epoch: int, item: AlterPartitionItem) -> Command:
    """A leader's proposal is judged."""
    request = broker_api.AlterPartitionRequest(node, BrokerEpoch(broker_epoch), (item,))
    return lambda state: _run(state, isr.alter_partition(state, request))


def prefer() -> Command:
    """Give the leadership back to the preferred leader."""
    return _prefer


def _prefer(state: MachineState) -> Any:
    topic, partition = next(iter(state.image.partitions()))
    record = state.change(topic, partition, "preferred leader is back", election=Election.PREFERRED).build()
    return _run(state, Result(None, [] if record is None else [record]))


def _incarnation(life: int) -> UUID:
    return UUID(int=life)


# To the brokers


class _Changes:
    """Takes what the product's feed makes of an image."""

    def __init__(self) -> None:
        self.given: tuple[list[PartitionState], list[Any], dict[Any, BrokerState]] = ([], [], {})
        self.config = ReplicaConfig()

    def reconfigure(self, config: ReplicaConfig) -> None:
        """Nothing is compacted or scrubbed here, and no disk is full."""

    def set_throttled_rates(self, leader: int, follower: int) -> None:
        """Time stands still here, so nothing has a rate."""

    def apply(self, changes: list[PartitionState], deleted: list[Any], states: dict[Any, BrokerState]) -> None:
        self.given = (changes, deleted, states)


def as_replicas_see_it(
    node: NodeId, metadata: Metadata
) -> tuple[list[PartitionState], list[Any], dict[Any, BrokerState]]:
    """The metadata in the replicas' own values."""
    image = image_of(metadata)
    delta = diff(MetadataImage(CLUSTER), image)
    taken = _Changes()
    ReplicaFeed(node, RESOLVER, taken).on_metadata(delta, image)  # type: ignore[arg-type]
    return taken.given
