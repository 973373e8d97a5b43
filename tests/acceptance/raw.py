"""One Kafka request over a plain socket, for what no client would send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from crc32c import crc32c

from strandline.log.batch import CRC_START, HEADER_SIZE, Record, build_batch


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


def produce_with_header_names(address: str, topic: str, names: Sequence[bytes], value: bytes) -> None:
    """Write a record to partition 0, whose leader listens there: its headers have these names, which no client of ours
    would write, and the values b"0", b"1", ..."""
    stand_ins = [chr(ord("a") + number) * len(name) for number, name in enumerate(names)]
    headers = [(name, b"%d" % number) for number, name in enumerate(stand_ins)]
    batch = build_batch([Record(0, 1_000, None, value, tuple(headers))])
    behind = batch.index(value, HEADER_SIZE) + len(value)
    for stand_in, name in zip(stand_ins, names, strict=True):
        place = batch.index(stand_in.encode(), behind)
        behind = place + len(name)
        batch[place:behind] = name
    struct.pack_into(">I", batch, CRC_START - 4, crc32c(memoryview(batch)[CRC_START:]))
    there = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(there)) + there
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    answer = exchange(address, 0, 7, body, 40.0)
    (error,) = struct.unpack_from(">h", answer, 4 + 2 + len(there) + 4 + 4)
    assert error == 0, f"error {error}"
