"""Requests to the active controller about moves of partitions (KIP-455); see `strandline.controller.api`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.messages.fields import Int32


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The replicas that a partition shall have, the preferred leader first; None: the move under way is cancelled."""

    topic: Annotated[str, 1]
    partition: Annotated[int, Int32(2)]
    replicas: Annotated[tuple[NodeId, ...] | None, 3] = None


@dataclass(frozen=True, slots=True)
class AlterReassignmentsRequest:
    """Move partitions; each succeeds or fails alone.

    `keeps_factor`: a move that changes the number of replicas is refused (KIP-860).
    """

    moves: Annotated[tuple[PartitionMove, ...], 1]
    keeps_factor: Annotated[bool, 2] = False


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """Outcome of one partition: its move is in progress, finished or cancelled."""

    topic: Annotated[str, 1]
    partition: Annotated[int, Int32(2)]
    error: Annotated[ErrorCode, 3]
    message: Annotated[str, 4] = ""


@dataclass(frozen=True, slots=True)
class AlterReassignmentsReply:
    """One outcome for each partition, in order."""

    outcomes: Annotated[tuple[MoveOutcome, ...], 1]
