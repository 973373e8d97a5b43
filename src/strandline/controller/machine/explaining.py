"""What an operator is told of an election: why nobody leads, and what an unclean election would cost."""

from __future__ import annotations

from strandline.controller.api import Candidate
from strandline.controller.machine.state import MachineState
from strandline.controller.metadata.image import PartitionInfo, TopicInfo
from strandline.log.findings import LogCondition
from strandline.proto.ids import NodeId


def why_nobody_leads(state: MachineState, topic: TopicInfo, partition: PartitionInfo) -> str:
    """Who would lead, and what each of them waits for; empty where somebody leads, or nobody is left to wait for."""
    if partition.has_leader:
        return ""
    eligible = partition.isr or partition.eligible_leader_replicas
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


def _is_hindered(state: MachineState, topic: TopicInfo, partition: PartitionInfo, node: NodeId) -> bool:
    lives = state.image.is_active(node) and state.can_serve(node, topic, partition)
    return not lives or state.position(node, topic, partition) is None


def _hindrance(state: MachineState, topic: TopicInfo, partition: PartitionInfo, node: NodeId) -> str:
    if not state.image.is_active(node):
        return "is away"
    if not state.can_serve(node, topic, partition):
        return "cannot serve its replica"
    return "has not told yet where its log ends"


def _brokers(nodes: tuple[NodeId, ...]) -> str:
    return f"brokers {', '.join(map(str, nodes[:-1]))} and {nodes[-1]}"


def loss(candidates: list[Candidate], leader: NodeId) -> str:
    """What an unclean election of `leader` costs, as far as it has been reported."""
    chosen = next(candidate for candidate in candidates if candidate.node_id == leader)
    if chosen.lost_records > 0:
        first, last = chosen.log_end_offset, chosen.log_end_offset + chosen.lost_records - 1
        return f"Broker {leader} was not in sync: committed offsets {first} to {last} ({last - first + 1}) are lost."
    if chosen.in_doubt:
        return f"The log of broker {leader} was cut when it was recovered: acknowledged records may be lost."
    if chosen.condition is LogCondition.LACKING:
        return f"Broker {leader} lacked records when it started: acknowledged ones may be lost."
    if chosen.lost_records < 0:
        return f"Broker {leader} was not in sync: an unknown number of committed records may be lost."
    return f"Broker {leader} was not in sync, but holds every offset that is known to be committed."
