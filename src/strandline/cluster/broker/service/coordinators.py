"""FindCoordinator: which broker coordinates a group."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import NamedTuple

from strandline.cluster.broker.service.authorizer import Operation, allowed, group
from strandline.cluster.broker.service.base import NO_TRANSACTIONS, Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, Endpoint, NodeId

NO_SHARE_GROUPS = "share groups are not served by this version of Strandline"

NEWS_MS = 20.0
"""How often is looked whether a leader in doubt has been replaced."""

SETTLE_MS_MAX = 500.0
"""A leader that vanished just now is replaced, or fenced, or lives after all, within this time."""

DOUBT_MS = 1000.0


class CoordinatorKind(IntEnum):
    """Kafka's `CoordinatorType`."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class CoordinatorAnswer(NamedTuple):
    """Who coordinates `key`, or an error and NO_NODE."""

    key: str
    error: ErrorCode
    message: str = ""
    node_id: NodeId = NO_NODE
    endpoint: Endpoint | None = None


class Coordinators(Base):
    """The coordinator operation of the service."""

    async def find_coordinators(self, context: RequestContext, kind: int, keys: list[str]) -> list[CoordinatorAnswer]:
        """One answer a key. The first question for a group creates the topic that groups are kept in.

        Errors: COORDINATOR_NOT_AVAILABLE, on which clients ask again; GROUP_AUTHORIZATION_FAILED; for transactional ids
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED, on which every client gives up at once; INVALID_REQUEST for other kinds.
        """
        if kind == CoordinatorKind.GROUP:
            return [await self._find_group(context, key) for key in keys]
        if kind == CoordinatorKind.TRANSACTION:
            error, message = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS
        elif kind == CoordinatorKind.SHARE:
            error, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_SHARE_GROUPS
        else:
            error, message = ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {kind}"
        return [CoordinatorAnswer(key, error, message) for key in keys]

    async def _find_group(self, context: RequestContext, group_id: str) -> CoordinatorAnswer:
        if not allowed(self.authorizer, context, Operation.DESCRIBE, group(group_id)):
            return CoordinatorAnswer(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        try:
            await self.groups.ensure_topic()
        except KafkaError as error:
            return CoordinatorAnswer(group_id, error.code, error.message)
        leader = await self._settled_leader(group_id)
        endpoint = None if leader is None else self.endpoint_of(leader, context.peer.listener)
        if leader is None or endpoint is None:
            return CoordinatorAnswer(
                group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's partition has no leader at the moment"
            )
        return CoordinatorAnswer(group_id, ErrorCode.NONE, "", leader, endpoint)

    async def _settled_leader(self, group_id: str) -> NodeId | None:
        """A client that asks has just lost its coordinator, perhaps. To be told the dead one again would cost it a
        second; so a leader whose stream broke a moment ago is not named before it is known whether it stays."""
        waited_ms = 0.0
        while True:
            placed = self.groups.placed(group_id)
            leader = None if placed is None or not placed.has_leader else placed.leader
            doubted = leader is None or leader in self.replicas.lost_leaders(DOUBT_MS)
            if not doubted or waited_ms >= SETTLE_MS_MAX:
                return leader
            await asyncio.sleep(NEWS_MS / 1000)
            waited_ms += NEWS_MS
