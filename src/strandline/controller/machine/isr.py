"""AlterPartition: a leader proposes an ISR, and the controller accepts or refuses it, by the checks of rule B2 in their
order."""

from __future__ import annotations

from strandline.controller.broker_api import AlterPartitionReply, AlterPartitionRequest
from strandline.controller.machine.partition_change import PartitionChange
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import MetadataRecord, PartitionChangeRecord, PartitionRecord
from strandline.controller.metadata.replay import merge
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, NodeId, TopicId, TopicIdPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome, IsrMember
from strandline.proto.marks import mark


def alter_partition(state: MachineState, request: AlterPartitionRequest) -> Result[AlterPartitionReply]:
    """Check each proposal of a leader; accepted ones become records.

    Raises:
        KafkaError: STALE_BROKER_EPOCH if another process with the sender's node id has registered since.
    """
    state.broker_of_epoch(request.node_id, request.broker_epoch)  # rule B2/sender-of-another-life-is-heard
    records: list[MetadataRecord] = []
    outcomes = []
    seen: set[TopicIdPartition] = set()
    for item in request.items:
        try:
            once(TopicIdPartition(item.topic_id, item.partition), seen)
            outcome, record = _alter_one(state, request.node_id, item)
        except KafkaError as error:
            outcome = AlterPartitionOutcome(item.topic_id, item.partition, error.code, str(error.message))
        else:
            records.append(record)  # rule B2/a-withdrawal-moves-no-epoch/3
        outcomes.append(outcome)
    return Result(AlterPartitionReply(tuple(outcomes)), records)


def once(key: TopicIdPartition, seen: set[TopicIdPartition]) -> None:
    """Add `key` to `seen`. Raises KafkaError INVALID_REQUEST if it is there already."""
    if key in seen:  # rule B2/one-partition-twice-in-a-request
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names this partition twice.")
    seen.add(key)


def check_leader(partition: PartitionRecord, sender: NodeId, leader_epoch: LeaderEpoch) -> None:
    """Check that the sender leads the partition in its current leader epoch.

    Raises:
        KafkaError: FENCED_LEADER_EPOCH if the epoch is old; INVALID_REQUEST if another broker leads.
    """
    # rule B2/old-leader-alters-the-isr, rule B2/alter-partition-rows-in-another-order
    if leader_epoch < partition.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch is {partition.leader_epoch}, not {leader_epoch}."
        )
    if sender != partition.leader:  # rule B2/anybody-alters-the-isr
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {partition.leader} leads, not broker {sender}.")


def _alter_one(
    state: MachineState, sender: NodeId, item: AlterPartitionItem
) -> tuple[AlterPartitionOutcome, MetadataRecord]:
    topic, partition = state.known_partition(TopicIdPartition(item.topic_id, item.partition))
    validate(state.image, sender, partition, item)
    for member in item.new_isr:
        if member.node_id in state.leaving and member.node_id not in partition.isr:
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member.node_id} is being taken out of its ISRs.")
        if not state.can_serve(member.node_id, topic, partition):  # schedule 56/unserved-replica-joins-the-isr
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member.node_id} says it cannot serve its replica.")
        if member.node_id not in partition.isr and _must_heal_first(state, member.node_id, topic, partition):
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member.node_id} says its replica has rotted.")
        cramped = state.without_room.has(member.node_id, topic.topic_id, partition.partition)
        if cramped and member.node_id not in partition.isr:  # schedule 57/a-full-directory-joins
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member.node_id} has no room in its directory.")
    change = state.change(
        topic,
        partition,
        f"leader {sender} altered the ISR",
        target_isr=tuple(member.node_id for member in item.new_isr),
        recovering=item.recovering,
    )
    record = accepted(change, topic.topic_id, partition.partition)  # rule B2/a-withdrawal-moves-no-epoch
    after = merge(partition, record)  # rule B2/a-withdrawal-moves-no-epoch/2
    if after.leader != sender:  # the sender's disk is full, and a joining member with free space leads (schedule 57)
        message = f"Broker {after.leader} leads now."
        # schedule 57/who-joins-with-room-does-not-lead
        return AlterPartitionOutcome(item.topic_id, item.partition, ErrorCode.NEW_LEADER_ELECTED, message), record
    return _outcome(state, topic, after), record


