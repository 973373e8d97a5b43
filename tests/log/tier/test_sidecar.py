"""Sidecars and keys: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.segment import OffsetIndex, TimeIndex
from strandline.log.tier.names import log_key, parse_key, partition_prefix, sidecar_key
from strandline.log.tier.sidecar import (
    HEAD_BYTES,
    PARTS_BYTES_MAX,
    SidecarHeader,
    decode_head,
    decode_indexes,
    decode_producers,
    encode_sidecar,
    for_cluster,
)
from strandline.log.transactions import AbortedTransaction
from strandline.proto.errors import CorruptLogError, StoreError
from strandline.proto.ids import Offset
from strandline.proto.tier import TieredSegment

UUIDS = st.uuids()


Made = tuple[SidecarHeader, OffsetIndex, TimeIndex, bytes, list[AbortedTransaction]]


@st.composite
def sidecars(draw: st.DrawFn) -> Made:
    """A header, and indexes that are of it."""
    base = draw(st.integers(0, 1 << 50))
    span = draw(st.integers(1, 1 << 30))
    size = draw(st.integers(61, 1 << 30))
    numbers = sorted(draw(st.sets(st.integers(0, span - 1), max_size=8)))
    positions = sorted(draw(st.sets(st.integers(0, size - 1), min_size=len(numbers), max_size=len(numbers))))
    index, times = OffsetIndex(), TimeIndex()
    for number, position in zip(numbers, positions, strict=True):
        index.append(number, position)
        times.append(draw(st.integers(0, 1 << 45)), number)
    starts = [base, *(base + number for number in numbers if number)]
    epochs = sorted(draw(st.sets(st.integers(0, 1 << 31), min_size=len(starts), max_size=len(starts))))
    aborted = [  # markers may lie behind the segment, first batches before it
        AbortedTransaction(draw(st.integers(0, 1 << 50)), draw(st.integers(0, at - 1)), at, draw(st.integers(0, at)))
        for at in sorted(base + 1 + more for more in draw(st.sets(st.integers(0, 2 * span), max_size=4)))
    ]
    header = SidecarHeader(
        cluster_id=draw(st.text()),
        topic=draw(st.text()),
        topic_id=draw(UUIDS),
        partition=draw(st.integers(0, 1 << 31)),
        base_offset=base,
        end_offset=base + span,
        size_bytes=size,
        max_timestamp_ms=draw(st.integers(-1, 1 << 45)),
        epochs=tuple(zip(epochs, starts, strict=True)),
        log_crc=draw(st.integers(0, (1 << 32) - 1)),
        leader_epoch=draw(st.integers(0, 1 << 31)),
        aborted=len(aborted),
    )
    return header, index, times, draw(st.binary(max_size=64)), aborted


def decoded(data: bytes) -> tuple[Any, ...]:
    head = decode_head(data[:HEAD_BYTES], "k")
    found = decode_indexes(head, data[HEAD_BYTES : head.indexes_end], "k")
    producers = decode_producers(head, data[head.indexes_end :], "k")
    times = found.time_index
    return (
        found.header,
        list(found.index.offsets),
        list(found.index.positions),
        list(times.timestamps),
        list(times.offsets),
        producers,
        found.aborted.entries,
    )


@given(sidecars())
def test_a_sidecar_comes_back(made: Made) -> None:
    header, index, times, producers, aborted = made
    data = encode_sidecar(*made)
    assert decode_head(data[:HEAD_BYTES], "k").size_bytes == len(data)
    assert data[5] == (2 if aborted else 1), "builds of before transactions read what has none"
    assert (b'"aborted"' in data[:2000]) >= bool(aborted)
    assert decoded(data) == (
        header,
        list(index.offsets),
        list(index.positions),
        list(times.timestamps),
        list(times.offsets),
        producers,
        aborted,
    )


@given(sidecars())
def test_another_cluster_has_the_same_but_its_name(made: Made) -> None:
    whole = encode_sidecar(*made)
    taken = for_cluster(whole, "k", "another")
    assert decoded(taken) == (replace(made[0], cluster_id="another"), *decoded(whole)[1:])
    assert for_cluster(taken, "k", made[0].cluster_id) == whole


@settings(max_examples=300)
@given(sidecars(), st.data())
def test_a_damaged_one_is_refused(made: Made, data: st.DataObject) -> None:
    """Whatever bit has turned over, or where it is cut."""
    whole = encode_sidecar(*made)
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (bytes(damaged), whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"x"):
        with pytest.raises(CorruptLogError):
            decoded(bad)


def sealed(parts: list[bytes]) -> bytes:
    """Parts with CRCs that hold, as somebody would make them who means ill."""
    numbers = [number for part in parts for number in (len(part), crc32c(part))]
    head = struct.pack(">4sH8I", b"SLTS", 1, *numbers)
    return b"".join((head, struct.pack(">I", crc32c(head)), *parts))


GOOD: dict[str, Any] = {
    "cluster_id": "c",
    "topic": "t",
    "topic_id": str(UUID(int=1)),
    "partition": 0,
    "base_offset": 10,
    "end_offset": 20,
    "size_bytes": 1000,
    "max_timestamp_ms": -1,
    "epochs": [[1, 10], [2, 15]],
    "log_crc": 0,
    "leader_epoch": 3,
}


@pytest.mark.parametrize(
    "change",
    [
        {"partition": -1},
        {"partition": True},
        {"base_offset": 1 << 63},
        {"base_offset": 1.5},
        {"topic": 7},
        {"topic_id": "none"},
        {"epochs": []},
        {"epochs": [[1, 11]]},
        {"epochs": [[1, 10], [1, 15]]},
        {"epochs": [[1, 10], [2, 20]]},
        {"epochs": [[1, 10], [2]]},
        {"epochs": 5},
        {"size_bytes": "1000"},
    ],
)
def test_a_header_of_impossible_facts_is_refused(change: dict[str, Any]) -> None:
    decoded(sealed([json.dumps(GOOD).encode(), b"", b"", b""]))
    with pytest.raises(CorruptLogError):
        decoded(sealed([json.dumps({**GOOD, **change}).encode(), b"", b"", b""]))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b"9" * 10_000])
def test_a_header_that_is_no_header_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptLogError):
        decoded(sealed([text, b"", b"", b""]))


@pytest.mark.parametrize(
    ("index", "times"),
    [
        (b"x", b""),
        (b"", b"x"),
        (struct.pack(">II", 1, 1000), b""),
        (struct.pack(">II", 10, 5), b""),
        (struct.pack(">IIII", 2, 5, 1, 6), b""),
        (b"", struct.pack(">qI", 5, 10)),
        (b"", struct.pack(">qIqI", 5, 1, 5, 2)),
    ],
)
def test_an_index_that_is_not_of_the_segment_is_refused(index: bytes, times: bytes) -> None:
    with pytest.raises(CorruptLogError):
        decoded(sealed([json.dumps(GOOD).encode(), index, times, b""]))


@pytest.mark.parametrize(
    ("aborted", "entries"),
    [
        (1, b"x" * 33),
        (2, struct.pack(">hqqqq", 0, 7, 10, 12, 13)),
        (1, struct.pack(">hqqqq", 1, 7, 10, 12, 13)),
        (1, struct.pack(">hqqqq", 0, -1, 10, 12, 13)),
        (1, struct.pack(">hqqqq", 0, 7, 12, 12, 13)),
        (1, struct.pack(">hqqqq", 0, 7, 10, 12, 14)),
        (1, struct.pack(">hqqqq", 0, 7, 3, 9, 10)),
        (2, struct.pack(">hqqqq", 0, 7, 10, 12, 13) * 2),
        (-1, b""),
    ],
)
def test_aborted_transactions_that_cannot_be_are_refused(aborted: int, entries: bytes) -> None:
    def made(aborted: int, entries: bytes) -> bytes:
        return sealed([json.dumps({**GOOD, "aborted": aborted}).encode(), b"", entries, b""])

    good = struct.pack(">hqqqq", 0, 7, 10, 12, 13)
    assert decoded(made(1, good))[-1] == [AbortedTransaction(7, 10, 12, 13)]
    with pytest.raises(CorruptLogError):
        decoded(made(aborted, entries))


def test_lengths_are_bounded_before_anything_is_fetched() -> None:
    """What a head announces is what a reader asks the store for."""
    for place, most in enumerate(PARTS_BYTES_MAX):
        numbers = [0] * 8
        numbers[2 * place] = most + 1
        head = struct.pack(">4sH8I", b"SLTS", 1, *numbers)
        with pytest.raises(CorruptLogError, match="at most"):
            decode_head(head + struct.pack(">I", crc32c(head)), "k")


@pytest.mark.parametrize("parts", [[0] * 8, [1 << 31] * 8])
def test_one_of_a_newer_build_is_not_damaged(parts: list[int]) -> None:
    """Rule B35: what is damaged can be left out of a restore; what is newer waits for a newer build."""
    head = struct.pack(">4sH8I", b"SLTS", 3, *parts)
    said = "k has the format 3, and this build, Strandline .*, reads it up to 2. Install the build that wrote it"
    with pytest.raises(StoreError, match=said):
        decode_head(head + struct.pack(">I", crc32c(head)), "k")
    with pytest.raises(CorruptLogError, match="CRC"):
        decode_head(head + struct.pack(">I", crc32c(head) ^ 1), "k")


# ---------------------------------------------------------------------- keys


@given(
    st.from_regex(r"[A-Za-z0-9_-]{1,22}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True),
    UUIDS,
    st.integers(0, 1 << 31),
    st.integers(0, (1 << 63) - 1),
    UUIDS,
)
def test_a_key_says_what_it_names(
    cluster_id: str, topic: str, topic_id: UUID, partition: int, base: int, segment_id: UUID
) -> None:
    """Topics whose names hold dashes and other topics' ids too."""
    segment = TieredSegment(segment_id, Offset(base), Offset(base + 1), 1, -1, (), 0)
    prefix = partition_prefix(cluster_id, topic, topic_id, partition)
    for key, suffix in ((log_key(prefix, segment), ".log"), (sidecar_key(prefix, segment), ".index")):
        name = parse_key(key)
        assert name is not None
        assert (name.cluster_id, name.topic, name.topic_id, name.partition) == (cluster_id, topic, topic_id, partition)
        assert (name.base_offset, name.segment_id, name.suffix, name.prefix) == (base, segment_id, suffix, prefix)
        assert parse_key(f"x/{key}") is parse_key(f"{key}x") is parse_key(key.replace("/", "//", 1)) is None
