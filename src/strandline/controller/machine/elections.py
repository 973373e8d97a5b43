"""Elections on request, the return of preferred leaders, the preview of an unclean election, and why nobody leads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from strandline.controller.api import (
    Candidate,
    ElectionKind,
    ElectionOutcome,
    ElectLeadersReply,
    ElectLeadersRequest,
    PartitionRef,
)
from strandline.controller.broker_api import DescribeReplicasReply, DescribeReplicasRequest, ReplicaReport
from strandline.controller.machine.partition_change import Election
from strandline.controller.machine.replica_reports import TrackedOffsets
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.image import TopicInfo
from strandline.controller.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord
from strandline.controller.metadata.replay import merge
from strandline.log.findings import LogCondition
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_EPOCH, NodeId, Offset, TopicIdPartition

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
        election=Election.PREFERRED if preferred else Election.ANY,
        patient=preferred,
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


class Loss(NamedTuple):
    """The cost of an unclean election, as a sentence."""

    partition: str
    leader: NodeId
    message: str


def losses(state: MachineState, records: Sequence[MetadataRecord], now_ms: float) -> Iterator[Loss]:
    """Losses by the unclean elections in `records`, judged by the state before them."""
    for record in records:
        if not isinstance(record, PartitionChangeRecord) or record.leader is None or record.leader < 0:
            continue
        topic = state.image.topic_by_id.get(record.topic_id)
        if topic is None:  # it is made by the same records
            continue
        partition = topic.partitions[record.partition]
        recovers = partition.recovering if record.recovering is None else record.recovering
        if recovers and record.leader not in (*partition.isr, *partition.eligible_leader_replicas):
            message = loss(candidates_of(state, topic, partition, now_ms), record.leader)
            yield Loss(f"{topic.name}-{partition.partition}", record.leader, message)


def _failed(state: MachineState, ref: PartitionRef, error: KafkaError, now_ms: float) -> ElectionOutcome:
    topic = state.image.topics.get(ref.topic)
    partition = None if topic is None else topic.partitions.get(ref.partition)
    if topic is None or partition is None:
        return ElectionOutcome(ref.topic, ref.partition, error.code, str(error.message))
    candidates = candidates_of(state, topic, partition, now_ms)
    return ElectionOutcome(
        ref.topic, ref.partition, error.code, str(error.message), partition.leader, False, tuple(candidates)
    )


def candidates_of(state: MachineState, topic: TopicInfo, partition: PartitionRecord, now_ms: float) -> list[Candidate]:
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
    partition: PartitionRecord, node_id: NodeId, report: TrackedOffsets | None, *, committed: int, now_ms: float
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


def imbalanced(state: MachineState) -> list[tuple[TopicInfo, PartitionRecord]]:
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
    """Give leaderships back to preferred leaders that are in sync again; answers how many."""
    records: list[MetadataRecord] = []
    for topic, partition in imbalanced(state)[: state.settings.max_elections_per_balance]:
        record = state.change(topic, partition, "preferred leader is back", election=Election.PREFERRED).build()
        if record is not None:
            records.append(record)
    return Result(len(records), records)


def elect_left_over(state: MachineState) -> Result[None]:
    """Leaders where nobody leads and somebody may: what the controller before left of its work (rule A39)."""
    left = (item for item in state.partitions_without_leader() if item[1].isr or item[1].eligible_leader_replicas)
    return Result(None, state.changes(left, "a new controller found nobody leading"))


def end_waits(state: MachineState, now_ms: float) -> Result[int]:
    """Partitions that have waited long enough for the rest of their last ISR are led by the greatest log of those that
    are back (rule B30); answers how many. What a step has no room for waits for the next one."""
    records: list[MetadataRecord] = []
    for key in state.unproven.over(now_ms)[: state.settings.max_changes_per_step]:
        state.unproven.wait(key, waits=False)
        found = state.partition_of(key)
        if found is not None:
            record = state.change(*found, "nobody else of the last ISR is back", patient=False).build()
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
    state: MachineState, topic: TopicInfo, partition: PartitionRecord, node_id: NodeId, now_ms: float
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


def why_nobody_leads(state: MachineState, topic: TopicInfo, partition: PartitionRecord) -> str:
    """Sentence on which brokers could lead a partition, and what each waits for; empty where one leads."""
    if partition.has_leader:
        return ""
    eligible = partition.isr or partition.eligible_leader_replicas
    if state.unproven.waits(TopicIdPartition(topic.topic_id, partition.partition)):
        members = (*eligible, *partition.last_known_elr)
        rest = [f"broker {node}" for node in members if _is_hindered(state, topic, partition, node)]
        return (
            "Nobody leads yet: nothing proves that the logs end where they did before the crash. For a moment the rest "
            f"of the last ISR is waited for: {', '.join(rest)}."
        )
    reasons = [
        f"broker {node}, which had all that was acknowledged, {_hindrance(state, topic, partition, node)}"
        for node in eligible
    ]
    if reasons:
        return f"Nobody leads: {', and '.join(reasons)}."
    in_doubt = partition.last_known_elr
    if not in_doubt:
        return "Nobody leads: no replica is left of which it is known that it has all that was acknowledged."
    if not state.acks_are_synced(partition):
        why = _hindrance(state, topic, partition, in_doubt[0])
        return f"Nobody leads: broker {in_doubt[0]}, the last leader, {why}."
    logs = f"the log of broker {in_doubt[0]} was" if len(in_doubt) == 1 else f"the logs of {_brokers(in_doubt)} were"
    absent = [
        f"broker {node} {_hindrance(state, topic, partition, node)}"
        for node in in_doubt
        if _is_hindered(state, topic, partition, node)
    ]
    waits = ", and ".join(absent) or "that is empty, and another replica holds more or is away"
    return (
        f"Nobody leads: {logs} cut when recovered, or found gone, and may lack acknowledged records. The greatest of "
        f"those in doubt leads once all of them are back: {waits}."
    )


def _is_hindered(state: MachineState, topic: TopicInfo, partition: PartitionRecord, node: NodeId) -> bool:
    lives = state.image.is_active(node) and state.can_serve(node, topic, partition)
    return not lives or state.position(node, topic, partition) is None


def _hindrance(state: MachineState, topic: TopicInfo, partition: PartitionRecord, node: NodeId) -> str:
    if not state.image.is_active(node):
        return "is away"
    if not state.can_serve(node, topic, partition):
        return "cannot serve its replica"
    return "has not reported yet where its log ends"


def _brokers(nodes: tuple[NodeId, ...]) -> str:
    return f"brokers {', '.join(map(str, nodes[:-1]))} and {nodes[-1]}"


def loss(candidates: list[Candidate], leader: NodeId) -> str:
    """Sentence on the loss by an unclean election of `leader`, as far as it has been reported."""
    chosen = next(candidate for candidate in candidates if candidate.node_id == leader)
    if chosen.lost_records > 0:
        first, last = chosen.log_end_offset, chosen.log_end_offset + chosen.lost_records - 1
        lost = f"committed offsets {first} to {last} ({last - first + 1}) are lost"
        return f"Broker {leader} was not in sync: {lost}.{_unknown_since(candidates, chosen)}"
    if chosen.in_doubt:
        return f"The log of broker {leader} was cut when it was recovered: acknowledged records may be lost."
    if chosen.condition is LogCondition.LACKING:
        return f"Broker {leader} lacked records when it started: acknowledged ones may be lost."
    if chosen.lost_records < 0:
        return f"Broker {leader} was not in sync: an unknown number of committed records may be lost."
    holds = "but holds every offset that is known to be committed"
    return f"Broker {leader} was not in sync, {holds}.{_unknown_since(candidates, chosen)}"


def _unknown_since(candidates: list[Candidate], chosen: Candidate) -> str:
    """Reports are some seconds apart, and the last leader acknowledged records after its last one."""
    others = [
        other
        for other in candidates
        if other.node_id != chosen.node_id and (other.in_isr or other.in_elr or other.in_doubt)
    ]
    if not others:
        return ""
    if len(others) == 1:
        whose = f"broker {others[0].node_id}, which had all that was acknowledged,"
    else:
        whose = f"{_brokers(tuple(other.node_id for other in others))}, which had all that was acknowledged,"
    ages = [other.age_ms for other in others if other.age_ms >= 0]
    if not ages:
        return f" Of {whose} nothing has been reported since: how many records were acknowledged is not known."
    return (
        f" That is known from the last report of {whose} {min(ages) / 1000:.1f} s ago. How many records were "
        "acknowledged after it is not known; they are lost too."
    )
