"""The operations of the controller: one row each.

A row names the function that decides. Its annotations give the types of request and reply, and from these are made the
method between nodes, what the active controller serves, what a broker's channel calls, and who may call it. Whoever
adds an operation writes its request and reply, the function, and a row here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, get_args, get_type_hints
from uuid import UUID

from strandline.controller.api import (
    AddVoterRequest,
    CreateTopicsRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VoterReply,
)
from strandline.controller.command_queue import Command
from strandline.controller.machine import (
    acls,
    brokers,
    configs,
    elections,
    features,
    isr,
    moves,
    quotas,
    scram,
    tiers,
    topics,
)
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.quorum.api import QuorumLog
from strandline.controller.raft.messages import ReplicaKey
from strandline.controller.survey import Survey
from strandline.proto.ids import ZERO_UUID
from strandline.proto.messages.method import Method, method
from strandline.proto.ports import Rng

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Moment = ParamSpec("Moment")

SERVICE = "/strandline.v1.Controller/"

MOMENT = ("next_offset", "now_ms")
"""Further arguments that a deciding function may have: the offset that its first record would get, and the monotonic
time in milliseconds."""


class ActiveController(Protocol):
    """What an operation needs of the active controller."""

    @property
    def quorum(self) -> QuorumLog: ...

    def now_ms(self) -> float:
        """Monotonic time."""

    def submit(self, command: Command[Reply]) -> Awaitable[Reply]:
        """Run it in its turn; the reply comes once what it rests on is committed."""

    async def survey(self) -> Survey:
        """Ask all brokers and voters which feature levels their builds support."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[Request, Reply]):
    """One operation.

    Attributes:
        method: its path, and the types that it takes and answers.
        carry_out: (active controller, request) -> reply, once what it rests on is committed. Raises KafkaError to
            refuse.
        heard: it is over for a broker that asks when this broker's own image has what it changed: whoever then asks
            this broker finds it.
        own: a broker asks it for itself alone, and says who it is (`node_id`); all others are asked for clients too.
        prepare: what a broker adds before it asks, so that the controller knows a repetition.
    """

    method: Method[Request, Reply]
    carry_out: Callable[[ActiveController, Request], Awaitable[Reply]]
    heard: bool = False
    own: bool = False
    prepare: Callable[[Request, Rng], Request] | None = None

    @property
    def name(self) -> str:
        """Name of the operation's RPC method."""
        return self.method.name


OPERATIONS: list[Operation[Any, Any]] = []
"""Every operation."""


def machine_operation(
    name: str,
    decides: Callable[Concatenate[MachineState, Request, Moment], Result[Reply]],
    *,
    heard: bool = False,
    own: bool = False,
    prepare: Callable[[Request, Rng], Request] | None = None,
) -> Operation[Request, Reply]:
    """An operation that the machine decides. Raises TypeError for a function that asks for more than there is."""
    request, reply, asked_for = _types(decides)
    reply = get_args(reply)[0]
    if not set(asked_for) <= set(MOMENT):
        raise TypeError(f"{name}: {', '.join(asked_for)}: a deciding function may ask for {' and '.join(MOMENT)}")
    places = [MOMENT.index(each) for each in asked_for]
    function: Any = decides

    def carry_out(controller: ActiveController, request: Request) -> Awaitable[Reply]:
        def command(state: MachineState, next_offset: int) -> Result[Reply]:
            moment = next_offset, controller.now_ms()
            decided: Result[Reply] = function(state, request, *(moment[place] for place in places))
            return decided

        return controller.submit(command)

    return _listed(Operation(method(SERVICE + name, request, reply), carry_out, heard, own, prepare))


def surveyed_operation(
    name: str, decides: Callable[[MachineState, Request, Survey], Result[Reply]], *, heard: bool = False
) -> Operation[Request, Reply]:
    """An operation that the machine decides by what the builds of all nodes can do."""
    request, reply, _ = _types(decides)

    async def carry_out(controller: ActiveController, request: Request) -> Reply:
        found = await controller.survey()
        return await controller.submit(lambda state, _: decides(state, request, found))

    return _listed(Operation(method(SERVICE + name, request, get_args(reply)[0]), carry_out, heard))


def quorum_operation(name: str, asks: Callable[[QuorumLog, Request], Awaitable[Reply]]) -> Operation[Request, Reply]:
    """An operation on the quorum, whose log is not the machine's."""
    request, reply, _ = _types(asks)

    def carry_out(controller: ActiveController, request: Request) -> Awaitable[Reply]:
        return asks(controller.quorum, request)

    return _listed(Operation(method(SERVICE + name, request, reply), carry_out))


