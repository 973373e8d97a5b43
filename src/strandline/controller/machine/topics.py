"""Topics created and deleted, partitions added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from strandline.controller.api import (
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsReply,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    PartitionsToAdd,
    ReplicaAssignment,
    TopicOutcome,
    TopicOutcomes,
    TopicRef,
)
from strandline.controller.machine import adoption, tiering
from strandline.controller.machine.placement import (
    Placer,
    check_not_cordoned,
    default_replication_factor,
    usable_brokers,
)
from strandline.controller.machine.state import (
    MAX_PARTITIONS_PER_REQUEST,
    MachineState,
    Result,
)
from strandline.controller.machine.topic_names import METADATA_TOPIC, TakenNames, check_topic_name
from strandline.controller.metadata.image import MetadataImage, ResourceType, TopicInfo
from strandline.controller.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.controller.metadata.settings import BrokerSettings, validate_topic_settings
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import ZERO_UUID, LeaderEpoch, NodeId, PartitionEpoch, TopicId


class _Placement:
    """One request's view of where replicas may go; the placer counts what the request has placed so far."""

    def __init__(self, state: MachineState) -> None:
        self.image = state.image
        self.brokers = usable_brokers(state.image)
        self._state = state
        self._placer: Placer | None = None
        self._left = MAX_PARTITIONS_PER_REQUEST

    def place(
        self, count: int, replication_factor: int, existing: Iterable[tuple[NodeId, ...]] = ()
    ) -> list[tuple[NodeId, ...]]:
        if self._placer is None:
            self._placer = Placer(self.brokers, self.image, self._state.rng, self._state.counts)
        return self._placer.place(count, replication_factor, existing)

    def charge(self, count: int) -> None:
        """Raises KafkaError POLICY_VIOLATION once a request asks for more partitions than one batch shall hold."""
        self._left -= count
        if self._left < 0:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"One request may create at most {MAX_PARTITIONS_PER_REQUEST} partitions.",
                max_partitions=MAX_PARTITIONS_PER_REQUEST,
            )


def create_topics(state: MachineState, request: CreateTopicsRequest) -> Result[CreateTopicsReply]:
    """Create topics; each succeeds or fails alone, and what succeeds is one atomic batch."""
    placement = _Placement(state)
    records: list[MetadataRecord] = []
    outcomes = []
    names = Counter(topic.name for topic in request.topics)
    ids = Counter(topic.topic_id for topic in request.topics if topic.topic_id != ZERO_UUID)
    taken = TakenNames(state.image.topics)
    for topic in request.topics:
        try:
            if names[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request names topic {topic.name!r} twice.")
            if ids[topic.topic_id] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request proposes id {topic.topic_id} twice.")
            outcome, more = _create_topic(state, placement, topic, taken, dry_run=request.dry_run)
        except KafkaError as error:
            outcome = CreatedTopic(topic.name, error.code, str(error.message))
        else:
            records += more
            taken.add(topic.name)
        outcomes.append(outcome)
    records += adoption.raised_producer_ids(state, records)
    return Result(CreateTopicsReply(tuple(outcomes)), [] if request.dry_run else records)


def _create_topic(
    state: MachineState, placement: _Placement, topic: CreatableTopic, taken: TakenNames, *, dry_run: bool
) -> tuple[CreatedTopic, list[MetadataRecord]]:
    check_topic_name(topic.name)
    if topic.name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    existing = state.image.topics.get(topic.name)
    if existing is not None:
        if _is_retry(topic, existing):
            return _retried(existing), []
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {topic.name!r} already exists.")
    taken.check(topic.name)
    owner = state.image.topic_by_id.get(topic.topic_id)
    if owner is not None:  # rule A16/topic-id-is-taken-twice
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Topic {owner.name!r} has the id {topic.topic_id} that is proposed for {topic.name!r}. Propose none: the "
            "controller draws one.",
        )
    configs = _checked_configs(state, topic)
    remark = ""
    if topic.assignments:
        assignments = _manual_assignments(placement, topic)
    else:
        assignments, remark = _automatic_assignments(state, placement, topic)
    placement.charge(len(assignments))
    adopted = adoption.adopted(state, topic, len(assignments), dry_run=dry_run)
    # rule A16/topic-id-is-taken-twice/2
    topic_id = topic.topic_id if topic.is_restored else _new_topic_id(state, topic.topic_id)
    records: list[MetadataRecord] = [TopicRecord(topic.name, topic_id)]
    records += [ConfigRecord(int(ResourceType.TOPIC), topic.name, key, configs[key]) for key in sorted(configs)]
    records += [
        new_partition(
            state.image,
            topic_id,
            number,
            replicas,
            manual=bool(topic.assignments),
            leader_epoch=adopted.first_epoch,
        )
        for number, replicas in enumerate(assignments)
    ]
    records += adopted.records
    outcome = CreatedTopic(
        name=topic.name,
        error=ErrorCode.NONE,
        message=remark,
        topic_id=topic_id,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0]),
        assignments=tuple(ReplicaAssignment(number, nodes) for number, nodes in enumerate(assignments)),
    )
    return outcome, records


