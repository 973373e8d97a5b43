"""Elections that are asked for, and the preferred leaders' return; the preview of an unclean election."""

from __future__ import annotations

from dataclasses import replace

from strandline.controller.api import (
    Candidate,
    ElectionKind,
    ElectionOutcome,
    ElectLeadersReply,
    ElectLeadersRequest,
    PartitionRef,
)
from strandline.controller.machine.election import Election
from strandline.controller.machine.explaining import loss, why_nobody_leads
from strandline.controller.machine.offsets import TrackedOffsets
from strandline.controller.machine.result import Result
from strandline.controller.machine.state import MachineState
from strandline.controller.metadata.delta import merge
from strandline.controller.metadata.image import PartitionInfo, TopicInfo
from strandline.controller.metadata.records import MetadataRecord, PartitionChangeRecord
from strandline.controller.reports import DescribeReplicasReply, DescribeReplicasRequest, ReplicaReport
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_EPOCH, NodeId, Offset

_UNKNOWN = Offset(-1)


def elect_leaders(state: MachineState, request: ElectLeadersRequest, now_ms: float) -> Result[ElectLeadersReply]:
    """Elect the preferred leader, or any live replica, of the partitions named, or of all that need it.

    Where no partitions are named those that need no election are left out of the reply.
    """
    everything = not request.partitions
    refs = request.partitions or tuple(
        PartitionRef(topic.name, partition.partition) for topic, partition in state.image.partitions()
    )
    records: list[MetadataRecord] = []
    outcomes = []
    for ref in dict.fromkeys(refs):
        try:
            outcome, record = _elect_one(state, ref, request, now_ms)
        except KafkaError as error:
            if everything and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            outcomes.append(_failed(state, ref, error, now_ms))
            continue
        outcomes.append(outcome)
        records.append(record)
    return Result(ElectLeadersReply(tuple(outcomes)), [] if request.dry_run else records)


def _elect_one(
    state: MachineState, ref: PartitionRef, request: ElectLeadersRequest, now_ms: float
) -> tuple[ElectionOutcome, PartitionChangeRecord]:
    topic = state.image.topics.get(ref.topic)
    partition = None if topic is None else topic.partitions.get(ref.partition)
    if topic is None or partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {ref.partition} of a topic {ref.topic!r}."
        )
    preferred = request.kind is ElectionKind.PREFERRED
    if (preferred and partition.leader == partition.preferred_leader) or (not preferred and partition.has_leader):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"Broker {partition.leader} leads.")
    change = state.change(
        topic,
        partition,
        "preferred election asked for" if preferred else "unclean election asked for",
        election=Election.PREFERRED if preferred else Election.UNCLEAN,
    )
    record = change.build()
    elected = None if record is None else merge(partition, record)
    if record is None or elected is None or record.leader is None or not elected.has_leader:
        if preferred:
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"Broker {partition.preferred_leader} is not an active member of the ISR {list(partition.isr)}.",
            )
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"None of the replicas {list(partition.replicas)} is alive and can serve the partition.",
        )
    unclean = change.rule.unclean
    candidates = candidates_of(state, topic, partition, now_ms)
    message = loss(candidates, elected.leader) if unclean else ""
    if unclean and request.dry_run:
        message = f"{message} {why_nobody_leads(state, topic, partition)}"
    outcome = ElectionOutcome(
        ref.topic, ref.partition, ErrorCode.NONE, message, elected.leader, unclean, tuple(candidates)
    )
    return outcome, record


def _failed(state: MachineState, ref: PartitionRef, error: KafkaError, now_ms: float) -> ElectionOutcome:
    topic = state.image.topics.get(ref.topic)
    partition = None if topic is None else topic.partitions.get(ref.partition)
    if topic is None or partition is None:
        return ElectionOutcome(ref.topic, ref.partition, error.code, str(error.message))
    candidates = candidates_of(state, topic, partition, now_ms)
    return ElectionOutcome(
        ref.topic, ref.partition, error.code, str(error.message), partition.leader, False, tuple(candidates)
    )


