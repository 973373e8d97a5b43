"""File with a node's epoch and vote: it is durable before the node acts on a vote or an epoch (rules A1, A2).

The content is Kafka's JSON (QuorumStateData version 1) with additional fields and a checksum. It is written to two
files: `quorum-state` beside the metadata log, and `quorum-promise` in the root of the data directory (rule A14, see
`memory`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from crc32c import crc32c

from strandline.controller.raft.log_summary import EMPTY
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey
from strandline.controller.raft.ready import ElectionState
from strandline.log.checkpoints import decode_id, encode_id
from strandline.log.disk import Disk, read_file, write_file_durably
from strandline.proto.errors import CorruptLogError, FatalError
from strandline.proto.ids import ZERO_UUID, NodeId
from strandline.proto.json_text import read_json

STATE = "quorum-state"
PROMISE = "quorum-promise"


@dataclass(frozen=True, slots=True)
class Remembered:
    """State that a node of the quorum must never lose.

    Attributes:
        election: the node's epoch, and its vote or the leader in it.
        directory_id: directory id that the node uses; None in a file from a version that did not write it.
        has_vote: False after the node lost its log. It then votes only if a voter set contains `directory_id`.
        former_id: directory id that the node had as a voter before it lost its log; None if it never did.
        former_epoch: last epoch in which the node may have voted under `former_id`.
        held: offset and epoch; everything before was committed, and durable in this node's log.
        sequence: number of writes so far; of two copies, the one with the higher number is newer.
        voters: number of voters, including this node, when it last voted in a quorum with dynamic voters
            (kraft.version 1); 0 if it never did.
    """

    election: ElectionState
    directory_id: UUID | None = None
    has_vote: bool = True
    former_id: UUID | None = None
    former_epoch: int = 0
    held: OffsetAndEpoch = EMPTY
    sequence: int = 0
    voters: int = 0


class StateFile:
    """Reader and writer of one of the two files."""

    def __init__(self, disk: Disk, directory: str, name: str = STATE) -> None:
        self._disk = disk
        self.path = f"{directory}/{name}"

    def read(self) -> Remembered | None:
        """The state written last; None if the file does not exist.

        Raises:
            CorruptLogError: the file exists, but its content is damaged.
        """
        if not self._disk.exists(self.path):
            return None
        data = read_file(self._disk, self.path)
        try:
            return _decode(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"not a {self.path.rpartition('/')[2]} file ({error})"
            # rule A1/damaged-state-is-no-state
            raise CorruptLogError(self.path, 0, None, reason, _advice(self.path)) from error

    def write(self, state: Remembered) -> None:
        """Make `state` durable.

        Raises:
            DiskError: the file cannot be written.
            FatalError: the encoded state would not be read back as the same; nothing was written (schedule 62).
        """
        data = _encode(state)
        if not _reads_back(data, state):  # rule A17/state-that-cannot-be-read-back-is-written
            raise FatalError(f"internal error: the quorum state {state} cannot be written down")
        write_file_durably(self._disk, self.path, data)  # rule A1/vote-not-durable


def _advice(path: str) -> str:
    return (
        f"This node may have voted; starting without that memory could elect two leaders. Restore {path}. If that "
        "cannot be, move the node's __cluster_metadata-0 directory and its quorum-promise file away and run "
        "`strandline format --ignore-formatted --without-vote` with its configuration: it starts without a vote, "
        "fetches everything from the other controllers, and `strandline quorum restore-vote` gives it its vote back"
    )


def _encode(state: Remembered) -> bytes:
    election = state.election
    voted = election.voted_for
    fields = {
        "leaderId": -1 if election.leader_id is None else election.leader_id,
        "leaderEpoch": election.epoch,
        "votedId": -1 if voted is None else voted.node_id,
        "votedDirectoryId": _uuid_to_text(voted.directory_id if voted is not None else None),
        "data_version": 1,
        "doubtOffset": -1 if election.doubt is None else election.doubt.offset,
        "doubtEpoch": -1 if election.doubt is None else election.doubt.epoch,
        "directoryId": _uuid_to_text(state.directory_id),
        "hasVote": state.has_vote,
        "formerDirectoryId": _uuid_to_text(state.former_id),
        "formerEpoch": state.former_epoch,
        "heldOffset": state.held.offset,
        "heldEpoch": state.held.epoch,
        "sequence": state.sequence,
        "voters": state.voters,
    }
    return _dump(fields | {"crc": crc32c(_dump(fields))})


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _reads_back(data: bytes, state: Remembered) -> bool:
    try:
        return _decode(data) == state
    except ValueError:
        return False


def _decode(data: bytes) -> Remembered:
    fields = read_json(data)
    if "crc" in fields and fields.pop("crc") != crc32c(_dump(fields)):
        raise ValueError("its checksum does not hold")
    if fields["data_version"] not in (0, 1):
        raise ValueError(f"data_version {fields['data_version']} is newer than this program")
    leader, epoch, voted = (_number(fields, name, -1, 2**31 - 1) for name in ("leaderId", "leaderEpoch", "votedId"))
    if epoch < 0:
        raise ValueError(f"leaderEpoch {epoch}")
    voted_for = None
    if voted >= 0:
        voted_for = ReplicaKey(NodeId(voted), _uuid_from_text(fields.get("votedDirectoryId", "")))
    election = ElectionState(epoch, leader_id=NodeId(leader) if leader >= 0 else None, voted_for=voted_for)
    if "sequence" not in fields:
        return Remembered(election)
    doubt = OffsetAndEpoch(_number(fields, "doubtOffset", -1), _number(fields, "doubtEpoch", -1, 2**31 - 1))
    election = replace(election, doubt=doubt if min(doubt) >= 0 else None)
    if type(fields["hasVote"]) is not bool:
        raise ValueError(f"hasVote {fields['hasVote']!r} is neither true nor false")
    return Remembered(
        election,
        directory_id=_uuid_from_text(fields["directoryId"]),
        has_vote=fields["hasVote"],
        former_id=_uuid_from_text(fields["formerDirectoryId"]),
        former_epoch=_number(fields, "formerEpoch", 0, 2**31 - 1),
        held=OffsetAndEpoch(_number(fields, "heldOffset", 0), _number(fields, "heldEpoch", 0, 2**31 - 1)),
        sequence=_number(fields, "sequence", 0),
        voters=_number({"voters": 0} | fields, "voters", 0, 2**31 - 1),
    )


def _number(fields: dict[str, Any], name: str, low: int, high: int = 2**63 - 1) -> int:
    number = fields[name]
    if type(number) is not int or not low <= number <= high:
        raise ValueError(f"{name} {number!r} is no whole number from {low} to {high}")
    return number


def _uuid_to_text(value: UUID | None) -> str:
    return encode_id(ZERO_UUID if value is None else value)


def _uuid_from_text(text: str) -> UUID | None:
    """Parse an id; None for the zero id, which Kafka writes for "none"."""
    value = decode_id(text) if text else ZERO_UUID
    return None if value == ZERO_UUID else value
