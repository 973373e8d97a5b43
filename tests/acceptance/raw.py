"""One Kafka request over a plain socket, for what no client would send."""

from __future__ import annotations

import socket
import struct


def exchange(address: str, api_key: int, version: int, body: bytes, timeout_s: float = 10.0) -> bytes:
    """Send one request with a header of version 1; the answer's body, its correlation id taken off."""
    host, _, port = address.rpartition(":")
    client = b"raw"
    frame = struct.pack(">hhih", api_key, version, 7, len(client)) + client + body
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        answer = receive_frame(connection)
    assert struct.unpack_from(">i", answer)[0] == 7
    return answer[4:]


def receive_frame(connection: socket.socket) -> bytes:
    """One length-prefixed frame."""
    (length,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, length)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or an AssertionError when the peer closes before."""
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, f"the connection was closed after {len(data)} of {count} bytes"
        data += part
    return data