def _must_heal_first(state: MachineState, node_id: NodeId, topic: TopicInfo, partition: PartitionRecord) -> bool:
    """True if a replica with rotted segments must be healed before it joins the ISR, which a leader with an intact log
    can do. If the leader's log has rotted too, the data may be lost for good, and the replica joins without it, so that
    the partition does not stop."""
    # schedule 80/rotten-replica-joins, schedule 80/rotten-replicas-join-no-rotten-leader
    return not state.is_whole(node_id, topic, partition) and state.is_whole(partition.leader, topic, partition)


def accepted(change: PartitionChange, topic_id: TopicId, partition: int) -> PartitionChangeRecord:
    """The record of an accepted proposal. It is written even if nothing changes: a leader that proposes the committed
    ISR withdraws an earlier proposal, and the record raises the partition epoch, so that late copies of the earlier
    proposal are refused (schedule 50)."""
    return change.build() or PartitionChangeRecord(topic_id, partition, reason="its leader kept the ISR")


def _outcome(state: MachineState, topic: TopicInfo, partition: PartitionRecord) -> AlterPartitionOutcome:
    return AlterPartitionOutcome(
        topic_id=topic.topic_id,
        partition=partition.partition,
        error=ErrorCode.NONE,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=partition.isr,
        recovering=partition.recovering,
        min_insync_replicas=state.resolver.min_insync_replicas(state.image, topic.name, partition),
    )


def validate(image: MetadataImage, sender: NodeId, partition: PartitionRecord, item: AlterPartitionItem) -> None:
    """Check one proposal, in the order of the table of rule B2. The first check that fails decides the error.

    Raises:
        KafkaError: NOT_CONTROLLER, FENCED_LEADER_EPOCH, INVALID_REQUEST, INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA.
    """
    # rule B2/newer-leader-epoch-is-judged, rule B2/newer-partition-epoch-is-judged, rule B2/stale-controller-judges
    if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
        mark("alter-partition-newer")
        raise KafkaError(
            ErrorCode.NOT_CONTROLLER,
            f"The leader knows epochs {item.leader_epoch}/{item.partition_epoch}, this controller only "
            f"{partition.leader_epoch}/{partition.partition_epoch}: this controller is the stale one.",
        )
    if item.leader_epoch < partition.leader_epoch:
        mark("alter-partition-fenced")
    check_leader(partition, sender, item.leader_epoch)
    if item.partition_epoch < partition.partition_epoch:  # rule B2/old-partition-epoch-alters-the-isr
        mark("alter-partition-stale")
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The partition epoch is {partition.partition_epoch}, not {item.partition_epoch}.",
        )
    _validate_isr(partition, item)
    for member in item.new_isr:
        why = _ineligible(image, member)
        # schedule 57/full-replica-is-let-in
        if not why and member.node_id not in partition.isr and not image.has_room(member.node_id):
            why = "has no room on its disk"
        if why:
            mark("alter-partition-ineligible")
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {member.node_id} {why}.")


def _validate_isr(partition: PartitionRecord, item: AlterPartitionItem) -> None:
    nodes = [member.node_id for member in item.new_isr]
    # rule B2/isr-beyond-the-replicas, rule B2/isr-names-a-member-twice
    if not nodes or len(set(nodes)) != len(nodes) or any(node not in partition.replicas for node in nodes):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"The ISR {nodes} does not lie within the replicas {list(partition.replicas)}."
        )
    if partition.leader not in nodes:  # rule B2/isr-without-its-leader
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The ISR {nodes} lacks the leader {partition.leader}.")
    if item.recovering and len(nodes) > 1:  # rule B2/recovering-in-company
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "A leader that recovers from an unclean election is alone in its ISR."
        )
    if item.recovering and not partition.recovering:  # rule B2/recovered-is-recovering-again
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition has recovered; it cannot be recovering again.")


def _ineligible(image: MetadataImage, member: IsrMember) -> str:
    """Reason why a broker may not be in an ISR, or ""."""
    broker = image.brokers.get(member.node_id)
    if broker is None:
        return "is not registered"  # rule B2/unregistered-member-joins
    if broker.in_controlled_shutdown:  # rule B2/stopping-member-joins
        return "is shutting down"
    if broker.fenced:  # rule B2/fenced-member-joins
        return "is fenced"
    # rule B2/broker-epoch-that-is-not-named-is-asked-for, rule B2/member-of-another-life-joins
    if member.broker_epoch not in (-1, broker.broker_epoch):
        return f"is registered with epoch {broker.broker_epoch}, not {member.broker_epoch}"
    return ""
