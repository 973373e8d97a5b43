"""Frames full of tiny elements: what is small on the wire must not be large in the node, nor hold it for long."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from strandline.cluster.node.dev import DevCluster
from strandline.proto.kafka.fields import REQUEST_ELEMENTS_MAX, uvarint
from tests.acceptance.helpers import eventually
from tests.acceptance.raw import receive_exactly
from tests.hostile.node import MIB, attack, endpoint, frame


def many(element: bytes, count: int) -> bytes:
    """A compact array."""
    return uvarint(count + 1) + element * count


def plain(element: bytes, count: int) -> bytes:
    """An array of the older versions."""
    return struct.pack(">i", count) + element * count


TIMEOUT = struct.pack(">i", 1000)
FETCH_HEAD = struct.pack(">iiiibii", -1, 0, 1, MIB, 0, 0, -1)
OFFSET_WANTED = struct.pack(">iiqB", 0, -1, 5, 0)
FETCH_PARTITION = struct.pack(">iiqqi", 0, -1, 0, -1, 100)

# name: (key, version, flexible, bytes of one element, the body for so many of them)
CASES: dict[str, tuple[int, int, bool, int, Callable[[int], bytes]]] = {
    "Metadata, names of nothing": (3, 4, False, 2, lambda n: plain(b"\0\0", n) + b"\0"),
    "Metadata, one topic": (3, 9, True, 3, lambda n: many(b"\2t\0", n) + bytes(4)),
    "Metadata, tagged fields": (3, 9, True, 3, lambda n: many(b"", 0) + bytes(3) + uvarint(n) + b"\x63\1a" * n),
    "DescribeConfigs, one topic": (32, 4, True, 5, lambda n: many(b"\2\2t\0\0", n) + bytes(3)),
    "DescribeConfigs, this broker": (32, 4, True, 5, lambda n: many(b"\4\0021\0\0", n) + b"\1\1\0"),
    "DescribeGroups": (15, 5, True, 2, lambda n: many(b"\2g", n) + bytes(2)),
    "FindCoordinator": (10, 4, True, 2, lambda n: b"\0" + many(b"\2g", n) + b"\0"),
    "CreateTopics": (
        19, 5, True, 12,
        lambda n: many(b"\2a" + struct.pack(">ih", 1, 1) + b"\1\1\0", n) + TIMEOUT + bytes(2),
    ),
    "ListOffsets": (
        2, 6, True, 17,
        lambda n: struct.pack(">ib", -1, 0) + many(b"\2t" + many(OFFSET_WANTED, n) + b"\0", 1) + b"\0",
    ),
    "OffsetForLeaderEpoch": (23, 4, True, 4, lambda n: struct.pack(">i", -1) + many(b"\2t\1\0", n) + b"\0"),
    "AlterReplicaLogDirs": (34, 2, True, 4, lambda n: many(b"\2/" + many(b"\2t\1\0", n) + b"\0", 1) + b"\0"),
    "DescribeLogDirs": (35, 4, True, 4, lambda n: many(b"\2t\1\0", n) + b"\0"),
    "DescribeTopicPartitions": (75, 0, True, 3, lambda n: many(b"\2t\0", n) + struct.pack(">i", 2000) + b"\xff\0"),
    "DeleteRecords": (21, 2, True, 4, lambda n: many(b"\2t\1\0", n) + TIMEOUT + b"\0"),
    "OffsetFetch, groups": (9, 8, True, 4, lambda n: many(b"\2g\0\0", n) + bytes(2)),
    "OffsetFetch, partitions": (9, 1, False, 4, lambda n: b"\0\1g" + plain(b"\0\1t" + plain(bytes(4), n), 1)),
    "LeaveGroup": (13, 4, True, 3, lambda n: b"\2g" + many(b"\1\0\0", n) + b"\0"),
    "DescribeProducers": (61, 0, True, 4, lambda n: many(b"\2t" + many(bytes(4), n) + b"\0", 1) + b"\0"),
    "DeleteTopics": (20, 5, True, 2, lambda n: many(b"\2z", n) + TIMEOUT + b"\0"),
    "CreatePartitions": (
        37, 2, True, 8, lambda n: many(b"\2z" + struct.pack(">i", 2) + b"\0\0", n) + TIMEOUT + bytes(2)
    ),
    "ElectLeaders": (43, 2, True, 4, lambda n: b"\0" + many(b"\2t\1\0", n) + TIMEOUT + b"\0"),
    "IncrementalAlterConfigs": (44, 1, True, 5, lambda n: many(b"\2\2z\1\0", n) + b"\1\0"),
    "DeleteGroups": (42, 2, True, 2, lambda n: many(b"\2g", n) + b"\0"),
    "ListGroups": (16, 4, True, 2, lambda n: many(b"\2g", n) + b"\0"),
    "Fetch": (1, 11, False, 28, lambda n: FETCH_HEAD + plain(b"\0\1t" + plain(FETCH_PARTITION, n), 1) + bytes(6)),
    "Produce": (0, 9, True, 4, lambda n: b"\0" + struct.pack(">hi", 1, 1000) + many(b"\2t\1\0", n) + b"\0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_many_elements_as_a_frame_can_hold(victim: DevCluster, name: str) -> None:
    """Four megabytes of them (of Produce, a hundred): closed with a sentence, at the cost of the frame alone."""
    key, version, flexible, size, body = CASES[name]
    count = (100 if name == "Produce" else 4) * (MIB - 100) // size
    raw = frame(key, version, body(count), flexible=flexible)
    with (
        attack(victim, grows_mib=220 if name == "Produce" else 32),
        socket.create_connection(endpoint(victim), 30) as connection,
        suppress(ConnectionError),  # closed while we still wrote
    ):
        connection.sendall(raw)
        assert connection.recv(1) == b""
    said = "tagged fields" if "tagged" in name else "elements"  # a line of each kind in ten seconds (rule A23)
    eventually(lambda: said in Path(victim.log_path(1)).read_text())  # it comes in the strangers' time (rule A44)


@pytest.mark.parametrize("name", [name for name in CASES if "tagged" not in name])
def test_as_many_elements_as_a_request_may_hold(victim: DevCluster, name: str) -> None:
    """They are answered, and nobody waits long for it."""
    key, version, flexible, _, body = CASES[name]
    with attack(victim, grows_mib=80), socket.create_connection(endpoint(victim), 30) as connection:
        connection.sendall(frame(key, version, body(REQUEST_ELEMENTS_MAX - 2), flexible=flexible))
        (length,) = struct.unpack(">i", receive_exactly(connection, 4))
        receive_exactly(connection, length)
