"""What the controller and the brokers need of the quorum; `controller.quorum.quorum.Quorum` is the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from strandline.controller.quorum.api import LeaderAndEpoch
from strandline.proto.ids import Endpoint, NodeId


class QuorumView(Protocol):
    """Who leads, and where."""

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch: ...

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        """The internal endpoint of a voter; None for a node that is none."""


class QuorumLog(QuorumView, Protocol):
    """The metadata log, as its leader writes it."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will have."""

    @property
    def max_append_bytes(self) -> int:
        """The largest batch that `append` takes."""

    def append(self, epoch: int, records: Sequence[bytes]) -> int:
        """Append records as one atomic batch; answers the last offset. Raises NotLeader with nothing written."""

    async def remove_voter(self, node_id: NodeId, directory_id: UUID) -> tuple[NodeId, ...]:
        """Take a vote; who votes then, once that is committed. Raises KafkaError."""

    async def add_voter(self, node_id: NodeId, directory_id: UUID) -> tuple[NodeId, ...]:
        """Give a vote; who votes then, once that is committed. Raises KafkaError."""

    def resign(self) -> None:
        """Give up the leadership of the quorum."""
