"""Requests and answers of every API and version, and what an attacker makes of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from strandline.client.network import SUPPORTED
from strandline.cluster.broker.table import APIS
from strandline.log.batch import Record, build_batch
from strandline.proto.kafka import schema as walker
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import uvarint

EVERY_ANSWER = [(api, version) for api, known in SUPPORTED.items() for version in range(known.low, known.high + 1)]
"""That the client understands."""

EVERY_VERSION = [(key, version) for key, api in sorted(APIS.items()) for version in range(api.first, api.last + 1)]

NAMES = ("t", "t", "g", "", "no-such", "a\0b", "ж" * 40, "x" * 300, "__consumer_offsets", "1", "range", "consumer")
NUMBERS = (0, 0, 1, 1, 2, 3, 5, 17, -1, -2, 1000, 30_000)
EXTREMES = (127, -128, 32767, -32768, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
BATCH = bytes(build_batch([Record(0, 5, b"k", b"v"), Record(1, 5, None, b"w", (("h", None),))]))
BLOBS = (b"", b"\0", b"\0\1\0\0\0\1\0\1t", BATCH, BATCH[:-1], BATCH * 2, bytes(300))


class Message(NamedTuple):
    """One message: `marks` are the places (start, end) of its lengths and counts in `body`."""

    key: int
    version: int
    body: bytes
    marks: tuple[tuple[int, int], ...]
    flexible: bool


def request(key: int, version: int, rng: random.Random) -> Message:
    """A request that parses, with values that may mean something or nothing."""
    return _message(Api(key), version, "request", rng)


def answer(key: int, version: int, rng: random.Random) -> Message:
    """An answer that parses, likewise."""
    return _message(Api(key), version, "response", rng)


def _message(api: Api, version: int, side: str, rng: random.Random) -> Message:
    kind = walker.kind_of(api, version, side)
    out = bytearray()
    with _marking() as marks:
        walker.entity_codec(kind).write(out, _values(kind, rng))
    inside = tuple((start, end) for start, end in marks if end <= len(out))
    return Message(api, version, bytes(out), inside, bool(kind.__flexible__))


@contextmanager
def _marking() -> Iterator[list[tuple[int, int]]]:
    """Note where the walker writes lengths and counts."""
    marks: list[tuple[int, int]] = []
    write_length = walker._write_length

    def write(out: bytearray, size: int | None, layout: struct.Struct | None, nullable: bool) -> None:
        start = len(out)
        write_length(out, size, layout, nullable)
        marks.append((start, len(out)))

    walker._write_length = write
    try:
        yield marks
    finally:
        walker._write_length = write_length


def _values(kind: Any, rng: random.Random) -> dict[str, Any]:
    return {
        item.name: _value(item, rng)
        for item in fields(kind)
        if "tag" not in item.metadata or (rng.random() < 0.3 and item.default is not MISSING)
    }


def _value(item: Any, rng: random.Random) -> Any:
    kind, nullable = walker.without_none(item.type)
    array = get_origin(kind) is tuple
    if nullable and rng.random() < 0.2 and (array or item.metadata.get("kafka_type") not in walker.NUMBERS):
        return None  # kio has None for a time of -1, which is a number on the wire
    if array:
        inner, _ = walker.without_none(get_args(kind)[0])
        count = rng.choice((0, 1, 1, 1, 2, 3))
        return [_one(inner, item, rng) for _ in range(count)]
    return _one(kind, item, rng)


def _one(kind: Any, item: Any, rng: random.Random) -> Any:
    if hasattr(kind, "__flexible__"):
        return _values(kind, rng)
    kafka_type = item.metadata["kafka_type"]
    if kafka_type == "string":
        return rng.choice(NAMES)
    if kafka_type in ("bytes", "records"):
        return BATCH if kafka_type == "records" and rng.random() < 0.5 else rng.choice(BLOBS)
    if kafka_type == "bool":
        return rng.random() < 0.5
    if kafka_type == "uuid":
        return rng.choice((None, UUID(int=1), UUID(int=rng.getrandbits(128))))
    if kafka_type == "float64":
        return rng.choice((0.0, -1.0, float("nan"), float("inf")))
    return _number(walker.NUMBERS.get(kafka_type, ">h"), rng)


def _number(layout: str, rng: random.Random) -> int:
    bits = 8 * struct.calcsize(layout)
    low, high = (0, 2**bits - 1) if layout[1].isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return max(low, min(high, rng.choice(EXTREMES if rng.random() < 0.25 else NUMBERS)))


# ---------------------------------------------------------------- what is done to them

LIES = (0, 1, 2, 100, 127, 128, 16384, 2**21, 2**28, 2**31 - 1)


def _lie(sent: Message, rng: random.Random) -> bytes:
    """One length or count says something else."""
    if not sent.marks:
        return _flip(sent, rng)
    start, end = rng.choice(sent.marks)
    number = rng.choice(LIES) if rng.random() < 0.7 else rng.getrandbits(31)
    if sent.flexible:
        lie = rng.choice((uvarint(number), b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x01"))
    elif end - start == 2:
        lie = struct.pack(">h", rng.choice((number & 0x7FFF, -1, -2, -32768)))
    else:
        lie = struct.pack(">i", rng.choice((number, -1, -2, -(2**31))))
    return sent.body[:start] + lie + sent.body[end:]


def _flip(sent: Message, rng: random.Random) -> bytes:
    body = bytearray(sent.body)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if body:
            body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(body)


def _cut(sent: Message, rng: random.Random) -> bytes:
    return sent.body[: rng.randrange(len(sent.body) + 1)]


def _extend(sent: Message, rng: random.Random) -> bytes:
    return sent.body + rng.randbytes(rng.choice((1, 2, 8, 400)))


def _nest(sent: Message, rng: random.Random) -> bytes:
    """The request within itself, at a random place."""
    at = rng.randrange(len(sent.body) + 1)
    return sent.body[:at] + sent.body * rng.choice((1, 2, 20)) + sent.body[at:]


def _whole(sent: Message, rng: random.Random) -> bytes:
    return sent.body


MUTATIONS = (_whole, _flip, _flip, _lie, _lie, _cut, _extend, _nest)


def mutated(sent: Message, rng: random.Random) -> bytes:
    """The body after one attack."""
    return rng.choice(MUTATIONS)(sent, rng)
