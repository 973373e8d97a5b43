from strandline.proto.v1 import metadata_pb2 as _metadata_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControllerReply(_message.Message):
    __slots__ = ("error", "message", "payload")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    error: int
    message: str
    payload: bytes
    def __init__(self, error: _Optional[int] = ..., message: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("cluster_id", "node_id", "incarnation_id", "listeners", "internal", "rack", "previous_broker_epoch", "min_metadata_version", "max_metadata_version", "directory_id", "lives", "replaces", "findings", "flush_policy")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MIN_METADATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_METADATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_POLICY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: int
    incarnation_id: bytes
    listeners: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.ListenerEndpoint]
    internal: _metadata_pb2.InternalEndpoint
    rack: str
    previous_broker_epoch: int
    min_metadata_version: int
    max_metadata_version: int
    directory_id: bytes
    lives: _containers.RepeatedScalarFieldContainer[bytes]
    replaces: bytes
    findings: _containers.RepeatedCompositeFieldContainer[TopicFindings]
    flush_policy: str
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., incarnation_id: _Optional[bytes] = ..., listeners: _Optional[_Iterable[_Union[_metadata_pb2.ListenerEndpoint, _Mapping]]] = ..., internal: _Optional[_Union[_metadata_pb2.InternalEndpoint, _Mapping]] = ..., rack: _Optional[str] = ..., previous_broker_epoch: _Optional[int] = ..., min_metadata_version: _Optional[int] = ..., max_metadata_version: _Optional[int] = ..., directory_id: _Optional[bytes] = ..., lives: _Optional[_Iterable[bytes]] = ..., replaces: _Optional[bytes] = ..., findings: _Optional[_Iterable[_Union[TopicFindings, _Mapping]]] = ..., flush_policy: _Optional[str] = ...) -> None: ...

class TopicFindings(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions", "log_end_offsets", "last_epochs", "conditions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    log_end_offsets: _containers.RepeatedScalarFieldContainer[int]
    last_epochs: _containers.RepeatedScalarFieldContainer[int]
    conditions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ..., log_end_offsets: _Optional[_Iterable[int]] = ..., last_epochs: _Optional[_Iterable[int]] = ..., conditions: _Optional[_Iterable[int]] = ...) -> None: ...

class RegisterBrokerReply(_message.Message):
    __slots__ = ("broker_epoch", "registered")
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    broker_epoch: int
    registered: bytes
    def __init__(self, broker_epoch: _Optional[int] = ..., registered: _Optional[bytes] = ...) -> None: ...

