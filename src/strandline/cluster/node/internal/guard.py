"""Rights of callers between nodes: a caller is the node that its certificate names, and may not act for another.

A connection whose certificate names no node of this cluster is ended before anything is read from it. On other
connections each request that names its sender (a vote, a fetch, a registration, a heartbeat, a replication stream) must
name the node of the certificate. Methods that are not in the tables here are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from strandline.cluster.node.audit_partitions import APPEND_AUDIT
from strandline.cluster.node.internal import status
from strandline.cluster.node.internal.health import CHECK, WATCH
from strandline.cluster.node.internal.reflection import REFLECTION
from strandline.cluster.security.node_identity import node_of
from strandline.cluster.transactions.lost_markers import TRANSACTION_OUTCOMES
from strandline.cluster.transactions.marker_writes import WRITE_MARKERS
from strandline.cluster.transactions.verification import VERIFY_PARTITIONS
from strandline.controller import methods
from strandline.controller.operations import OPERATIONS
from strandline.controller.quorum.methods import METHODS as QUORUM_METHODS
from strandline.controller.raft import messages as raft
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import NodeId
from strandline.proto.messages.method import Method
from strandline.proto.notes import Notes
from strandline.proto.ports import RpcUnavailable, StreamHandler
from strandline.replica import frames
from strandline.replica.fetcher import STREAM_METHOD

Introduction = Callable[[bytes], NodeId | None]
"""Returns the node that a request names as its sender; None: it names none, and any node may send it. Raises
ProtocolError."""


def _anybody(_: bytes) -> None:
    return None


def _of(method: Method[Any, Any], sender: Callable[[Any], NodeId]) -> Introduction:
    return lambda data: sender(method.request.decode(data))


def _node_id(request: Any) -> NodeId:
    found: NodeId = request.node_id
    return found


_QUORUM: Mapping[type, Callable[[Any], NodeId]] = {
    raft.VoteRequest: lambda request: request.candidate.node_id,
    raft.BeginQuorumEpochRequest: lambda request: request.leader_id,
    raft.EndQuorumEpochRequest: lambda request: request.leader_id,
    raft.FetchRequest: lambda request: request.replica.node_id,
    raft.FetchSnapshotRequest: lambda request: request.replica.node_id,
}

CALLS: Mapping[str, Introduction] = {
    **{QUORUM_METHODS[kind].path: _of(QUORUM_METHODS[kind], sender) for kind, sender in _QUORUM.items()},
    **{each.method.path: _of(each.method, _node_id) if each.own else _anybody for each in OPERATIONS},
    APPEND_AUDIT.path: _of(APPEND_AUDIT, _node_id),
    WRITE_MARKERS.path: _of(WRITE_MARKERS, _node_id),
    VERIFY_PARTITIONS.path: _of(VERIFY_PARTITIONS, _node_id),
    TRANSACTION_OUTCOMES.path: _anybody,
    methods.PING.path: _anybody,
    methods.DESCRIBE_QUORUM.path: _anybody,
    CHECK: _anybody,
}
"""Functions that find the sender in the request of a call, by path."""

EACH_FRAME: Mapping[str, Introduction] = {
    methods.SESSION.path: _of(methods.SESSION, _node_id),
    WATCH: _anybody,
    REFLECTION: _anybody,
}
"""Functions that find the sender in each frame of a stream, by path."""

FIRST_FRAME: Mapping[str, Introduction] = {STREAM_METHOD: lambda frame: frames.read_hello(frame)[0].node_id}
"""Functions that find the sender in the first frame of a stream, by path; its other frames are not checked."""


class Caller(Protocol):
    """The server's end of a stream (`grpc_stream`), as used here."""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Certificate of the peer; None: no TLS."""

    @property
    def peer(self) -> str:
        """host:port of the peer."""

    async def read(self) -> bytes | None:
        """Return the next frame; None: the peer has ended its side."""

    async def read_all(self, take: Callable[[bytes], None]) -> None:
        """Call `take` with every frame until the peer ends its side."""

    async def write(self, frame: bytes) -> None:
        """Send a frame."""

    def close(self) -> None:
        """End the stream."""

    def finish(self, code: int, words: str) -> None:
        """End the stream with a gRPC status and message."""


