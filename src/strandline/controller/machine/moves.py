"""Moves of partitions between brokers (AlterPartitionReassignments, KIP-455 and KIP-860): begun, replaced, cancelled.

The arithmetic is Kafka's, on the replicas that there were before any move (the *original* ones):

| what | is |
|---|---|
| adding | target - original |
| removing | original - target |
| replicas | the target in its order, then what is removed |

A second call begins from the same original ones: what the first was adding and the second does not name goes at once,
and what it was removing stays. A cancelled move leaves the original ones. Which change ends a move says
`strandline.controller.machine.partition_change`: that is judged with every record of the partition, whoever caused it.
"""

from __future__ import annotations

from strandline.controller.machine.partition_change import Assignment, assignment_of
from strandline.controller.machine.placement import check_not_cordoned
from strandline.controller.machine.state import MAX_PARTITIONS_PER_REQUEST, MachineState, Result
from strandline.controller.metadata.features import LEVEL_OF_MOVES, METADATA_FEATURE
from strandline.controller.metadata.image import TopicInfo
from strandline.controller.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord
from strandline.controller.moves_api import (
    AlterReassignmentsReply,
    AlterReassignmentsRequest,
    MoveOutcome,
    PartitionMove,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark


def alter_reassignments(state: MachineState, request: AlterReassignmentsRequest) -> Result[AlterReassignmentsReply]:
    """Begin, replace or cancel moves.

    Raises:
        KafkaError: UNSUPPORTED_VERSION (the cluster is at a level without moves), POLICY_VIOLATION (more partitions
            than one batch shall hold).
    """
    level = state.image.metadata_version
    if level < LEVEL_OF_MOVES:  # rule B40/moves-below-their-level
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Partitions are moved from {METADATA_FEATURE} {LEVEL_OF_MOVES} on, and the cluster is at {level}: raise "
            "it by `strandline upgrade finalize`.",
        )
    if len(request.moves) > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"One request may move at most {MAX_PARTITIONS_PER_REQUEST} partitions."
        )
    records: list[MetadataRecord] = []
    outcomes = []
    seen: set[tuple[str, int]] = set()
    for move in request.moves:
        error, message = ErrorCode.NONE, ""
        try:
            if (move.topic, move.partition) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names this partition twice.")
            seen.add((move.topic, move.partition))
            record = _alter_one(state, move, keeps_factor=request.keeps_factor)
            if record is not None:
                records.append(record)
        except KafkaError as refusal:
            error, message = refusal.code, str(refusal.message)
        outcomes.append(MoveOutcome(move.topic, move.partition, error, message))
    return Result(AlterReassignmentsReply(tuple(outcomes)), records)


def _alter_one(state: MachineState, move: PartitionMove, *, keeps_factor: bool) -> PartitionChangeRecord | None:
    topic = state.image.topics.get(move.topic)
    partition = None if topic is None else topic.partitions.get(move.partition)
    if topic is None or partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {move.partition} of a topic {move.topic!r}."
        )
    original = partition.original_replicas
    if move.replicas is None:
        if not partition.is_moving:
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                f"Partition {move.partition} of topic {move.topic!r} is not moving: nothing is there to cancel.",
            )
        mark("reassignment-cancelled")
        return _change(state, topic, partition, Assignment(original), "its move was cancelled")
    _check_target(state, move.replicas)
    factor = len(partition.target_replicas)
    if keeps_factor and len(move.replicas) != factor:  # rule B40/factor-changes-although-forbidden
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(move.replicas)}.",
        )
    adding = tuple(node for node in move.replicas if node not in original)
    # rule B49/the-cordoned-get-what-moves
    check_not_cordoned(state.image, [node for node in adding if node not in partition.adding_replicas])
    mark("reassignment-replaced" if partition.is_moving else "reassignment-begun")
    removing = tuple(node for node in original if node not in move.replicas)
    wanted = Assignment(
        replicas=(*move.replicas, *removing),
        adding=adding,
        removing=removing,
    )
    if wanted == assignment_of(partition):
        return None
    return _change(state, topic, partition, wanted, f"it moves to {list(move.replicas)}")


def _check_target(state: MachineState, replicas: tuple[NodeId, ...]) -> None:
    broken = ""
    if not replicas:
        broken = "it is empty"
    elif len(set(replicas)) != len(replicas):
        broken = "it names a broker more than once"
    else:
        # rule B40/moves-to-nobody
        unknown = [node for node in replicas if node not in state.image.brokers]
        if unknown:
            broken = f"no broker {unknown[0]} is registered"
    if broken:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The replicas cannot be {list(replicas)}: {broken}.")


def _change(
    state: MachineState, topic: TopicInfo, partition: PartitionRecord, wanted: Assignment, reason: str
) -> PartitionChangeRecord | None:
    """The record that gives a partition another assignment.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT: what goes at once may be the last that has what was acknowledged.
    """
    _check_what_goes(state, topic, partition, wanted)
    return state.change(topic, partition, reason, assignment=wanted).build()


def _check_what_goes(state: MachineState, topic: TopicInfo, partition: PartitionRecord, wanted: Assignment) -> None:
    """Replicas that are dropped at once, as the earlier move was adding them, may count: be in the ISR, or be what an
    election would count on. Then an ISR has to be left, and one that can go on (rule B41)."""
    counting = (*partition.isr, *partition.eligible_leader_replicas, *partition.last_known_elr)
    dropped = [node for node in partition.replicas if node not in wanted.replicas and node in counting]
    left = [node for node in partition.isr if node in wanted.replicas]
    min_isr = state.resolver.min_insync_replicas(state.image, topic.name, partition)
    # rule B41/the-last-in-sync-are-dropped
    if dropped and len(left) < min_isr and not state.resolver.unclean_election_enabled(state.image, topic.name):
        mark("reassignment-keeps-the-isr")
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Partition {partition.partition} of topic {topic.name!r} would be left with the ISR {left}, and "
            f"min.insync.replicas is {min_isr} here: {_nodes(dropped)} may hold what no other replica does. Wait until "
            f"another replica is in sync, or move to replicas with {_nodes(dropped)} among them.",
        )


def _nodes(nodes: list[NodeId]) -> str:
    return f"broker {nodes[0]}" if len(nodes) == 1 else f"brokers {', '.join(map(str, nodes))}"
