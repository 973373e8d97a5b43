"""Between nodes over TLS: nobody but a node comes in, and no node speaks for another."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs
from tests.cluster.security.tls_case import ca

from strandline.cluster.node.audit_partitions import APPEND_AUDIT, AppendAuditRequest
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.internal import guard
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.node.internal.internal_tls import InternalTls
from strandline.controller import broker_api, methods, operations
from strandline.controller.quorum.methods import METHODS
from strandline.controller.raft import messages as raft
from strandline.proto.errors import ConfigError
from strandline.proto.ids import BrokerEpoch, Endpoint, NodeId, Offset
from strandline.proto.ports import RpcRejected, RpcUnavailable, Stream
from strandline.proto.system import SystemClock
from strandline.proto.tls import TlsSettings
from strandline.replica import frames
from strandline.replica.fetcher import STREAM_METHOD

CLUSTER = "this-cluster"
ANYWHERE = Endpoint("127.0.0.1", 0)


def settings(path: Path) -> TlsSettings:
    return TlsSettings(keystore_location=str(path), truststore_location=str(ca().file))


def tls(node_id: int, path: Path | None = None) -> InternalTls:
    return InternalTls(
        settings(path or ca().node(node_id)),
        SystemClock(),
        node_id=NodeId(node_id),
        cluster_id=CLUSTER,
        check_host=True,
    )


class Impostor(InternalTls):
    """It has whatever certificate, and looks at nothing."""

    def __init__(self, path: Path | None) -> None:
        from strandline.proto.tls import client_context

        given = settings(path) if path is not None else TlsSettings(truststore_location=str(ca().file))
        self._context = client_context(given, alpn=("h2",))

    @property
    def for_connecting(self) -> ssl.SSLContext:
        return self._context

    def refuses(self, certificate: Mapping[str, Any] | None) -> str | None:
        return None


class Called:
    """Node 1, which keeps what reaches its handlers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.endpoint = ANYWHERE

    async def unary(self, path: str, request: bytes) -> bytes:
        self.requests.append((path, request))
        return b"done"

    async def stream(self, path: str, stream: Stream) -> None:
        while (frame := await stream.read()) is not None:
            self.requests.append((path, frame))
            await stream.write(b"done")


@asynccontextmanager
async def node_one() -> AsyncIterator[Called]:
    called = Called()
    rpc = GrpcRpc(random.Random(1))
    rpc.secure(tls(1))

    def unary(path: str) -> Callable[[bytes], Awaitable[bytes]]:
        return lambda request: called.unary(path, request)

    def stream(path: str) -> Callable[[Stream], Awaitable[None]]:
        return lambda stream: called.stream(path, stream)

    streams = [*guard.EACH_FRAME, *guard.FIRST_FRAME]
    more = {path: unary(path) for path in (*guard.CALLS, "/strandline.v1.Other/Unknown")}
    server = await rpc.serve(ANYWHERE, more, {path: stream(path) for path in streams if "reflection" not in path})
    called.endpoint = server.endpoint
    try:
        yield called
    finally:
        await server.close()
        await rpc.close()


def caller(path_or_id: Path | int | None) -> GrpcRpc:
    """Another end: the node of this number, or whoever has this certificate (None: without one)."""
    rpc = GrpcRpc(random.Random(2))
    rpc.secure(tls(path_or_id) if isinstance(path_or_id, int) else Impostor(path_or_id))
    return rpc


def key(node_id: int) -> raft.ReplicaKey:
    return raft.ReplicaKey(NodeId(node_id), UUID(int=node_id + 1))


