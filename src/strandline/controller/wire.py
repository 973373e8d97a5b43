"""The form of `strandline.controller.api` and `reports` on the wire, and the table of the controller's methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from strandline.controller import api, reports, voter_api
from strandline.controller.mapping import Mapper
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome, IsrMember
from strandline.proto.v1 import controller_pb2 as pb

T = TypeVar("T")

_MAPPERS: dict[type, Mapper[Any]] = {}

# Parts before wholes: a mapper is compiled with those it contains.
for _kind in (
    reports.TopicFindings,
    api.RegisterBrokerRequest,
    api.RegisterBrokerReply,
    api.UnregisterBrokerRequest,
    reports.ReplicaOffsets,
    reports.UnservedTopic,
    reports.Unserved,
    api.Heartbeat,
    api.HeartbeatReply,
    IsrMember,
    AlterPartitionItem,
    api.AlterPartitionRequest,
    AlterPartitionOutcome,
    api.AlterPartitionReply,
    api.ReplicaAssignment,
    api.CreatableTopic,
    api.CreateTopicsRequest,
    api.CreatedTopic,
    api.CreateTopicsReply,
    api.TopicRef,
    api.DeleteTopicsRequest,
    api.TopicOutcome,
    api.TopicOutcomes,
    api.PartitionsToAdd,
    api.CreatePartitionsRequest,
    api.ConfigAlteration,
    api.ResourceAlteration,
    api.AlterConfigsRequest,
    api.ResourceOutcome,
    api.AlterConfigsReply,
    api.AllocateProducerIdsRequest,
    api.ProducerIdBlock,
    api.PartitionRef,
    api.ElectLeadersRequest,
    api.Candidate,
    api.ElectionOutcome,
    api.ElectLeadersReply,
    reports.DescribeReplicasRequest,
    reports.ReplicaReport,
    reports.DescribeReplicasReply,
    api.PingReply,
    voter_api.RemoveVoterRequest,
    voter_api.AddVoterRequest,
    voter_api.VoterReply,
):
    _MAPPERS[_kind] = Mapper(_kind, getattr(pb, _kind.__name__), _MAPPERS)


def encode(value: object) -> bytes:
    """The bytes of any dataclass of `strandline.controller.api`, `reports` and `voter_api`."""
    return _MAPPERS[type(value)].encode(value)


def decode(kind: type[T], data: bytes) -> T:
    """The value of bytes. Raises ProtocolError when they are not such a message."""
    value: T = _MAPPERS[kind].decode(data)
    return value


@dataclass(frozen=True, slots=True)
class Method:
    """One unary method: its path, what it takes, what it answers, and the operation of `Controller` that serves it."""

    path: str
    request: type
    reply: type
    operation: str


def _method(name: str, request: type, reply: type, operation: str) -> Method:
    return Method(f"/strandline.v1.Controller/{name}", request, reply, operation)


METHODS: tuple[Method, ...] = (
    _method("RegisterBroker", api.RegisterBrokerRequest, api.RegisterBrokerReply, "register_broker"),
    _method("UnregisterBroker", api.UnregisterBrokerRequest, api.RegisterBrokerReply, "unregister_broker"),
    _method("AlterPartition", api.AlterPartitionRequest, api.AlterPartitionReply, "alter_partition"),
    _method("CreateTopics", api.CreateTopicsRequest, api.CreateTopicsReply, "create_topics"),
    _method("DeleteTopics", api.DeleteTopicsRequest, api.TopicOutcomes, "delete_topics"),
    _method("CreatePartitions", api.CreatePartitionsRequest, api.TopicOutcomes, "create_partitions"),
    _method("IncrementalAlterConfigs", api.AlterConfigsRequest, api.AlterConfigsReply, "incremental_alter_configs"),
    _method("AllocateProducerIds", api.AllocateProducerIdsRequest, api.ProducerIdBlock, "allocate_producer_ids"),
    _method("ElectLeaders", api.ElectLeadersRequest, api.ElectLeadersReply, "elect_leaders"),
    _method("RemoveVoter", voter_api.RemoveVoterRequest, voter_api.VoterReply, "remove_voter"),
    _method("AddVoter", voter_api.AddVoterRequest, voter_api.VoterReply, "add_voter"),
    _method("DescribeReplicas", reports.DescribeReplicasRequest, reports.DescribeReplicasReply, "describe_replicas"),
)
"""Every unary method of the service. UnregisterBroker answers the epoch that ended."""


def encode_answer(reply: object) -> bytes:
    """A success in its envelope."""
    return pb.ControllerReply(payload=encode(reply)).SerializeToString()


def encode_error(error: KafkaError) -> bytes:
    """A failure of the call as a whole in its envelope."""
    return pb.ControllerReply(error=int(error.code), message=str(error.message)).SerializeToString()


def decode_answer(kind: type[T], data: bytes) -> T:
    """The reply in an envelope.

    Raises:
        KafkaError: the controller answered with an error.
        ProtocolError: the bytes are no such answer.
    """
    try:
        envelope = pb.ControllerReply.FromString(data)
    except Exception as error:
        raise ProtocolError(f"not a ControllerReply of {len(data)} bytes: {error}") from error
    if envelope.error:
        raise KafkaError(ErrorCode.of(envelope.error), envelope.message)
    return decode(kind, envelope.payload)