class UnregisterBrokerRequest(_message.Message):
    __slots__ = ("node_id", "dry_run")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    dry_run: bool
    def __init__(self, node_id: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ReplicaOffsets(_message.Message):
    __slots__ = ("topic_id", "partition", "high_watermark", "log_end_offset", "last_epoch", "leader_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    high_watermark: int
    log_end_offset: int
    last_epoch: int
    leader_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class UnservedTopic(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class Unserved(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[UnservedTopic]
    def __init__(self, topics: _Optional[_Iterable[_Union[UnservedTopic, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "metadata_offset", "want_fence", "want_shutdown", "offsets", "unserved", "disk_full")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WANT_FENCE_FIELD_NUMBER: _ClassVar[int]
    WANT_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    UNSERVED_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool
    want_shutdown: bool
    offsets: _containers.RepeatedCompositeFieldContainer[ReplicaOffsets]
    unserved: Unserved
    disk_full: bool
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., metadata_offset: _Optional[int] = ..., want_fence: _Optional[bool] = ..., want_shutdown: _Optional[bool] = ..., offsets: _Optional[_Iterable[_Union[ReplicaOffsets, _Mapping]]] = ..., unserved: _Optional[_Union[Unserved, _Mapping]] = ..., disk_full: _Optional[bool] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("caught_up", "fenced", "in_controlled_shutdown", "should_shut_down", "report_at_offset")
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    IN_CONTROLLED_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    SHOULD_SHUT_DOWN_FIELD_NUMBER: _ClassVar[int]
    REPORT_AT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    caught_up: bool
    fenced: bool
    in_controlled_shutdown: bool
    should_shut_down: bool
    report_at_offset: int
    def __init__(self, caught_up: _Optional[bool] = ..., fenced: _Optional[bool] = ..., in_controlled_shutdown: _Optional[bool] = ..., should_shut_down: _Optional[bool] = ..., report_at_offset: _Optional[int] = ...) -> None: ...

class IsrMember(_message.Message):
    __slots__ = ("node_id", "broker_epoch")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class AlterPartitionItem(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "partition_epoch", "new_isr", "recovering")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEW_ISR_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: _containers.RepeatedCompositeFieldContainer[IsrMember]
    recovering: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., new_isr: _Optional[_Iterable[_Union[IsrMember, _Mapping]]] = ..., recovering: _Optional[bool] = ...) -> None: ...

class AlterPartitionRequest(_message.Message):
    __slots__ = ("node_id", "broker_epoch", "items")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    items: _containers.RepeatedCompositeFieldContainer[AlterPartitionItem]
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., items: _Optional[_Iterable[_Union[AlterPartitionItem, _Mapping]]] = ...) -> None: ...

class AlterPartitionOutcome(_message.Message):
    __slots__ = ("topic_id", "partition", "error", "message", "leader", "leader_epoch", "partition_epoch", "isr", "recovering", "min_insync_replicas")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    error: int
    message: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: _containers.RepeatedScalarFieldContainer[int]
    recovering: bool
    min_insync_replicas: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., message: _Optional[str] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[int]] = ..., recovering: _Optional[bool] = ..., min_insync_replicas: _Optional[int] = ...) -> None: ...

class AlterPartitionReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[AlterPartitionOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[AlterPartitionOutcome, _Mapping]]] = ...) -> None: ...

class ReplicaAssignment(_message.Message):
    __slots__ = ("partition", "replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class ConfigValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class CreatableTopic(_message.Message):
    __slots__ = ("name", "num_partitions", "replication_factor", "assignments", "configs", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_partitions: int
    replication_factor: int
    assignments: _containers.RepeatedCompositeFieldContainer[ReplicaAssignment]
    configs: _containers.RepeatedCompositeFieldContainer[ConfigValue]
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., num_partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[ReplicaAssignment, _Mapping]]] = ..., configs: _Optional[_Iterable[_Union[ConfigValue, _Mapping]]] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("topics", "dry_run")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[CreatableTopic]
    dry_run: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[CreatableTopic, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CreatedTopic(_message.Message):
    __slots__ = ("name", "error", "message", "topic_id", "num_partitions", "replication_factor", "assignments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: int
    message: str
    topic_id: bytes
    num_partitions: int
    replication_factor: int
    assignments: _containers.RepeatedCompositeFieldContainer[ReplicaAssignment]
    def __init__(self, name: _Optional[str] = ..., error: _Optional[int] = ..., message: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., num_partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[ReplicaAssignment, _Mapping]]] = ...) -> None: ...

class CreateTopicsReply(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[CreatedTopic]
    def __init__(self, topics: _Optional[_Iterable[_Union[CreatedTopic, _Mapping]]] = ...) -> None: ...

class TopicRef(_message.Message):
    __slots__ = ("name", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("topics", "dry_run")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRef]
    dry_run: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicRef, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class TopicOutcome(_message.Message):
    __slots__ = ("name", "topic_id", "error", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    error: int
    message: str
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., error: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class TopicOutcomes(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicOutcome]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicOutcome, _Mapping]]] = ...) -> None: ...

class PartitionsToAdd(_message.Message):
    __slots__ = ("name", "count", "assignments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    assignments: _containers.RepeatedCompositeFieldContainer[ReplicaAssignment]
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[ReplicaAssignment, _Mapping]]] = ...) -> None: ...