def requests(node_id: int) -> dict[str, bytes]:
    """What node `node_id` sends of itself, by path, of calls."""
    here, end = Endpoint("127.0.0.1", 1), raft.OffsetAndEpoch(0, 0)
    quorum: list[Any] = [
        raft.VoteRequest(CLUSTER, key(node_id), 1, key(1), end, False),
        raft.BeginQuorumEpochRequest(CLUSTER, NodeId(node_id), 1, key(1)),
        raft.EndQuorumEpochRequest(CLUSTER, NodeId(node_id), 1, ()),
        raft.FetchRequest(CLUSTER, key(node_id), 1, 0, 0, 0, 0, 0),
        raft.FetchSnapshotRequest(CLUSTER, key(node_id), 1, end, 0, 1),
    ]
    epoch = BrokerEpoch(1)
    of_brokers: dict[Any, Any] = {
        operations.REGISTER_BROKER.method: broker_api.RegisterBrokerRequest(
            CLUSTER, NodeId(node_id), UUID(int=1), {}, here
        ),
        operations.ALTER_PARTITION.method: broker_api.AlterPartitionRequest(NodeId(node_id), epoch, ()),
        operations.ALTER_TIERS.method: broker_api.AlterTiersRequest(NodeId(node_id), epoch),
        APPEND_AUDIT: AppendAuditRequest(NodeId(node_id), 0, b"lines"),
        operations.ALLOCATE_PRODUCER_IDS.method: broker_api.AllocateProducerIdsRequest(NodeId(node_id), epoch),
    }
    return {METHODS[type(request)].path: METHODS[type(request)].request.encode(request) for request in quorum} | {
        method.path: method.request.encode(request) for method, request in of_brokers.items()
    }


def first_frames(node_id: int) -> dict[str, bytes]:
    """The same of streams."""
    beat = broker_api.Heartbeat(NodeId(node_id), BrokerEpoch(1), Offset(0), False, False)
    hello = frames.Hello(frames.PROTOCOL_VERSION, NodeId(node_id), NodeId(1), BrokerEpoch(1), CLUSTER)
    return {methods.SESSION.path: methods.SESSION.request.encode(beat), STREAM_METHOD: frames.pack_hello(hello)}


def test_every_method_of_a_node_stands_in_the_table(tmp_path: Path) -> None:
    """What a node serves, all of it, and nothing besides."""
    from strandline.cluster.node.format import format_directory
    from strandline.cluster.node.internal.health import Health
    from strandline.cluster.node.internal.reflection import reflection_handlers
    from strandline.cluster.node.node import Node
    from strandline.cluster.node.world import system_world

    async def main() -> None:
        world = system_world()
        given = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:1",
            "log.dirs": str(tmp_path),
        }
        config = NodeConfig({**given, "controller.quorum.voters": "1@127.0.0.1:1"})
        format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng)
        node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
        unary, streams = node._handlers()
        health = Health()
        assert {*unary, *health.unary} == {*guard.CALLS}
        assert {*streams, *health.streams, *reflection_handlers([])} == {*guard.EACH_FRAME, *guard.FIRST_FRAME}
        await node._abandon()

    asyncio.run(main())


def test_a_node_speaks_for_itself_alone() -> None:
    """Votes, fetches, registration, changes of ISR and tier, sessions, replication, the audit: of node 2 they are taken
    from node 2 alone."""

    async def main() -> None:
        async with node_one() as called:
            rpc = caller(2)
            for path, request in requests(2).items():
                assert await rpc.call(called.endpoint, path, request, timeout_ms=5000) == b"done"
            for path, frame in first_frames(2).items():
                stream = await rpc.open_stream(called.endpoint, path, timeout_ms=5000)
                await stream.write(frame)
                assert await stream.read() == b"done"
                stream.close()
            taken = len(called.requests)
            assert taken == 12
            for path, request in requests(3).items():
                with pytest.raises(RpcRejected, match=r"the certificate is node 2's, and the request says .* node 3"):
                    await rpc.call(called.endpoint, path, request, timeout_ms=5000)
            for path, frame in first_frames(3).items():
                stream = await rpc.open_stream(called.endpoint, path, timeout_ms=5000)
                await stream.write(frame)
                with pytest.raises(RpcRejected, match="the certificate is node 2's"):
                    await stream.read()
            with pytest.raises(RpcRejected, match="no node may call"):
                await rpc.call(called.endpoint, "/strandline.v1.Other/Unknown", b"", timeout_ms=5000)
            assert len(called.requests) == taken
            await rpc.close()

    with capture_logs() as logs:
        asyncio.run(main())
    assert "refused an internal call" in [line["event"] for line in logs]


