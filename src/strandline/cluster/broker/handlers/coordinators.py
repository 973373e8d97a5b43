"""FindCoordinator (10): the broker that coordinates a group or a transactional id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.brokers import LOOK_MS, SETTLE_MS_MAX, Brokers
from strandline.cluster.broker.request import (
    NO_TRANSACTIONS,
    Authorizer,
    RequestContext,
    allowed,
    group,
    refusal,
    transaction,
)
from strandline.cluster.groups.coordinator import Coordinator
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.cluster.transactions.transaction_coordinator import TransactionCoordinator
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import Operation, Resource
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, Endpoint, NodeId
from strandline.proto.kafka.apis import Api
from strandline.proto.steps import Mapped

MANY_SINCE = 4
KIND_SINCE = 1

NO_SHARE_GROUPS = "share groups are not served by this version of Strandline"


class CoordinatorKind(IntEnum):
    """Kafka's `CoordinatorType`."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class CoordinatorAnswer(NamedTuple):
    """The coordinator of `key`, or an error and NO_NODE."""

    key: str
    error: ErrorCode
    message: str = ""
    node_id: NodeId = NO_NODE
    endpoint: Endpoint | None = None


class CoordinatorsHandler:
    """Answers FindCoordinator; the first request of a kind creates the topic in which coordinators keep their state."""

    def __init__(
        self,
        *,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        brokers: Brokers,
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._image = image
        self._authorizer = authorizer
        self._brokers = brokers

    async def find(self, call: Call) -> Any:
        """Answer FindCoordinator: one answer per key."""
        kind = call.request.key_type if call.context.version >= KIND_SINCE else 0
        return _respond(call, await self._find(call, kind, _keys(call)))

    async def _find(self, call: Call, kind: int, keys: list[str]) -> list[CoordinatorAnswer]:
        """Return one answer per key.

        Errors: COORDINATOR_NOT_AVAILABLE, on which clients ask again; GROUP_AUTHORIZATION_FAILED,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED (also while transactions are off, as every client gives up on it at once);
        INVALID_REQUEST for other kinds.
        """
        if kind == CoordinatorKind.GROUP:
            return await call.connection.each(
                lambda key: self._find_one(call.context, key, self._groups, group(key)), keys
            )
        if kind == CoordinatorKind.TRANSACTION and self._image().transaction_version > 0:
            return await call.connection.each(
                lambda key: self._find_one(call.context, key, self._transactions, transaction(key)), keys
            )
        if kind == CoordinatorKind.TRANSACTION:
            error, message = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS
        elif kind == CoordinatorKind.SHARE:
            error, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_SHARE_GROUPS
        else:
            error, message = ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {kind}"
        return [CoordinatorAnswer(key, error, message) for key in keys]

    async def _find_one(
        self, context: RequestContext, key: str, coordinator: Coordinator[Any], resource: Resource
    ) -> CoordinatorAnswer:
        if not allowed(self._authorizer, context, Operation.DESCRIBE, resource):
            denied = refusal(context, Operation.DESCRIBE, resource)
            return CoordinatorAnswer(key, denied.code, denied.message)
        try:
            await coordinator.ensure_topic()
        except KafkaError as error:
            return CoordinatorAnswer(key, error.code, error.message)
        leader = await self._settled_leader(coordinator, key)
        endpoint = None if leader is None else self._brokers.endpoint_of(leader, context.peer.listener)
        if leader is None or endpoint is None:
            return CoordinatorAnswer(
                key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's partition has no leader at the moment"
            )
        return CoordinatorAnswer(key, ErrorCode.NONE, "", leader, endpoint)

    async def _settled_leader(self, coordinator: Coordinator[Any], key: str) -> NodeId | None:
        """Return the leader of the key's partition, or None. A leader in doubt (`Brokers.doubtful_leaders`) is returned
        only after `SETTLE_MS_MAX`: the client may ask because that broker died, and would lose a second if it got the
        same broker again."""
        waited_ms = 0.0
        while True:
            placed = coordinator.placed(key)
            leader = None if placed is None or not placed.has_leader else placed.leader
            doubted = leader is None or leader in self._brokers.doubtful_leaders()
            if not doubted or waited_ms >= SETTLE_MS_MAX:
                return leader
            await asyncio.sleep(LOOK_MS / 1000)
            waited_ms += LOOK_MS


def _keys(call: Call) -> list[str]:
    return list(call.request.coordinator_keys) if call.context.version >= MANY_SINCE else [call.request.key]


def _respond(call: Call, answers: list[CoordinatorAnswer]) -> Any:
    if call.context.version < MANY_SINCE:
        return part(**_where(answers[0]))
    return part(coordinators=Mapped(lambda one: part(key=one.key, **_where(one)), answers))


def _where(one: CoordinatorAnswer) -> dict[str, Any]:
    """Return the response fields for one key: its coordinator, or the error."""
    host, port = ("", -1) if one.endpoint is None else one.endpoint
    return {
        "node_id": one.node_id,
        "host": host,
        "port": port,
        "error_code": one.error,
        "error_message": one.message or None,
    }


ROWS = (by_schema(Api.FIND_COORDINATOR, (0, 6), CoordinatorsHandler, CoordinatorsHandler.find),)
