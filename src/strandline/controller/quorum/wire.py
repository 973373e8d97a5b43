"""Quorum messages to bytes and back (proto/v1/quorum.proto)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from google.protobuf.message import DecodeError

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
    OffsetAndEpoch,
    ReplicaKey,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from strandline.log.batch import iter_batches, verify_crc
from strandline.log.records import decode_records
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import ZERO_UUID, NodeId
from strandline.proto.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SERVICE = "/strandline.v1.Quorum/"


@dataclass(frozen=True, slots=True)
class Method:
    """One call: its path, and how its request and response are read."""

    path: str
    read_request: Callable[[bytes], Request]
    read_response: Callable[[bytes], Response]


def encode_request(request: Request) -> bytes:
    """The bytes of a request."""
    if isinstance(request, VoteRequest):
        return pb.VoteRequest(
            cluster_id=request.cluster_id,
            candidate=_key(request.candidate),
            candidate_epoch=request.candidate_epoch,
            voter=_key(request.voter),
            last=_point(request.last),
            pre_vote=request.pre_vote,
            voters_offset=request.voters_offset,
        ).SerializeToString()
    if isinstance(request, BeginQuorumEpochRequest):
        return pb.BeginQuorumEpochRequest(
            cluster_id=request.cluster_id,
            leader_id=request.leader_id,
            epoch=request.epoch,
            voter=_key(request.voter),
        ).SerializeToString()
    if isinstance(request, EndQuorumEpochRequest):
        return pb.EndQuorumEpochRequest(
            cluster_id=request.cluster_id,
            leader_id=request.leader_id,
            epoch=request.epoch,
            preferred_candidates=[_key(key) for key in request.preferred_candidates],
        ).SerializeToString()
    if isinstance(request, FetchRequest):
        return pb.QuorumFetchRequest(
            cluster_id=request.cluster_id,
            replica=_key(request.replica),
            epoch=request.epoch,
            fetch_offset=request.fetch_offset,
            last_fetched_epoch=request.last_fetched_epoch,
            high_watermark=request.high_watermark,
            max_wait_ms=request.max_wait_ms,
            max_bytes=request.max_bytes,
            voteless=request.voteless,
            life=request.life,
        ).SerializeToString()
    return pb.QuorumFetchSnapshotRequest(
        cluster_id=request.cluster_id,
        replica=_key(request.replica),
        epoch=request.epoch,
        snapshot=_point(request.snapshot),
        position=request.position,
        max_bytes=request.max_bytes,
        voteless=request.voteless,
    ).SerializeToString()


def encode_response(response: Response, records: Buffer = b"") -> bytes:
    """The bytes of a response; `records` are the batches of a fetch response, read by the caller."""
    if isinstance(response, VoteResponse):
        return pb.VoteResponse(
            error=response.error,
            epoch=response.epoch,
            leader_id=response.leader_id,
            granted=response.granted,
            in_doubt=response.in_doubt,
        ).SerializeToString()
    if isinstance(response, BeginQuorumEpochResponse):
        return pb.BeginQuorumEpochResponse(
            error=response.error, epoch=response.epoch, leader_id=response.leader_id
        ).SerializeToString()
    if isinstance(response, EndQuorumEpochResponse):
        return pb.EndQuorumEpochResponse(
            error=response.error, epoch=response.epoch, leader_id=response.leader_id
        ).SerializeToString()
    if isinstance(response, FetchResponse):
        return pb.QuorumFetchResponse(
            error=response.error,
            epoch=response.epoch,
            leader_id=response.leader_id,
            high_watermark=response.high_watermark,
            log_start_offset=response.log_start_offset,
            diverging=None if response.diverging is None else _point(response.diverging),
            snapshot=None if response.snapshot is None else _point(response.snapshot),
            records=bytes(records),
        ).SerializeToString()
    return pb.QuorumFetchSnapshotResponse(
        error=response.error,
        epoch=response.epoch,
        leader_id=response.leader_id,
        snapshot=_point(response.snapshot),
        size=response.size,
        position=response.position,
        data=response.data,
    ).SerializeToString()


def method_of(request: Request) -> Method:
    """The call that carries this request."""
    return _METHODS[type(request)]


def methods() -> list[Method]:
    """All calls."""
    return list(_METHODS.values())


# --- values ----------------------------------------------------------------------------------------------------------


def _key(key: ReplicaKey) -> pb.ReplicaKey:
    return pb.ReplicaKey(node_id=key.node_id, directory_id=b"" if key.directory_id is None else key.directory_id.bytes)


def _read_key(message: pb.ReplicaKey) -> ReplicaKey:
    raw = message.directory_id
    if len(raw) not in (0, 16) or raw == ZERO_UUID.bytes:
        raise ProtocolError(f"a directory id has 16 bytes, not all of them zero, and is not {raw.hex()!r}")
    return ReplicaKey(_node(message.node_id), UUID(bytes=raw) if raw else None)


def _node(node_id: int) -> NodeId:
    _not_negative(node_id=node_id)
    return NodeId(node_id)


def _point(point: OffsetAndEpoch) -> pb.OffsetAndEpoch:
    return pb.OffsetAndEpoch(offset=point.offset, epoch=point.epoch)


def _read_point(message: pb.OffsetAndEpoch) -> OffsetAndEpoch:
    if message.offset < 0 or message.epoch < 0:
        raise ProtocolError(f"offset {message.offset} and epoch {message.epoch} cannot be negative")
    return OffsetAndEpoch(message.offset, message.epoch)


_Answer = (
    pb.VoteResponse
    | pb.BeginQuorumEpochResponse
    | pb.EndQuorumEpochResponse
    | pb.QuorumFetchResponse
    | pb.QuorumFetchSnapshotResponse
)


def _leader(message: _Answer) -> NodeId | None:
    return _node(message.leader_id) if message.HasField("leader_id") else None


def _not_negative(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 0:
            raise ProtocolError(f"{name} = {value} cannot be negative")


def read_batches(records: bytes) -> tuple[Batch, ...]:
    """Cut fetched bytes into batches, CRCs checked. Raises ProtocolError."""
    try:
        batches = []
        for header, view in iter_batches(records):
            verify_crc(view)
            voters = read_voters(decode_records(view)) if header.is_control else None
            batches.append(Batch(header.base_offset, header.next_offset, header.leader_epoch, view, voters))
        return tuple(batches)
    except KafkaError as error:
        raise ProtocolError(f"fetched records of the metadata log are damaged: {error}") from error


# --- requests --------------------------------------------------------------------------------------------------------


def _vote(data: bytes) -> VoteRequest:
    message = pb.VoteRequest.FromString(data)
    _not_negative(candidate_epoch=message.candidate_epoch)
    return VoteRequest(
        message.cluster_id,
        _read_key(message.candidate),
        message.candidate_epoch,
        _read_key(message.voter),
        _read_point(message.last),
        message.pre_vote,
        message.voters_offset,
    )


def _begin(data: bytes) -> BeginQuorumEpochRequest:
    message = pb.BeginQuorumEpochRequest.FromString(data)
    _not_negative(epoch=message.epoch)
    return BeginQuorumEpochRequest(
        message.cluster_id, _node(message.leader_id), message.epoch, _read_key(message.voter)
    )


def _end(data: bytes) -> EndQuorumEpochRequest:
    message = pb.EndQuorumEpochRequest.FromString(data)
    _not_negative(epoch=message.epoch)
    candidates = tuple(_read_key(key) for key in message.preferred_candidates)
    return EndQuorumEpochRequest(message.cluster_id, _node(message.leader_id), message.epoch, candidates)


def _fetch(data: bytes) -> FetchRequest:
    message = pb.QuorumFetchRequest.FromString(data)
    _not_negative(
        epoch=message.epoch,
        fetch_offset=message.fetch_offset,
        last_fetched_epoch=message.last_fetched_epoch,
        max_bytes=message.max_bytes,
        life=message.life,
    )
    return FetchRequest(
        message.cluster_id,
        _read_key(message.replica),
        message.epoch,
        message.fetch_offset,
        message.last_fetched_epoch,
        message.high_watermark,
        message.max_wait_ms,
        message.max_bytes,
        message.voteless,
        message.life,
    )


def _fetch_snapshot(data: bytes) -> FetchSnapshotRequest:
    message = pb.QuorumFetchSnapshotRequest.FromString(data)
    _not_negative(epoch=message.epoch, position=message.position, max_bytes=message.max_bytes)
    return FetchSnapshotRequest(
        message.cluster_id,
        _read_key(message.replica),
        message.epoch,
        _read_point(message.snapshot),
        message.position,
        message.max_bytes,
        message.voteless,
    )


# --- responses -------------------------------------------------------------------------------------------------------


def _vote_answer(data: bytes) -> VoteResponse:
    message = pb.VoteResponse.FromString(data)
    _not_negative(epoch=message.epoch)
    error = ErrorCode.of(message.error)
    return VoteResponse(error, message.epoch, _leader(message), message.granted, message.in_doubt)


def _begin_answer(data: bytes) -> BeginQuorumEpochResponse:
    message = pb.BeginQuorumEpochResponse.FromString(data)
    _not_negative(epoch=message.epoch)
    return BeginQuorumEpochResponse(ErrorCode.of(message.error), message.epoch, _leader(message))


def _end_answer(data: bytes) -> EndQuorumEpochResponse:
    message = pb.EndQuorumEpochResponse.FromString(data)
    _not_negative(epoch=message.epoch)
    return EndQuorumEpochResponse(ErrorCode.of(message.error), message.epoch, _leader(message))


def _fetch_answer(data: bytes) -> FetchResponse:
    message = pb.QuorumFetchResponse.FromString(data)
    _not_negative(epoch=message.epoch)
    return FetchResponse(
        ErrorCode.of(message.error),
        message.epoch,
        _leader(message),
        message.high_watermark,
        message.log_start_offset,
        _read_point(message.diverging) if message.HasField("diverging") else None,
        _read_point(message.snapshot) if message.HasField("snapshot") else None,
        read_batches(message.records),
    )


def _fetch_snapshot_answer(data: bytes) -> FetchSnapshotResponse:
    message = pb.QuorumFetchSnapshotResponse.FromString(data)
    _not_negative(epoch=message.epoch, size=message.size, position=message.position)
    return FetchSnapshotResponse(
        ErrorCode.of(message.error),
        message.epoch,
        _leader(message),
        _read_point(message.snapshot),
        message.size,
        message.position,
        message.data,
    )


def decode_request(method: Method, data: bytes) -> Request:
    """Read a request. Raises ProtocolError."""
    try:
        return method.read_request(data)
    except DecodeError as error:
        raise ProtocolError(f"{method.path}: the request does not parse: {error}") from error


def decode_response(method: Method, data: bytes) -> Response:
    """Read a response. Raises ProtocolError."""
    try:
        return method.read_response(data)
    except DecodeError as error:
        raise ProtocolError(f"{method.path}: the response does not parse: {error}") from error


_METHODS: dict[type[Request], Method] = {
    VoteRequest: Method(_SERVICE + "Vote", _vote, _vote_answer),
    BeginQuorumEpochRequest: Method(_SERVICE + "BeginQuorumEpoch", _begin, _begin_answer),
    EndQuorumEpochRequest: Method(_SERVICE + "EndQuorumEpoch", _end, _end_answer),
    FetchRequest: Method(_SERVICE + "Fetch", _fetch, _fetch_answer),
    FetchSnapshotRequest: Method(_SERVICE + "FetchSnapshot", _fetch_snapshot, _fetch_snapshot_answer),
}
