"""What the handlers need of controller and quorum, which may be on other nodes, as small protocols."""

from __future__ import annotations

from typing import Protocol

from strandline.controller.api import (
    AddVoterRequest,
    AlterConfigsReply,
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsReply,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersReply,
    ElectLeadersRequest,
    RemoveVoterRequest,
    TopicOutcomes,
    VoterReply,
)
from strandline.controller.broker_api import AllocateProducerIdsRequest, ProducerIdBlock
from strandline.controller.quorum.api import QuorumDescription, QuorumView


class Controller(Protocol):
    """The active controller, wherever it runs (`strandline.controller.channel.ControllerChannel`).

    Each call is answered only after what it did is committed. Raises KafkaError; REQUEST_TIMED_OUT when no controller
    has answered within `timeout_ms`.
    """

    async def create_topics(self, request: CreateTopicsRequest, timeout_ms: float) -> CreateTopicsReply: ...
    async def delete_topics(self, request: DeleteTopicsRequest, timeout_ms: float) -> TopicOutcomes: ...
    async def create_partitions(self, request: CreatePartitionsRequest, timeout_ms: float) -> TopicOutcomes: ...
    async def incremental_alter_configs(self, request: AlterConfigsRequest, timeout_ms: float) -> AlterConfigsReply: ...
    async def elect_leaders(self, request: ElectLeadersRequest, timeout_ms: float) -> ElectLeadersReply: ...
    async def remove_voter(self, request: RemoveVoterRequest, timeout_ms: float) -> VoterReply: ...
    async def add_voter(self, request: AddVoterRequest, timeout_ms: float) -> VoterReply: ...
    async def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, timeout_ms: float
    ) -> ProducerIdBlock: ...


class Quorum(QuorumView, Protocol):
    """The metadata quorum as this node sees it (`strandline.controller.quorum.quorum.Quorum`)."""

    def describe(self) -> QuorumDescription: ...
