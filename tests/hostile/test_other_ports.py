"""Hostile peers on the port between nodes and on the HTTP port."""

from __future__ import annotations

import random
import socket
import struct
import time
from contextlib import suppress

import grpc
import pytest

from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.internal.options import MESSAGE_BYTES_MAX
from strandline.controller import methods
from strandline.controller.operations import OPERATIONS
from strandline.controller.quorum.methods import METHODS as QUORUM_METHODS
from strandline.controller.raft.messages import BeginQuorumEpochRequest, OffsetAndEpoch, ReplicaKey, VoteRequest
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, NodeId
from strandline.replica import frames
from strandline.replica.fetcher import STREAM_METHOD
from tests.acceptance.helpers import make_topic, send_all
from tests.hostile.node import MIB, attack, internal_endpoint

UNARY = [*(method.path for method in QUORUM_METHODS.values()), *(each.method.path for each in OPERATIONS)]


def address(cluster: DevCluster) -> str:
    host, port = internal_endpoint(cluster)
    return f"{host}:{port}"


def test_unknown_methods_and_mutated_messages(victim: DevCluster) -> None:
    """UNIMPLEMENTED, or a refusal, or an answer to a message that happens to parse; the node goes on."""
    rng = random.Random(11)
    with attack(victim), grpc.insecure_channel(address(victim)) as channel:
        for name in (
            "/",
            "/x",
            "/strandline.v1.Quorum/",
            "/strandline.v1.Quorum/" + "A" * 3000,
            "/grpc.health.v1.Health/X",
        ):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(name)(b"", timeout=10)
            assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)
        for path in UNARY:
            for size in (0, 2, 60):
                with suppress(grpc.RpcError):
                    channel.unary_unary(path)(rng.randbytes(size), timeout=10)


def test_messages_larger_than_any(victim: DevCluster) -> None:
    """RESOURCE_EXHAUSTED, one after the other."""
    options = [("grpc.max_send_message_length", -1)]
    with attack(victim, grows_mib=200), grpc.insecure_channel(address(victim), options=options) as channel:
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(UNARY[0])(bytes(MESSAGE_BYTES_MAX + 1), timeout=30)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_votes_and_leaders_of_another_cluster(victim: DevCluster) -> None:
    """A well-formed call with a wrong cluster id changes nothing: INCONSISTENT_CLUSTER_ID."""
    stranger = ReplicaKey(NodeId(9), None)
    asked = [
        VoteRequest("another", stranger, 10_000, ReplicaKey(NodeId(1), None), OffsetAndEpoch(10**9, 9999), False),
        BeginQuorumEpochRequest("another", NodeId(9), 10_000, ReplicaKey(NodeId(1), None)),
    ]
    with attack(victim), grpc.insecure_channel(address(victim)) as channel:
        for request in asked:
            method = QUORUM_METHODS[type(request)]
            data = channel.unary_unary(method.path)(method.request.encode(request), timeout=10)
            assert method.reply.decode(data).error is ErrorCode.INCONSISTENT_CLUSTER_ID
    make_topic(victim, "led")
    send_all(victim, "led", [b"still led"])


def test_replication_streams_of_strangers(victim: DevCluster) -> None:
    """A wrong cluster, a wrong node, no hello at all, garbage after a good one: rejected, or ended."""
    rng = random.Random(12)
    hellos = [
        frames.Hello(frames.PROTOCOL_VERSION, NodeId(9), NodeId(1), BrokerEpoch(1), "another"),
        frames.Hello(frames.PROTOCOL_VERSION + 9, NodeId(9), NodeId(1), BrokerEpoch(1), "another"),
        frames.Hello(frames.PROTOCOL_VERSION, NodeId(9), NodeId(77), BrokerEpoch(1), "x" * 60_000),
    ]
    firsts = [frames.pack_hello(hello) for hello in hellos]
    firsts += [b"", b"\0" * 5000, rng.randbytes(300), firsts[0][:7]]
    with attack(victim), grpc.insecure_channel(address(victim)) as channel:
        for method in (STREAM_METHOD, methods.SESSION.path):
            for first in firsts:
                call = channel.stream_stream(method)(iter([first, rng.randbytes(1000)]), timeout=10)
                with suppress(grpc.RpcError):
                    list(call)


def test_bytes_that_are_no_http2(victim: DevCluster) -> None:
    """Garbage, HTTP/2 frames that lie about their length, a hundred connections that say nothing."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    rng = random.Random(13)
    lies = [
        preface + struct.pack(">I", 0xFFFFFF)[1:] + bytes([kind, 0xFF]) + struct.pack(">I", 1) + rng.randbytes(200)
        for kind in range(10)
    ]
    with attack(victim, grows_mib=32):
        silent = [socket.create_connection(internal_endpoint(victim), 10) for _ in range(100)]
        for raw in [*lies, rng.randbytes(100_000), b"\0" * MIB, METADATA_LIKE]:
            with socket.create_connection(internal_endpoint(victim), 10) as connection, suppress(ConnectionError):
                connection.sendall(raw)
        for one in silent:
            one.close()


METADATA_LIKE = struct.pack(">ihhi", 16, 3, 4, 7) * 100


def test_http_answers_that_nobody_takes(victim: DevCluster) -> None:
    """Metrics asked for as fast as the socket takes it, for a second, by a client that never reads: it is read no
    further, and what it would get is not made."""
    host, _, port = victim.http(1).rpartition(":")
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    with attack(victim, grows_mib=32), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.settimeout(0.2)
        deadline = time.monotonic() + 1
        with suppress(TimeoutError, ConnectionError):
            while time.monotonic() < deadline:
                connection.sendall(request)


def posted(path: str, body: bytes) -> bytes:
    """A request with JSON that is nested deeper than can be read."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_http_that_is_none(victim: DevCluster) -> None:
    """Endless heads, endless bodies, garbage: refused."""
    host, _, port = victim.http(1).rpartition(":")
    rng = random.Random(14)
    raws = [
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * MIB,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
        b"POST /faults HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + bytes(MIB),
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
        *(posted(path, b"[" * 60_000) for path in ("/trace", "/faults")),
        *(rng.randbytes(500) for _ in range(20)),
    ]
    with attack(victim, grows_mib=32):
        for raw in raws:
            with socket.create_connection((host, int(port)), 10) as connection, suppress(ConnectionError):
                connection.sendall(raw)
                with suppress(OSError):  # ENOTCONN: it has been refused already
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
