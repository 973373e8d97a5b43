"""What a broker asks of the active controller about tiers (KIP-405); see `strandline.controller.api`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from strandline.proto.ids import BrokerEpoch, NodeId, TopicId
from strandline.proto.messages.fields import Int32, Int64
from strandline.proto.tier import TierChange, TierOutcome


@dataclass(frozen=True, slots=True)
class AlterTiersRequest:
    """A broker tells what it has copied to the object store or deletes there, and what of deleted topics is gone.

    Attributes:
        changes: of partitions that it leads, each once.
        reaped: deleted topics (`MetadataImage.deleted_tiers`) of which it has found no object any more.
    """

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    changes: Annotated[tuple[TierChange, ...], 3] = ()
    reaped: Annotated[tuple[TopicId, ...], 4] = ()


@dataclass(frozen=True, slots=True)
class AlterTiersReply:
    """One outcome a change, in order."""

    outcomes: Annotated[tuple[TierOutcome, ...], 1]