def candidates_of(state: MachineState, topic: TopicInfo, partition: PartitionInfo, now_ms: float) -> list[Candidate]:
    """The replicas, best first by (last epoch, log end), and what each would lack as a leader."""
    committed = state.offsets.high_watermark(topic.topic_id, partition.partition)
    ranked = state.offsets.rank(topic.topic_id, partition.partition, partition.replicas)
    reports = [(node_id, state.offsets.of(topic.topic_id, partition.partition, node_id)) for node_id in ranked]
    return [
        replace(
            _candidate(partition, node_id, report, committed=committed, now_ms=now_ms),
            alive=state.image.is_active(node_id),
            in_doubt=node_id in partition.last_known_elr and state.acks_are_synced(partition),
            servable=state.can_serve(node_id, topic, partition),
            condition=state.offsets.condition(topic.topic_id, partition.partition, node_id),
        )
        for node_id, report in reports
    ]


def _candidate(
    partition: PartitionInfo, node_id: NodeId, report: TrackedOffsets | None, *, committed: int, now_ms: float
) -> Candidate:
    known = report is not None and committed >= 0
    return Candidate(
        node_id=node_id,
        alive=False,
        in_isr=node_id in partition.isr,
        in_elr=node_id in partition.eligible_leader_replicas,
        last_epoch=NO_EPOCH if report is None else report.last_epoch,
        log_end_offset=_UNKNOWN if report is None else report.log_end_offset,
        high_watermark=_UNKNOWN if report is None else report.high_watermark,
        age_ms=-1 if report is None else int(now_ms - report.at_ms),
        lost_records=max(0, committed - report.log_end_offset) if known and report is not None else -1,
    )


def imbalanced(state: MachineState) -> list[tuple[TopicInfo, PartitionInfo]]:
    """Partitions whose preferred leader could lead and does not."""
    return [
        (topic, partition)
        for topic, partition in state.image.partitions()
        if partition.leader != partition.preferred_leader
        and partition.preferred_leader in partition.isr
        and state.image.is_active(partition.preferred_leader)
        and state.can_serve(partition.preferred_leader, topic, partition)
    ]


def balance_leaders(state: MachineState) -> Result[int]:
    """Give leaderships back to preferred leaders that are in sync again; answers how many moved."""
    records: list[MetadataRecord] = []
    for topic, partition in imbalanced(state)[: state.settings.max_elections_per_balance]:
        record = state.change(topic, partition, "preferred leader is back", election=Election.PREFERRED).build()
        if record is not None:
            records.append(record)
    return Result(len(records), records)


def describe_replicas(
    state: MachineState, request: DescribeReplicasRequest, now_ms: float
) -> Result[DescribeReplicasReply]:
    """The tracked offsets of topics' replicas. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION for an unknown name."""
    topics = []
    for name in request.topics or tuple(state.image.topics):
        topic = state.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic named {name!r}.")
        topics.append(topic)
    return Result(
        DescribeReplicasReply(
            tuple(
                _report(state, topic, partition, node_id, now_ms)
                for topic in topics
                for partition in topic.partitions.values()
                for node_id in partition.replicas
            )
        )
    )


def _report(
    state: MachineState, topic: TopicInfo, partition: PartitionInfo, node_id: NodeId, now_ms: float
) -> ReplicaReport:
    report = state.offsets.of(topic.topic_id, partition.partition, node_id)
    if report is None:
        return ReplicaReport(topic.name, partition.partition, node_id, _UNKNOWN, _UNKNOWN, NO_EPOCH, -1)
    return ReplicaReport(
        topic.name,
        partition.partition,
        node_id,
        report.high_watermark,
        report.log_end_offset,
        report.last_epoch,
        int(now_ms - report.at_ms),
    )
