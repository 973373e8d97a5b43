"""Batches that are much more than they seem: refused or taken at a bounded cost, in the broker and in our consumer."""

from __future__ import annotations

import gzip
import socket
import struct
import time
from collections.abc import Callable

import pytest
import zstandard
from crc32c import crc32c

from strandline.cluster.node.dev import DevCluster
from strandline.log.batch import Record, assemble_batch, build_batch
from strandline.log.compression import Codec, compress, decompress
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.fields import read_uvarint, uvarint
from tests.acceptance.helpers import make_topic
from tests.acceptance.raw import receive_frame
from tests.hostile.node import MIB, attack, endpoint, frame


def snappy(*blocks: bytes) -> bytes:
    """snappy-java's framing around blocks that are anything."""
    return b"".join(
        [b"\x82SNAPPY\x00", struct.pack(">ii", 1, 1), *(struct.pack(">i", len(block)) + block for block in blocks)]
    )


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "zstd, a gigabyte in 33 KB": (Codec.ZSTD, lambda: zstandard.ZstdCompressor().compress(bytes(MIB)) * 1000),
    "gzip, 200 MB": (Codec.GZIP, lambda: gzip.compress(bytes(200 * MIB), 6)),
    "lz4, 200 MB": (Codec.LZ4, lambda: compress(Codec.LZ4, bytes(200 * MIB))),
    "snappy, a block that claims 4 GB": (Codec.SNAPPY, lambda: snappy(b"\xff\xff\xff\xff\x0f\0")),
    "gzip, 50,000 empty members": (Codec.GZIP, lambda: gzip.compress(b"") * (MIB // 20 - 10)),
    "snappy, 200,000 empty blocks": (Codec.SNAPPY, lambda: snappy(*[b"\0"] * (MIB // 5 - 100))),
    "zstd, 100,000 empty frames": (Codec.ZSTD, lambda: zstandard.ZstdCompressor().compress(b"") * (MIB // 9 - 100)),
}  # fmt: skip


def packed(codec: Codec, body: bytes, count: int = 1) -> bytes:
    """A batch whose records are `body`, compressed already."""
    plain = assemble_batch(body, count=count, last_offset_delta=count - 1, base_timestamp=0, max_timestamp=0)
    plain[22] |= codec
    plain[17:21] = struct.pack(">I", crc32c(memoryview(plain)[21:]))
    return bytes(plain)


def produce(cluster: DevCluster, topic: str, partitions: dict[int, bytes]) -> list[int]:
    """Error codes of one request, by its partitions."""
    body = b"\0" + struct.pack(">hi", 1, 10_000) + b"\2" + uvarint(len(topic) + 1) + topic.encode()
    body += uvarint(len(partitions) + 1)
    for number, batch in partitions.items():
        body += struct.pack(">i", number) + uvarint(len(batch) + 1) + batch + b"\0"
    with socket.create_connection(endpoint(cluster), 60) as connection:
        connection.sendall(frame(0, 9, body + b"\0\0", flexible=True))
        answer = receive_frame(connection)
    errors = []
    position = 4 + 1 + 1 + 1 + len(topic)
    position += len(uvarint(len(partitions) + 1))
    for _ in partitions:
        errors.append(struct.unpack_from(">h", answer, position + 4)[0])
        position += 4 + 2 + 8 + 8 + 8 + 1
        length, position = read_uvarint(answer, position)  # the sentence
        position += max(length - 1, 0)
        assert answer[position] == 0, "no tagged fields for a client that is not ours"
        position += 1
    return errors


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_through_produce(victim: DevCluster, name: str) -> None:
    """Refused, with at most 32 times max.message.bytes unpacked; nobody waits long."""
    codec, make = BOMBS[name]
    with attack(victim, grows_mib=140):
        [error] = produce(victim, "t", {0: packed(codec, make())})
    refused = (ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)
    assert error in refused


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_in_our_consumer(name: str) -> None:
    """What a broker let through costs a reader a bounded time and is refused."""
    codec, make = BOMBS[name]
    body = make()
    began = time.thread_time()
    with pytest.raises(KafkaError):
        decompress(codec, body, 64 * MIB) or _nothing()
    assert time.thread_time() - began < 5, "seconds of the processor's time"


def _nothing() -> None:
    raise KafkaError(ErrorCode.INVALID_RECORD, "no record at all")


def test_many_small_bombs_in_one_request(victim: DevCluster) -> None:
    """Two hundred batches of two kilobytes, each of which unpacks to 24 MB: some are taken, the rest are told to come
    again, and the loop is free meanwhile."""
    make_topic(victim, "many", partitions=200)
    bomb = bytes(build_batch([Record(0, 5, None, bytes(24 * MIB))], codec=Codec.ZSTD))
    assert len(bomb) < 4096
    with attack(victim, grows_mib=140):
        errors = produce(victim, "many", dict.fromkeys(range(200), bomb))
    assert set(errors) <= {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}
    assert errors[0] == ErrorCode.NONE
    assert errors[-1] == ErrorCode.REQUEST_TIMED_OUT


def test_one_partition_many_times_in_one_request(victim: DevCluster) -> None:
    """Its first batch alone is taken."""
    batch = bytes(build_batch([Record(0, 5, None, b"x")]))
    part = struct.pack(">i", 0) + uvarint(len(batch) + 1) + batch + b"\0"
    body = b"\0" + struct.pack(">hi", 1, 10_000) + b"\2\2t" + uvarint(4) + part * 3 + b"\0\0"
    with attack(victim), socket.create_connection(endpoint(victim), 60) as connection:
        connection.sendall(frame(0, 9, body, flexible=True))
        answer = receive_frame(connection)
    assert answer.count(b"stands in the request twice") == 2