class Guard:
    """Checks connections and requests that arrive at one node of a cluster."""

    def __init__(self, cluster_id: str, notes: Notes) -> None:
        self._cluster_id = cluster_id
        self._notes = notes

    def refuses(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Return why the holder of this certificate is no node of this cluster; None: it is one."""
        return refusal(certificate, self._cluster_id)

    def note_refused(self, where: str, reason: str) -> None:
        """Log that a connection was ended. `where`: address of its peer."""
        self._notes.warn("ended an internal connection: its peer is no node of this cluster", peer=where, reason=reason)

    def check(self, method: str, caller: Caller, request: bytes, table: Mapping[str, Introduction] = CALLS) -> None:
        """Check that the request names no other sender than the caller. Raises CallError otherwise, or for a method
        that is not in `table`."""
        node = _identity(caller)
        introduction = table.get(method)
        if introduction is None:
            words = f"no node may call {method}"
        else:
            try:
                claimed = introduction(request)
            except ProtocolError as error:
                raise status.CallError(status.UNKNOWN, str(error)) from None
            if claimed is None or claimed == node:  # rule A18/node-speaks-for-another
                return
            words = f"the certificate is node {node}'s, and the request says that it comes from node {claimed}"
        self._notes.warn("refused an internal call", method=method, peer=caller.peer, reason=words)
        raise status.CallError(status.PERMISSION_DENIED, words)

    def stream_handler(self, method: str, handler: StreamHandler) -> StreamHandler:
        """Wrap a handler so that the frames of its stream are checked when they are read."""

        async def handle(stream: Any) -> None:
            await handler(_CheckedStream(self, method, stream))

        return handle


def refusal(certificate: Mapping[str, Any] | None, cluster_id: str) -> str | None:
    """Return why the holder of a certificate is no node of a cluster; None: it is one."""
    node = node_of(certificate)
    if node is None:  # rule A18/any-certificate-is-a-node
        return "its certificate names no node (spiffe://.../strandline/node/<id>)"
    if not node.belongs_to(cluster_id):  # rule A18/node-of-any-cluster
        return f"its certificate is for cluster {node.cluster_id}, this is {cluster_id}"
    return None


def _identity(caller: Caller) -> NodeId:
    node = node_of(caller.certificate)
    if node is None:
        raise status.CallError(status.PERMISSION_DENIED, "no certificate of a node")
    return node.node_id


class _CheckedStream:
    """A stream whose frames are checked by a `Guard`; a frame that the peer may not send ends it."""

    def __init__(self, guard: Guard, method: str, stream: Caller) -> None:
        self._guard = guard
        self._method = method
        self._stream = stream
        self._once = method in FIRST_FRAME
        self._checked = False

    @property
    def peer(self) -> str:
        """host:port of the peer."""
        return self._stream.peer

    async def read(self) -> bytes | None:
        frame = await self._stream.read()
        if frame is not None:
            self._check(frame)
        return frame

    async def read_all(self, take: Callable[[bytes], None]) -> None:
        def take_checked(frame: bytes) -> None:
            self._check(frame)
            take(frame)

        await self._stream.read_all(take_checked)

    def _check(self, frame: bytes) -> None:
        if self._once and self._checked:  # rule A18/session-is-checked-once
            return
        try:
            self._guard.check(self._method, self._stream, frame, FIRST_FRAME if self._once else EACH_FRAME)
        except status.CallError as error:
            self._stream.finish(error.code, str(error))
            raise RpcUnavailable(f"{self._method} from {self._stream.peer}: {error}") from None
        self._checked = True

    async def write(self, frame: bytes) -> None:
        await self._stream.write(frame)

    def close(self) -> None:
        self._stream.close()
