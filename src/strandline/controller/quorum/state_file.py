"""The quorum-state file: Kafka's JSON (QuorumStateData version 1), durable before any vote or epoch is acted on.

A missing file means a node that never voted. A damaged one stops the node: going on could vote twice (rules A1, A2).
"""

from __future__ import annotations

import json
from uuid import UUID

from strandline.controller.raft.messages import ReplicaKey
from strandline.controller.raft.ready import ElectionState
from strandline.log.checkpoints import decode_id, encode_id
from strandline.log.disk import Disk, read_file, write_file_durably
from strandline.proto.errors import CorruptLogError, FatalError
from strandline.proto.ids import ZERO_UUID, NodeId

FILE_NAME = "quorum-state"
_ADVICE = (
    "This node may have voted; starting without that memory could elect two leaders. Restore the file, or remove the "
    "node from the quorum and format it anew under a new directory id"
)


class StateFile:
    """Reads and replaces `<directory>/quorum-state`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"

    def read(self) -> ElectionState | None:
        """What was written last; None if nothing ever was.

        Raises:
            CorruptLogError: the file is there but is not what was written.
        """
        if not self._disk.exists(self._path):
            return None
        data = read_file(self._disk, self._path)
        try:
            return _decode(data)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptLogError(self._path, 0, None, f"not a quorum-state file ({error})", _ADVICE) from error

    def write(self, state: ElectionState) -> None:
        """Make `state` durable.

        Raises:
            DiskError
            FatalError: it would not be read back as it is; nothing was written (schedule 62).
        """
        data = _encode(state)
        if not _reads_back(data, state):
            raise FatalError(f"internal error: the quorum state {state} cannot be written down")
        write_file_durably(self._disk, self._path, data)


def _encode(state: ElectionState) -> bytes:
    voted = state.voted_for
    fields = {
        "leaderId": -1 if state.leader_id is None else state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": -1 if voted is None else voted.node_id,
        "votedDirectoryId": _uuid_to_text(voted.directory_id if voted is not None else None),
        "data_version": 1,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _reads_back(data: bytes, state: ElectionState) -> bool:
    try:
        return _decode(data) == state
    except ValueError:
        return False


def _decode(data: bytes) -> ElectionState:
    fields = json.loads(data)
    if fields["data_version"] not in (0, 1):
        raise ValueError(f"data_version {fields['data_version']} is newer than this program")
    numbers = [fields["leaderId"], fields["leaderEpoch"], fields["votedId"]]
    if not all(type(number) is int for number in numbers):
        raise ValueError("ids and epochs must be whole numbers")
    leader, epoch, voted = numbers
    if not 0 <= epoch < 2**31 or not all(-1 <= node < 2**31 for node in (leader, voted)):
        raise ValueError(f"leaderEpoch {epoch}, leaderId {leader}, votedId {voted}")
    voted_for = None
    if voted >= 0:
        voted_for = ReplicaKey(NodeId(voted), _uuid_from_text(fields.get("votedDirectoryId", "")))
    return ElectionState(epoch, leader_id=NodeId(leader) if leader >= 0 else None, voted_for=voted_for)


def _uuid_to_text(value: UUID | None) -> str:
    return encode_id(ZERO_UUID if value is None else value)


def _uuid_from_text(text: str) -> UUID | None:
    """None for the zero id, which Kafka writes for "none"."""
    value = decode_id(text) if text else ZERO_UUID
    return None if value == ZERO_UUID else value