def _types(function: Callable[..., Any]) -> tuple[Any, Any, list[str]]:
    """Type of the second parameter, type returned, and names of the parameters behind the second."""
    hints, names = get_type_hints(function), list(signature(function).parameters)
    return hints[names[1]], hints["return"], names[2:]


def _listed(operation: Operation[Request, Reply]) -> Operation[Request, Reply]:
    OPERATIONS.append(operation)
    return operation


def _with_ids(request: CreateTopicsRequest, rng: Rng) -> CreateTopicsRequest:
    """Each topic with a proposed id."""
    new = (replace(topic, topic_id=UUID(int=rng.getrandbits(128), version=4)) for topic in request.topics)
    pairs = zip(request.topics, new, strict=True)
    return replace(request, topics=tuple(new if old.topic_id == ZERO_UUID else old for old, new in pairs))


async def _add_voter(quorum: QuorumLog, request: AddVoterRequest) -> VoterReply:
    """Give a replica a vote in the quorum. Raises KafkaError, see `raft.voter_changes.add_voter`."""
    given = (request.node_id, request.directory_id, request.endpoint)
    return VoterReply(await quorum.add_voter(*given, uncommitted=request.uncommitted))


async def _remove_voter(quorum: QuorumLog, request: RemoveVoterRequest) -> VoterReply:
    """Take the vote of a replica. Raises KafkaError, see `raft.voter_changes.remove_voter`."""
    return VoterReply(await quorum.remove_voter(request.node_id, request.directory_id))


async def _update_voter(quorum: QuorumLog, request: UpdateVoterRequest) -> VoterReply:
    """Record where a voter listens. Raises KafkaError, see `Quorum.update_voter`."""
    key, levels = ReplicaKey(request.node_id, request.directory_id), range(request.first, request.last + 1)
    return VoterReply(await quorum.update_voter(key, request.endpoint, levels, epoch=request.epoch))


REGISTER_BROKER = machine_operation("RegisterBroker", brokers.register_broker, own=True)
UNREGISTER_BROKER = machine_operation("UnregisterBroker", brokers.unregister_broker, heard=True)
"""Answers the epoch that ended."""
ALTER_PARTITION = machine_operation("AlterPartition", isr.alter_partition, own=True)
"""An item may answer NOT_CONTROLLER, for its leader to repeat."""
CREATE_TOPICS = machine_operation("CreateTopics", topics.create_topics, heard=True, prepare=_with_ids)
DELETE_TOPICS = machine_operation("DeleteTopics", topics.delete_topics, heard=True)
CREATE_PARTITIONS = machine_operation("CreatePartitions", topics.create_partitions, heard=True)
INCREMENTAL_ALTER_CONFIGS = machine_operation("IncrementalAlterConfigs", configs.incremental_alter_configs, heard=True)
CREATE_ACLS = machine_operation("CreateAcls", acls.create_acls, heard=True)
DELETE_ACLS = machine_operation("DeleteAcls", acls.delete_acls, heard=True)
ALLOCATE_PRODUCER_IDS = machine_operation("AllocateProducerIds", brokers.allocate_producer_ids, own=True)
ELECT_LEADERS = machine_operation("ElectLeaders", elections.elect_leaders, heard=True)
ALTER_REASSIGNMENTS = machine_operation("AlterPartitionReassignments", moves.alter_reassignments, heard=True)
REMOVE_VOTER = quorum_operation("RemoveVoter", _remove_voter)
ADD_VOTER = quorum_operation("AddVoter", _add_voter)
UPDATE_VOTER = quorum_operation("UpdateVoter", _update_voter)
ALTER_SCRAM = machine_operation("AlterScramCredentials", scram.alter_scram_credentials, heard=True)
ALTER_QUOTAS = machine_operation("AlterClientQuotas", quotas.alter_client_quotas, heard=True)
UPDATE_FEATURES = surveyed_operation("UpdateFeatures", features.update_features, heard=True)
ALTER_TIERS = machine_operation("AlterTiers", tiers.alter_tiers, own=True)
"""Operation AlterTiers; sent by leaders, as ALTER_PARTITION is."""
DESCRIBE_REPLICAS = machine_operation("DescribeReplicas", elections.describe_replicas)