def _is_retry(topic: CreatableTopic, existing: TopicInfo) -> bool:
    """True if the same request made the topic that is there, or restored it."""
    if topic.is_restored:
        return topic.topic_id == existing.topic_id
    return topic.topic_id != ZERO_UUID and _first_half(topic.topic_id) == _first_half(existing.topic_id)


def _retried(topic: TopicInfo) -> CreatedTopic:
    """The very topic this request proposed exists: its first attempt succeeded and the reply was lost."""
    assignments = tuple(ReplicaAssignment(number, info.replicas) for number, info in topic.partitions.items())
    return CreatedTopic(
        name=topic.name,
        error=ErrorCode.NONE,
        topic_id=topic.topic_id,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0].replicas),
        assignments=assignments,
    )


def _new_topic_id(state: MachineState, proposed: TopicId) -> TopicId:
    """An id that no topic had before. Of a proposed one the first half stays, by which a retry finds its own work.

    The other half is drawn here: a copy of the request that comes when the topic is deleted makes another topic, and
    positions, committed offsets and logs of the deleted one are not its own.
    """
    drawn = state.rng.getrandbits(128)
    if proposed == ZERO_UUID:  # rule A16/topic-id-is-used-again
        return UUID(int=drawn, version=4)
    return UUID(int=(_first_half(proposed) << 64) | (drawn & (1 << 64) - 1), version=4)


def _first_half(topic_id: TopicId) -> int:
    """First half of a topic id, as it is in an id of version 4, whatever was proposed."""
    return UUID(int=topic_id.int, version=4).int >> 64


def _checked_configs(state: MachineState, topic: CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for name, value in topic.configs.items():
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic config {name}.")
        configs[name] = value
    try:
        validate_topic_settings(configs)
        tiering.check_topic(state, topic.name, configs)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return configs


def _automatic_assignments(
    state: MachineState, placement: _Placement, topic: CreatableTopic
) -> tuple[list[tuple[NodeId, ...]], str]:
    """Assignments, and a remark where the controller chose the replication factor."""
    factor, count = topic.replication_factor, topic.num_partitions
    remark = ""
    if factor < -1 or factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions must be larger than 0, or -1 to use the default value.",
        )
    if count == -1:
        count = state.resolver.broker_value(state.image, BrokerSettings.num_partitions)
    if factor == -1:
        factor = state.resolver.broker_value(state.image, BrokerSettings.default_replication_factor)
        if factor < 1:
            brokers = len(placement.brokers)
            factor = default_replication_factor(brokers)
            remark = f"Replication factor {factor} was chosen: the cluster has {brokers} broker(s)."
            if factor == 1:
                remark += " Records exist once and are lost with that broker's disk."
    if count > MAX_PARTITIONS_PER_REQUEST:
        placement.charge(count)
    return placement.place(count, factor), remark


def _manual_assignments(placement: _Placement, topic: CreatableTopic) -> list[tuple[NodeId, ...]]:
    if topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    by_number: dict[int, tuple[NodeId, ...]] = {}
    factor = len(topic.assignments[0].replicas)
    for assignment in topic.assignments:
        if assignment.partition in by_number:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition}.",
            )
        _check_assignment(placement.image, assignment.replicas, factor)
        by_number[assignment.partition] = assignment.replicas
    if sorted(by_number) != list(range(len(by_number))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions should be a consecutive 0-based integer sequence."
        )
    return [by_number[number] for number in range(len(by_number))]


def _check_assignment(image: MetadataImage, replicas: tuple[NodeId, ...], factor: int) -> None:
    broken = ""
    if not replicas:
        broken = "an empty replica list"
    elif len(set(replicas)) != len(replicas):
        broken = "a broker more than once"
    elif any(node not in image.brokers for node in replicas):
        unknown = next(node for node in replicas if node not in image.brokers)
        broken = f"broker {unknown}, but no such broker is registered"
    elif len(replicas) != factor:
        broken = f"a partition with {len(replicas)} replica(s), while other partitions have {factor}"
    if broken:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {broken}.")
    check_not_cordoned(image, replicas)


