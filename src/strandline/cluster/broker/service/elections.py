"""Elections that an operator asks for."""

from __future__ import annotations

from strandline.cluster.broker.service.authorizer import CLUSTER, Operation, allowed
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.controller.api import ElectionOutcome, ElectLeadersRequest
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


class Elections(Base):
    """The election operation of the service."""

    async def elect_leaders(
        self, context: RequestContext, request: ElectLeadersRequest, timeout_ms: float
    ) -> tuple[ElectionOutcome, ...]:
        """One outcome for each partition asked for, or, where none is named, that needed an election.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, or what kept the controller from answering.
        """
        if not allowed(self.authorizer, context, Operation.ALTER, CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return (await self.controller.elect_leaders(request, timeout_ms)).outcomes
