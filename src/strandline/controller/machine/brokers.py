"""Registration, heartbeats, fencing, unfencing, controlled shutdown, unregistration (rule B12); producer id blocks.

| state               | the heartbeat says                        | next                |
|---------------------|-------------------------------------------|---------------------|
| FENCED              | want_shutdown                             | SHUTDOWN_NOW        |
| FENCED              | not want_fence, metadata >= registration  | UNFENCED            |
| UNFENCED            | want_fence and want_shutdown              | SHUTDOWN_NOW        |
| UNFENCED            | want_fence                                | FENCED              |
| UNFENCED            | want_shutdown, leads something            | CONTROLLED_SHUTDOWN |
| UNFENCED            | want_shutdown, leads nothing              | SHUTDOWN_NOW        |
| CONTROLLED_SHUTDOWN | leads nothing, and all active brokers     | SHUTDOWN_NOW        |
|                     | have seen its last leadership move        |                     |
| any                 | anything else                             | the same            |
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from strandline.controller.broker_api import (
    AllocateProducerIdsRequest,
    Heartbeat,
    HeartbeatReply,
    ProducerIdBlock,
    RegisterBrokerReply,
    RegisterBrokerRequest,
    UnregisterBrokerRequest,
)
from strandline.controller.machine.log_verdict import LogVerdict, RegisteredLogs
from strandline.controller.machine.state import (
    PRODUCER_ID_BLOCK,
    PRODUCER_IDS_OF_AN_EPOCH,
    MachineState,
    Result,
    first_producer_id,
)
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.features import excluded
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import (
    BrokerChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from strandline.controller.metadata.settings import BrokerSettings
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, NodeId, Offset, ProducerId, TopicIdPartition
from strandline.proto.marks import mark

_LAST_PRODUCER_ID = 2**63 - 1


class BrokerState(Enum):
    """States of a registered broker, by what it may do."""

    FENCED = "nothing: it is in no ISR and leads nothing"
    UNFENCED = "lead and follow"
    CONTROLLED_SHUTDOWN = "wait until its leaderships have moved"
    SHUTDOWN_NOW = "stop; it is fenced"


def register_broker(
    state: MachineState, request: RegisterBrokerRequest, next_offset: int, now_ms: float
) -> Result[RegisterBrokerReply]:
    """A broker's process introduces itself; it starts fenced. The first record appended will stand at `next_offset`.

    The same incarnation keeps its epoch (a retry, or a change of endpoints). Another one takes the place of the
    incarnation that it names, and of no other: the reply names the registered one otherwise. What recovery found in
    its logs decides whether its replicas still count (`machine.log_verdict`).

    Raises:
        KafkaError: INCONSISTENT_CLUSTER_ID, INVALID_REGISTRATION (a negative node id), UNSUPPORTED_VERSION,
            DUPLICATE_BROKER_REGISTRATION (another process of this node id has a live session), INVALID_REQUEST
            (findings that do not fit together).
    """
    image = state.image
    if request.node_id < 0:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"A node id is 0 or more, not {request.node_id}.")
    if request.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {request.node_id} belongs to cluster {request.cluster_id!r}; this is {image.cluster_id!r}.",
        )
    unknown = excluded(image.finalized, request.supported)
    if unknown:  # rule A34/a-build-that-does-not-know-a-level-registers
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Broker {request.node_id} does not know the cluster's {', '.join(unknown)}. Install that on it, or go "
            "back to the level below by `strandline upgrade downgrade` where that can be.",
        )
    node_id = request.node_id
    existing = image.brokers.get(node_id)
    # rule B12/same-process-gets-another-epoch
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        state.sessions.renew(node_id, fenced=existing.fenced, now_ms=now_ms)
        record = _registration(request, existing.broker_epoch, existing, acks_unsynced=existing.acks_unsynced)
        return Result(RegisterBrokerReply(existing.broker_epoch), [record])
    # rule B12/live-session-is-taken-over
    if existing is not None and state.sessions.has_valid_session(node_id, now_ms):
        mark("duplicate-registration")
        state.sessions.registration_refused(node_id, now_ms)  # schedule 71/refused-registration-probes-nothing
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another process is registered as broker {node_id}, and alive as far as is known.",
        )
    # rule B12/late-registration-takes-the-place
    if existing is not None and existing.incarnation_id != request.replaces:
        mark("registration-of-the-past")
        return Result(RegisterBrokerReply(NO_BROKER_EPOCH, existing.incarnation_id))
    records = _judge_replicas(state, node_id, state.progress.once("logs", lambda: RegisteredLogs(request, existing)))
    if not state.progress.finished:
        return Result(RegisterBrokerReply(NO_BROKER_EPOCH), records)
    epoch = BrokerEpoch(next_offset + len(records))  # rule B12/broker-epoch-is-not-the-registrations-offset
    records.append(_registration(request, epoch, None, acks_unsynced=_acks_unsynced(image, request)))
    state.sessions.grant(node_id, fenced=True, now_ms=now_ms, probe=False)
    state.unserved.forget(node_id)
    state.rotten.forget(node_id)
    state.without_room.forget(node_id)
    known = [topic for topic in request.findings if topic.topic_id in image.topic_by_id]
    state.offsets.recovered(node_id, epoch, known, now_ms)
    return Result(RegisterBrokerReply(epoch), records)


def _judge_replicas(state: MachineState, node_id: NodeId, logs: RegisteredLogs) -> list[MetadataRecord]:
    """The change of each partition that counts on the broker, by what its recovery found."""
    partitions = state.progress.once("verdicts", lambda: _verdicts(state, node_id, logs))
    if not logs.clean:  # rule B30/clean-ends-are-doubted
        kept = partitions[LogVerdict.KEPT]
        state.unproven.doubt(node_id, (TopicIdPartition(topic.topic_id, one.partition) for topic, one in kept))
    registered = f"broker {node_id} registered anew"
    records = state.changes(partitions[LogVerdict.KEPT], f"{registered}, its log whole", remove=node_id)
    if partitions[LogVerdict.IN_DOUBT]:
        mark("member-in-doubt")
        why = f"{registered}, its log in doubt"
        records += state.changes(partitions[LogVerdict.IN_DOUBT], why, doubtful=node_id)
    if partitions[LogVerdict.LOST]:
        mark("member-lost")
        records += state.changes(partitions[LogVerdict.LOST], f"{registered}, its log lost", lost=node_id)
    return records


def _verdicts(
    state: MachineState, node_id: NodeId, logs: RegisteredLogs
) -> dict[LogVerdict, list[tuple[TopicInfo, PartitionRecord]]]:
    found: dict[LogVerdict, list[tuple[TopicInfo, PartitionRecord]]] = {verdict: [] for verdict in LogVerdict}
    for topic, partition in state.partitions_that_count_on(node_id):
        synced = state.acks_are_synced(partition)
        found[logs.verdict(topic, partition, acks_are_synced=synced)].append((topic, partition))
    return found


def _acks_unsynced(image: MetadataImage, request: RegisterBrokerRequest) -> bool:
    """True if the broker acknowledges before it syncs: its flush.policy in the metadata, else in its file.

    Raises KafkaError: INVALID_CONFIG: its file has a value that cannot be.
    """
    static = {}
    if request.flush_policy:
        try:
            static["flush.policy"] = BrokerSettings.flush_policy.read("flush.policy", request.flush_policy)
        except ConfigError as error:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Broker {request.node_id} is not registered: {error}"
            ) from error
    return ConfigResolver(static, request.node_id).broker_value(image, BrokerSettings.flush_policy) == "replicate"


def _registration(
    request: RegisterBrokerRequest, epoch: BrokerEpoch, amended: RegisterBrokerRecord | None, *, acks_unsynced: bool
) -> RegisterBrokerRecord:
    # rule B12/broker-starts-unfenced
    return RegisterBrokerRecord(
        node_id=request.node_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        listeners=request.listeners,
        internal=request.internal,
        rack=request.rack,
        fenced=True if amended is None else amended.fenced,
        in_controlled_shutdown=False if amended is None else amended.in_controlled_shutdown,
        directory_id=request.directory_id,
        acks_unsynced=acks_unsynced,
        disk_full=False if amended is None else amended.disk_full,
    )


def heartbeat(state: MachineState, request: Heartbeat, next_offset: int, now_ms: float) -> Result[HeartbeatReply]:
    """A broker is alive; it may be unfenced, fenced at its wish, or led through its controlled shutdown.

    Raises:
        KafkaError: STALE_BROKER_EPOCH.
    """
    node_id = request.node_id
    broker = state.broker_of_epoch(node_id, request.broker_epoch)
    first = state.progress.once
    first("offsets", lambda: state.offsets.report(node_id, broker.broker_epoch, request.offsets, now_ms))
    reports = first("reports", lambda: _take_reports(state, request))
    current = first("current", lambda: _current(broker))
    target = first("target", lambda: _next(state, broker, current, request))
    records: list[MetadataRecord] = []
    if target is not current:
        if target is BrokerState.UNFENCED:
            records = unfence(state, broker)
        elif target is BrokerState.CONTROLLED_SHUTDOWN:
            records = begin_controlled_shutdown(state, broker)
        elif not broker.fenced:
            records = fence(state, node_id, "at its own wish")
    else:
        state.leaving.pop(node_id, None)
        records = _follow_reports(state, request, reports)
    if state.progress.finished and request.disk_full != broker.disk_full:
        records += change_room(state, broker, full=request.disk_full, but=records)
    fenced = target in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW) or _fenced_meanwhile(state, broker)
    state.sessions.touch(node_id, fenced=fenced, metadata_offset=request.metadata_offset, now_ms=now_ms)
    if target is BrokerState.CONTROLLED_SHUTDOWN and state.progress.finished:
        last_change = next_offset + len(records) - 1 if records else state.image.offset
        state.sessions.begin_controlled_shutdown(node_id, last_change)
    wanted = state.sessions.wanted_offset()
    return Result(
        HeartbeatReply(
            caught_up=request.metadata_offset >= broker.broker_epoch,
            fenced=fenced,
            in_controlled_shutdown=target is BrokerState.CONTROLLED_SHUTDOWN,
            should_shut_down=target is BrokerState.SHUTDOWN_NOW,
            report_at_offset=Offset(wanted if wanted > request.metadata_offset else -1),
        ),
        records,
    )


def _fenced_meanwhile(state: MachineState, broker: RegisterBrokerRecord) -> bool:
    """True if it was unfenced by an earlier step of this command, and is fenced again."""
    return state.progress.steps > 0 and broker.fenced


class _Reports(NamedTuple):
    """Reports on replicas in one heartbeat.

    Attributes:
        failed: the broker cannot serve them any more.
        reported: they can be elected again, or it is new where their logs end.
        rotten: their logs have rotted, or have been healed.
        room: their directory is full, or has room again.
    """

    failed: list[TopicIdPartition]
    reported: list[TopicIdPartition]
    rotten: list[TopicIdPartition]
    room: list[TopicIdPartition]


def _take_reports(state: MachineState, request: Heartbeat) -> _Reports:
    failed: list[TopicIdPartition] = []
    back: list[TopicIdPartition] = []
    rotten: list[TopicIdPartition] = []
    room: list[TopicIdPartition] = []
    if request.unserved is not None:
        failed, back = state.unserved.replace(request.node_id, request.unserved)
    if request.rotten is not None:
        found, healed = state.rotten.replace(request.node_id, request.rotten)
        rotten = found + healed  # schedule 80/whole-replica-does-not-take-over
    if request.without_room is not None:
        filled, emptied = state.without_room.replace(request.node_id, request.without_room)
        room = filled + emptied
    reported = [TopicIdPartition(item.topic_id, item.partition) for item in request.offsets]
    return _Reports(failed, [*back, *reported], rotten, room)


def _follow_reports(state: MachineState, request: Heartbeat, reports: _Reports) -> list[MetadataRecord]:
    """A replica that cannot be served leaves the ISR and leads nothing; so does one that has rotted, where a whole one
    is left (schedule 80), or whose directory is full, where one with room is. One that waited for a report can be
    elected. Each partition changes once."""
    node_id = request.node_id
    records: list[MetadataRecord] = []
    failed = dict.fromkeys(reports.failed)
    if failed:
        mark("replica-unserved")
        found = (item for key in failed if (item := state.partition_of(key)) and node_id in item[1].isr)
        # schedule 56/unserved-replica-keeps-the-leadership
        records += state.changes(found, f"broker {node_id} cannot serve its replica", remove=node_id)
    rotten = dict.fromkeys(key for key in reports.rotten if key not in failed)
    if rotten:
        mark("replica-rotten")
        judged = (item for key in rotten if (item := state.partition_of(key)) is not None)
        records += state.changes(judged, f"the replica of broker {node_id} has rotted, or is whole again")
    room = dict.fromkeys(key for key in reports.room if key not in failed and key not in rotten)
    if room:
        mark("replica-without-room")
        judged = (item for key in room if (item := state.partition_of(key)) is not None)
        records += state.changes(judged, f"the directory of the replica of broker {node_id} is full, or has room again")
    waiting = (
        item
        for key in dict.fromkeys(reports.reported)
        if key not in failed
        and key not in rotten
        and key not in room
        and (item := state.partition_of(key)) is not None
        and not item[1].has_leader
        and node_id in item[1].replicas
    )
    # schedule 45/report-elects-nobody
    records += state.changes(waiting, f"broker {node_id} reported where its log ends")
    return records


def change_room(
    state: MachineState, broker: RegisterBrokerRecord, *, full: bool, but: list[MetadataRecord]
) -> list[MetadataRecord]:
    """Schedule 57: a broker without room leaves every ISR and leads nothing, where a member with room is left; with
    room again it leads where the others have none. Each partition changes once: what `but` has of one settles it."""
    mark("broker-without-room" if full else "broker-has-room-again")
    node_id = broker.node_id

    def has_room(node: NodeId) -> bool:
        return not full if node == node_id else state.image.has_room(node)

    changed = {(record.topic_id, record.partition) for record in but if isinstance(record, PartitionChangeRecord)}
    # schedule 57/partition-changes-twice-in-a-heartbeat
    found = (
        (topic, partition)
        for topic, partition in state.partitions_in_isr(node_id)
        if (topic.topic_id, partition.partition) not in changed
    )
    why = f"the disk of broker {node_id} {'is full' if full else 'has room again'}"
    records = state.changes(found, why, has_room=has_room)
    if state.progress.finished:  # another controller has it from the broker's next heartbeat, and begins anew
        records.insert(0, BrokerChangeRecord(node_id, broker.broker_epoch, disk_full=full))
    return records


def _current(broker: RegisterBrokerRecord) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    return BrokerState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerState.UNFENCED


def _next(state: MachineState, broker: RegisterBrokerRecord, current: BrokerState, request: Heartbeat) -> BrokerState:
    if current is BrokerState.FENCED:
        if request.want_shutdown:  # rule B12/fenced-broker-waits-for-leaderships-it-has-not
            return BrokerState.SHUTDOWN_NOW
        # rule B12/unfenced-before-it-knows-its-registration, rule B12/unfenced-against-its-wish
        if not request.want_fence and request.metadata_offset >= broker.broker_epoch:
            return BrokerState.UNFENCED
    elif current is BrokerState.UNFENCED:
        if request.want_fence:
            return BrokerState.SHUTDOWN_NOW if request.want_shutdown else BrokerState.FENCED
        if request.want_shutdown:
            leads = state.leads_any(broker.node_id)
            # rule B12/shutdown-with-leaderships
            return BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
    elif not state.leads_any(broker.node_id):
        active = [node for node, info in state.image.brokers.items() if info.active]
        if state.sessions.may_shut_down(broker.node_id, active):
            return BrokerState.SHUTDOWN_NOW
    return current


def fence(state: MachineState, node_id: NodeId, reason: str) -> list[MetadataRecord]:
    """Take the broker out of every ISR (into the ELR where few are left), give its leaderships away, and fence it with
    the last step: until then another controller would find it unfenced, and begin anew."""
    mark("broker-fenced")
    broker = state.image.brokers[node_id]
    # rule B12/fenced-broker-stays-in-the-isr
    records = state.out_of_isrs(node_id, f"broker {node_id} fenced {reason}")
    if state.progress.finished:  # rule A39/fenced-before-its-last-step
        records.append(BrokerChangeRecord(node_id, broker.broker_epoch, fenced=True, in_controlled_shutdown=False))
    return records


def unfence(state: MachineState, broker: RegisterBrokerRecord) -> list[MetadataRecord]:
    """Unfence the broker, and elect it where a partition has no leader and it may lead. What another controller finds
    left of this it takes up when it becomes active (`elections.elect_left_over`)."""
    node_id = broker.node_id
    if _fenced_meanwhile(state, broker):
        return []
    records: list[MetadataRecord] = []
    if state.progress.steps == 0:
        records.append(BrokerChangeRecord(node_id, broker.broker_epoch, fenced=False))
    mine = (item for item in state.partitions_without_leader() if node_id in item[1].replicas)
    records += state.changes(mine, f"broker {node_id} unfenced", add=node_id)
    return records


def begin_controlled_shutdown(state: MachineState, broker: RegisterBrokerRecord) -> list[MetadataRecord]:
    """Take a broker out of every ISR, give its leaderships to replicas in sync, and mark it with the last step as
    shutting down."""
    mark("controlled-shutdown")
    node_id = broker.node_id
    # rule B12/shutdown-moves-nothing
    records = state.out_of_isrs(node_id, f"broker {node_id} shuts down")
    if state.progress.finished:
        records.insert(0, BrokerChangeRecord(node_id, broker.broker_epoch, in_controlled_shutdown=True))
    return records


def fence_expired(state: MachineState, now_ms: float) -> Result[tuple[NodeId, str] | None]:
    """Fence one broker whose session ended: one at a time, so that the next sees the changed partitions.

    Answers the broker and the reason, or None; None too where more steps follow.
    """
    for node_id in state.sessions.expired(now_ms):
        why = "it is gone"
        if state.sessions.is_displaced(node_id):
            why = "another process answers at its address, and it sends no heartbeat"
        elif state.sessions.is_silent(node_id, now_ms):
            mark("silent-broker-fenced")
            why = "it answers no probe"
        records = fence(state, node_id, f"for {why}")
        if not state.progress.finished:
            return Result(None, records)
        state.sessions.mark_fenced(node_id)
        return Result((node_id, why), records)
    return Result(None)


def unregister_broker(state: MachineState, request: UnregisterBrokerRequest) -> Result[RegisterBrokerReply]:
    """Take a broker out for good. Its replicas stay assigned and empty until they are reassigned.

    Raises:
        KafkaError: BROKER_ID_NOT_REGISTERED.
    """
    broker = state.image.brokers.get(request.node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {request.node_id} is not registered.")
    reply = RegisterBrokerReply(broker.broker_epoch)
    if request.dry_run:
        return Result(reply)
    node_id = request.node_id
    records = state.changes(
        state.partitions_that_count_on(node_id),
        f"broker {node_id} unregistered",
        lost=node_id,
    )
    if not state.progress.finished:
        return Result(reply, records)
    records.append(UnregisterBrokerRecord(node_id, broker.broker_epoch))
    state.sessions.drop(node_id)
    state.unserved.forget(node_id)
    state.rotten.forget(node_id)
    state.without_room.forget(node_id)
    return Result(reply, records)


def allocate_producer_ids(state: MachineState, request: AllocateProducerIdsRequest) -> Result[ProducerIdBlock]:
    """The next block of producer ids for a registered broker; no id is given out twice (rule C3). A reply that is lost
    wastes its block, which is fine: there are 2^63 ids.

    Each cluster begins with ids of its own, for producers outlive a cluster that is lost, and go on against the one in
    its place. So does each quorum epoch: a metadata log that was rolled back has forgotten which blocks were given out;
    but it is led in an epoch that no leader before had (rule B27).

    Raises:
        KafkaError: STALE_BROKER_EPOCH; UNKNOWN_SERVER_ERROR once all ids are used up.
    """
    state.broker_of_epoch(request.node_id, request.broker_epoch)
    # rule B27/clusters-share-producer-ids
    of_epoch = first_producer_id(state.image.cluster_id) + state.epoch * PRODUCER_IDS_OF_AN_EPOCH
    first = ProducerId(max(state.image.next_producer_id, of_epoch))  # rule B27/epochs-share-producer-ids
    if first > _LAST_PRODUCER_ID - PRODUCER_ID_BLOCK:  # rule C3/producer-ids-wrap
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids have been given out.")
    # rule C3/producer-ids-are-leased-twice
    record = ProducerIdsRecord(request.node_id, request.broker_epoch, ProducerId(first + PRODUCER_ID_BLOCK))
    return Result(ProducerIdBlock(first, PRODUCER_ID_BLOCK), [record])
