"""FindCoordinator: says plainly that there is none yet."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from strandline.cluster.service.base import NO_TRANSACTIONS, Base
from strandline.cluster.service.context import RequestContext
from strandline.proto.error_codes import ErrorCode

NO_GROUPS = (
    "consumer groups are not served by this version of Strandline: assign partitions to the consumer by hand, "
    "without a group"
)


class CoordinatorKind(IntEnum):
    """Kafka's `CoordinatorType`."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class CoordinatorAnswer(NamedTuple):
    key: str
    error: ErrorCode
    message: str


class Coordinators(Base):
    """The coordinator operation of the service."""

    def find_coordinators(self, context: RequestContext, kind: int, keys: list[str]) -> list[CoordinatorAnswer]:
        """One answer a key: COORDINATOR_NOT_AVAILABLE for groups, which clients ask again about; for transactional ids
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED, on which every client gives up at once; INVALID_REQUEST for other kinds.
        """
        if kind == CoordinatorKind.TRANSACTION:
            error, message = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS
        elif kind in (CoordinatorKind.GROUP, CoordinatorKind.SHARE):
            error, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_GROUPS
        else:
            error, message = ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {kind}"
        return [CoordinatorAnswer(key, error, message) for key in keys]