class CreatePartitionsRequest(_message.Message):
    __slots__ = ("topics", "dry_run")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[PartitionsToAdd]
    dry_run: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[PartitionsToAdd, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ConfigAlteration(_message.Message):
    __slots__ = ("name", "operation", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    operation: int
    value: str
    def __init__(self, name: _Optional[str] = ..., operation: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...

class ResourceAlteration(_message.Message):
    __slots__ = ("resource_type", "resource_name", "alterations")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    ALTERATIONS_FIELD_NUMBER: _ClassVar[int]
    resource_type: int
    resource_name: str
    alterations: _containers.RepeatedCompositeFieldContainer[ConfigAlteration]
    def __init__(self, resource_type: _Optional[int] = ..., resource_name: _Optional[str] = ..., alterations: _Optional[_Iterable[_Union[ConfigAlteration, _Mapping]]] = ...) -> None: ...

class AlterConfigsRequest(_message.Message):
    __slots__ = ("resources", "dry_run")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[ResourceAlteration]
    dry_run: bool
    def __init__(self, resources: _Optional[_Iterable[_Union[ResourceAlteration, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ResourceOutcome(_message.Message):
    __slots__ = ("resource_type", "resource_name", "error", "message")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    resource_type: int
    resource_name: str
    error: int
    message: str
    def __init__(self, resource_type: _Optional[int] = ..., resource_name: _Optional[str] = ..., error: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class AlterConfigsReply(_message.Message):
    __slots__ = ("resources",)
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[ResourceOutcome]
    def __init__(self, resources: _Optional[_Iterable[_Union[ResourceOutcome, _Mapping]]] = ...) -> None: ...

class AllocateProducerIdsRequest(_message.Message):
    __slots__ = ("node_id", "broker_epoch")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    broker_epoch: int
    def __init__(self, node_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class ProducerIdBlock(_message.Message):
    __slots__ = ("first_producer_id", "count")
    FIRST_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first_producer_id: int
    count: int
    def __init__(self, first_producer_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class PartitionRef(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class ElectLeadersRequest(_message.Message):
    __slots__ = ("kind", "partitions", "dry_run")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    kind: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionRef]
    dry_run: bool
    def __init__(self, kind: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionRef, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("node_id", "alive", "in_isr", "in_elr", "last_epoch", "log_end_offset", "high_watermark", "age_ms", "lost_records", "in_doubt", "servable", "condition")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    IN_ISR_FIELD_NUMBER: _ClassVar[int]
    IN_ELR_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LOST_RECORDS_FIELD_NUMBER: _ClassVar[int]
    IN_DOUBT_FIELD_NUMBER: _ClassVar[int]
    SERVABLE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    alive: bool
    in_isr: bool
    in_elr: bool
    last_epoch: int
    log_end_offset: int
    high_watermark: int
    age_ms: int
    lost_records: int
    in_doubt: bool
    servable: bool
    condition: int
    def __init__(self, node_id: _Optional[int] = ..., alive: _Optional[bool] = ..., in_isr: _Optional[bool] = ..., in_elr: _Optional[bool] = ..., last_epoch: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., age_ms: _Optional[int] = ..., lost_records: _Optional[int] = ..., in_doubt: _Optional[bool] = ..., servable: _Optional[bool] = ..., condition: _Optional[int] = ...) -> None: ...

class ElectionOutcome(_message.Message):
    __slots__ = ("topic", "partition", "error", "message", "leader", "unclean", "candidates")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: int
    message: str
    leader: int
    unclean: bool
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., message: _Optional[str] = ..., leader: _Optional[int] = ..., unclean: _Optional[bool] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ...) -> None: ...

class ElectLeadersReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[ElectionOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ElectionOutcome, _Mapping]]] = ...) -> None: ...

class DescribeReplicasRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplicaReport(_message.Message):
    __slots__ = ("topic", "partition", "node_id", "high_watermark", "log_end_offset", "last_epoch", "age_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    node_id: int
    high_watermark: int
    log_end_offset: int
    last_epoch: int
    age_ms: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., node_id: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class DescribeReplicasReply(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    def __init__(self, replicas: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ...) -> None: ...

class PingReply(_message.Message):
    __slots__ = ("node_id", "incarnation_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    incarnation_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., incarnation_id: _Optional[bytes] = ...) -> None: ...

class RemoveVoterRequest(_message.Message):
    __slots__ = ("node_id", "directory_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class AddVoterRequest(_message.Message):
    __slots__ = ("node_id", "directory_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class VoterReply(_message.Message):
    __slots__ = ("voters",)
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, voters: _Optional[_Iterable[int]] = ...) -> None: ...