def new_partition(
    image: MetadataImage,
    topic_id: TopicId,
    number: int,
    replicas: tuple[NodeId, ...],
    *,
    manual: bool,
    leader_epoch: LeaderEpoch = adoption.FIRST_EPOCH,
) -> PartitionRecord:
    """A new partition: its ISR are the active replicas that have room, or all active ones where none has; the first of
    them leads.

    Raises:
        KafkaError: none is active: INVALID_REPLICA_ASSIGNMENT for a manual assignment, else INVALID_REPLICATION_FACTOR.
    """
    isr = tuple(node for node in replicas if image.is_active(node))
    if not isr:
        code = ErrorCode.INVALID_REPLICA_ASSIGNMENT if manual else ErrorCode.INVALID_REPLICATION_FACTOR
        raise KafkaError(
            code, f"All brokers of the assignment of partition {number} are fenced or in controlled shutdown."
        )
    isr = tuple(node for node in isr if image.has_room(node)) or isr  # schedule 57/new-topic-on-a-full-disk
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=replicas,
        isr=isr,
        eligible_leader_replicas=(),
        last_known_elr=(),
        leader=isr[0],
        leader_epoch=leader_epoch,
        partition_epoch=PartitionEpoch(0),
        recovering=False,
    )


def delete_topics(state: MachineState, request: DeleteTopicsRequest) -> Result[TopicOutcomes]:
    """Delete topics by name or id; each succeeds or fails alone."""
    records: dict[TopicId, MetadataRecord] = {}
    outcomes = []
    for ref in request.topics:
        topic = _find(state.image, ref)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if ref.topic_id == ZERO_UUID else ErrorCode.UNKNOWN_TOPIC_ID
            what = f"named {ref.name!r}" if ref.topic_id == ZERO_UUID else f"with id {ref.topic_id}"
            outcomes.append(TopicOutcome(ref.name, ref.topic_id, code, f"There is no topic {what}."))
            continue
        if topic.topic_id in records:  # rule A24/topics-to-delete-are-sought-in-a-list
            message = f"The request names topic {topic.name!r} twice."
            outcomes.append(TopicOutcome(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
            continue
        records[topic.topic_id] = RemoveTopicRecord(topic.topic_id)
        outcomes.append(TopicOutcome(topic.name, topic.topic_id, ErrorCode.NONE))
    return Result(TopicOutcomes(tuple(outcomes)), [] if request.dry_run else list(records.values()))


def _find(image: MetadataImage, ref: TopicRef) -> TopicInfo | None:
    return image.topics.get(ref.name) if ref.topic_id == ZERO_UUID else image.topic_by_id.get(ref.topic_id)


def create_partitions(state: MachineState, request: CreatePartitionsRequest) -> Result[TopicOutcomes]:
    """Add partitions to topics; each topic succeeds or fails alone."""
    placement = _Placement(state)
    records: list[MetadataRecord] = []
    outcomes = []
    names = Counter(topic.name for topic in request.topics)
    for addition in request.topics:
        topic = state.image.topics.get(addition.name)
        topic_id = ZERO_UUID if topic is None else topic.topic_id
        try:
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic named {addition.name!r}.")
            if names[addition.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request names topic {addition.name!r} twice.")
            records += _add_partitions(state, placement, topic, addition)
            outcomes.append(TopicOutcome(addition.name, topic_id, ErrorCode.NONE))
        except KafkaError as error:
            outcomes.append(TopicOutcome(addition.name, topic_id, error.code, str(error.message)))
    return Result(TopicOutcomes(tuple(outcomes)), [] if request.dry_run else records)


def _add_partitions(
    state: MachineState, placement: _Placement, topic: TopicInfo, addition: PartitionsToAdd
) -> list[PartitionRecord]:
    have = len(topic.partitions)
    if addition.count == have:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
    if addition.count < have:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {have} partition(s); {addition.count} would not be an increase.",
        )
    moving = [number for number, info in topic.partitions.items() if info.is_moving]
    if moving:  # rule B40/partitions-are-added-during-a-move
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"Partition {moving[0]} of topic {topic.name} is moving. Add partitions once it is over, or cancelled.",
        )
    more = addition.count - have
    placement.charge(more)
    factor = len(topic.partitions[0].replicas)
    if addition.assignments:
        if len(addition.assignments) != more:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {more} additional partition(s), but {len(addition.assignments)} assignment(s) "
                "were specified.",
            )
        assignments = [assignment.replicas for assignment in addition.assignments]
        for replicas in assignments:
            _check_assignment(state.image, replicas, factor)
    else:
        assignments = placement.place(more, factor, [info.replicas for info in topic.partitions.values()])
    return [
        new_partition(state.image, topic.topic_id, have + index, replicas, manual=bool(addition.assignments))
        for index, replicas in enumerate(assignments)
    ]
