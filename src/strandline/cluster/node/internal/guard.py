"""Rights of callers between nodes: a caller is the node of its certificate, and speaks for no other.

A connection whose certificate names no node of this cluster is ended before anything that it sent is read. On any other
each request that introduces its sender (a vote, a fetch, a registration, a heartbeat, a replication stream) must
introduce the node of the certificate. What is not in the table is served to nobody.
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
"""The node that a request says it comes from; None: it says nothing, and any node may send it. Raises ProtocolError."""


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
"""Introductions of calls, by path."""

EACH_FRAME: Mapping[str, Introduction] = {
    methods.SESSION.path: _of(methods.SESSION, _node_id),
    WATCH: _anybody,
    REFLECTION: _anybody,
}
"""Introductions of streams whose every frame may introduce its sender, by path."""

FIRST_FRAME: Mapping[str, Introduction] = {STREAM_METHOD: lambda frame: frames.read_hello(frame)[0].node_id}
"""Introductions of streams that are introduced by their first frame, by path."""


class Caller(Protocol):
    """A stream on the serving side (`grpc_stream`)."""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Certificate of the other side."""

    @property
    def peer(self) -> str:
        """host:port of the other side."""

    async def read(self) -> bytes | None:
        """The next frame."""

    async def read_all(self, take: Callable[[bytes], None]) -> None:
        """Every frame from now on."""

    async def write(self, frame: bytes) -> None:
        """Send one."""

    def close(self) -> None:
        """End it."""

    def finish(self, code: int, words: str) -> None:
        """End it with a status."""


class Guard:
    """Holds the table against what comes in at one node of one cluster."""

    def __init__(self, cluster_id: str, notes: Notes) -> None:
        self._cluster_id = cluster_id
        self._notes = notes

    def refuses(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Reason why the holder of this certificate is no node of this cluster; None for one that is."""
        return refusal(certificate, self._cluster_id)

    def note_refused(self, where: str, reason: str) -> None:
        """Log that a connection was ended."""
        self._notes.warn("ended an internal connection: its peer is no node of this cluster", peer=where, reason=reason)

    def check(self, method: str, caller: Caller, request: bytes, table: Mapping[str, Introduction] = CALLS) -> None:
        """Check that the caller may send this request. Raises CallError if it may not."""
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
        """The handler, given a stream whose frames are checked as they are read."""

        async def handle(stream: Any) -> None:
            await handler(_CheckedStream(self, method, stream))

        return handle


def refusal(certificate: Mapping[str, Any] | None, cluster_id: str) -> str | None:
    """Reason why the holder of a certificate is no node of a cluster; None for one that is."""
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
    """A stream of a peer; a frame that it may not send ends it."""

    def __init__(self, guard: Guard, method: str, stream: Caller) -> None:
        self._guard = guard
        self._method = method
        self._stream = stream
        self._once = method in FIRST_FRAME
        self._checked = False

    @property
    def peer(self) -> str:
        """host:port of the other side."""
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