def test_a_session_is_one_nodes_to_its_end() -> None:
    """A later heartbeat of another node ends it."""

    async def main() -> None:
        async with node_one() as called:
            rpc = caller(2)
            stream = await rpc.open_stream(called.endpoint, methods.SESSION.path, timeout_ms=5000)
            await stream.write(first_frames(2)[methods.SESSION.path])
            assert await stream.read() == b"done"
            await stream.write(first_frames(3)[methods.SESSION.path])
            with pytest.raises(RpcRejected):
                await stream.read()
            assert len(called.requests) == 1
            await rpc.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("nobody", lambda: None),
        ("a client", lambda: ca().client("mallory")),
        ("a server", lambda: ca().issue("web", "web", hosts=("127.0.0.1",))),
        ("two nodes", lambda: ca().issue("two", "two", uris=[f"spiffe://x/strandline/node/{n}" for n in (2, 3)])),
        ("another cluster's node", lambda: ca().node(2, cluster_id="other")),
        ("a node of something else", lambda: ca().issue("k8s", "k8s", uris=["spiffe://x/node/2"])),
        ("a name like a node's", lambda: ca().issue("dns", "node-2", hosts=("node-2",))),
    ],
)
def test_who_is_no_node_gets_nothing(name: str, make: Callable[[], Path | None]) -> None:
    """Not a vote, not a stream, not even the health."""

    async def main() -> None:
        async with node_one() as called:
            rpc = caller(make())
            for path, request in {**requests(2), guard.CHECK: b"", methods.PING.path: b""}.items():
                with pytest.raises(RpcUnavailable):
                    await rpc.call(called.endpoint, path, request, timeout_ms=5000)
                await asyncio.sleep(0.12)  # the wait after a failed attempt
                if name == "nobody" or path.endswith("Fetch"):
                    break
            with pytest.raises(RpcUnavailable):
                await (await rpc.open_stream(called.endpoint, STREAM_METHOD, timeout_ms=5000)).read()
            assert called.requests == []
            await rpc.close()

    with capture_logs() as logs:
        asyncio.run(main())
    events = {line["event"] for line in logs if line["log_level"] == "warning"}
    assert events == {
        "a TLS handshake failed"
        if name == "nobody"
        else "ended an internal connection: its peer is no node of this cluster"
    }


def test_a_peer_in_plaintext_gets_nothing() -> None:
    async def main() -> None:
        async with node_one() as called:
            plain = GrpcRpc(random.Random(3))
            with pytest.raises(RpcUnavailable):
                await plain.call(called.endpoint, methods.PING.path, b"", timeout_ms=5000)
            await plain.close()
            assert called.requests == []

    asyncio.run(main())


def test_a_node_trusts_no_server_that_is_no_node() -> None:
    """A client's certificate, or one for another host, does not make a node."""

    async def main() -> None:
        server = ca().issue("web", "web", hosts=("127.0.0.1",))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(server)
        context.set_alpn_protocols(["h2"])
        received: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.read(10_000))
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = listening.sockets[0].getsockname()[1]
        rpc = caller(2)
        with pytest.raises(RpcUnavailable, match="its certificate names no node"):
            await rpc.call(Endpoint("127.0.0.1", port), methods.PING.path, b"secret", timeout_ms=5000)
        await rpc.close()
        context.load_cert_chain(ca().issue("far", "far", hosts=("far",), uris=["spiffe://x/strandline/node/9"]))
        rpc = caller(2)
        with pytest.raises(RpcUnavailable, match="does not count: IP address mismatch"):
            await rpc.call(Endpoint("127.0.0.1", port), methods.PING.path, b"secret", timeout_ms=5000)
        await rpc.close()
        listening.close()
        assert not any(b"secret" in data for data in received)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ca().node(2), "this one names node 2"),
        (lambda: ca().client("alice"), "this one names no node|certificate that nodes trust"),
        (lambda: ca().issue("plain", "plain", hosts=("127.0.0.1",)), "this one names no node"),
        (lambda: ca().node(1, cluster_id="other"), "this one is for other"),
        (lambda: ca().node(1, days=-1), "certificate has expired"),
    ],
)
def test_a_certificate_with_which_no_node_would_let_it_in_stops_a_node(make: Callable[[], Path], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        tls(1, make())
    assert refused.value.key == "ssl.keystore.location"


def test_a_changed_certificate_of_another_node_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "node.pem"
    path.write_bytes(ca().node(1).read_bytes())
    own = tls(1, path)
    before = own.for_connecting
    path.write_bytes(ca().node(2).read_bytes())
    with capture_logs() as logs:
        own.certificates.look()
    assert own.for_connecting is before
    assert "this one names node 2" in logs[0]["error"]
    path.write_bytes(ca().node(1).read_bytes())
    own.certificates.look()
    assert own.for_connecting is not before
