"""The calls between the nodes of the quorum, one for each request of `raft.messages`, which defines the messages.

The core of a leader says in a Fetch's answer which records go into it, and the driver reads them: so the bytes of the
records enter beside the message, and come out of it as batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.controller.quorum.control_records import read_voters
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from strandline.log.batch import check_content, decode_records, iter_batches
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.messages.forms import STAND_INS, StandIn
from strandline.proto.messages.mapper import mapper_of
from strandline.proto.messages.method import Method, method

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SERVICE = "/strandline.v1.Quorum/"


def read_batches(records: bytes) -> tuple[Batch, ...]:
    """Cut fetched bytes into batches, CRCs checked. Raises ProtocolError."""
    try:
        batches = []
        for header, view in iter_batches(records):
            check_content(header, view)
            voters = read_voters(decode_records(view)) if header.is_control else None
            batches.append(Batch(header.base_offset, header.next_offset, header.leader_epoch, view, voters))
        return tuple(batches)
    except KafkaError as error:
        raise ProtocolError(f"fetched records of the metadata log are damaged: {error}") from error


STAND_INS[tuple[Batch, ...]] = StandIn(bytes, lambda batches: b"".join([batch.data for batch in batches]), read_batches)

METHODS: dict[type[Request], Method[Any, Any]] = {
    VoteRequest: method(_SERVICE + "Vote", VoteRequest, VoteResponse),
    BeginQuorumEpochRequest: method(_SERVICE + "BeginQuorumEpoch", BeginQuorumEpochRequest, BeginQuorumEpochResponse),
    EndQuorumEpochRequest: method(_SERVICE + "EndQuorumEpoch", EndQuorumEpochRequest, EndQuorumEpochResponse),
    FetchRequest: method(_SERVICE + "Fetch", FetchRequest, FetchResponse),
    FetchSnapshotRequest: method(_SERVICE + "FetchSnapshot", FetchSnapshotRequest, FetchSnapshotResponse),
}
"""Request -> the call that carries it."""


def encode_response(response: Response, records: Buffer = b"") -> bytes:
    """The bytes of a response; `records` are the batches of a Fetch's answer, as the caller read them."""
    message = mapper_of(type(response)).to_message(response)
    if records:
        message.batches = bytes(records)
    data: bytes = message.SerializeToString()
    return data
