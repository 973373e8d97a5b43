"""What an operator asks of the quorum's leader: who votes. The part of `strandline.controller.api` about voters."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from strandline.proto.ids import NodeId


@dataclass(frozen=True, slots=True)
class RemoveVoterRequest:
    """Take the vote of a replica that lost its log, or its disk; its place in the quorum stays vacant (KIP-853).

    Attributes:
        directory_id: under which it voted; any where the voter set leaves that open.

    Raises (KafkaError): see `controller.raft.voter_changes.remove_voter`.
    """

    node_id: NodeId
    directory_id: UUID


@dataclass(frozen=True, slots=True)
class AddVoterRequest:
    """Give a vacant place in the quorum to a replica that has caught up (KIP-853).

    Raises (KafkaError): see `controller.raft.voter_changes.add_voter`.
    """

    node_id: NodeId
    directory_id: UUID


@dataclass(frozen=True, slots=True)
class VoterReply:
    """The change is committed.

    Attributes:
        voters: the nodes that vote now.
    """

    voters: tuple[NodeId, ...]
