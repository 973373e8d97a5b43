"""Frames of the replication stream: what is packed is read; what lies or is torn raises ProtocolError and no more."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import BrokerEpoch, LeaderEpoch, NodeId
from strandline.replica import frames

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
u32 = st.integers(0, 2**32 - 1)


class Heard:
    """Both sides at once: notes every entry."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *values: self.entries.append((name, *values))


def data_entry(channel: int, batches: bytes) -> bytes:
    return frames.pack_data_header(channel, 4, 100, high_watermark=90, log_start_offset=7, size=len(batches)) + batches


def piece_entry(part: bytes) -> bytes:
    place = {"high_watermark": 90, "log_start_offset": 7, "batch_size": 9_000, "position": 3_000}
    return frames.pack_piece_header(2, 4, 100, **place, size=len(part)) + part


def test_everything_a_leader_says() -> None:
    """One frame with one entry of each kind, in order."""
    frame = b"".join(
        [
            frames.pack_welcome(NodeId(3), BrokerEpoch(12)),
            frames.pack_accepted(8, 2, 90, 7),
            data_entry(2, b"batches"),
            piece_entry(b"a part"),
            frames.PING_FRAME,
            frames.pack_watermark(2, 101, 8),
            frames.pack_diverging(9, 3, 55),
            frames.pack_error(10, ErrorCode.FENCED_LEADER_EPOCH),
            frames.pack_reject(ErrorCode.STALE_BROKER_EPOCH, "older, ältere"),
        ]
    )
    heard = Heard()
    frames.read_replies(frame, heard)
    entries = [(name, *values) for name, *values in heard.entries]
    assert entries[2][0] == "on_data"
    data = entries.pop(2)[1]
    assert (data[:5], bytes(data.batches)) == ((2, 4, 100, 90, 7), b"batches")
    name, piece = entries.pop(2)
    assert (name, piece[:7], bytes(piece.part)) == ("on_piece", (2, 4, 100, 90, 7, 9_000, 3_000), b"a part")
    assert entries == [
        ("on_welcome", 3, 12),
        ("on_accepted", 8, 2, 90, 7),
        ("on_watermark", 2, 101, 8),
        ("on_diverging", 9, 3, 55),
        ("on_error", 10, ErrorCode.FENCED_LEADER_EPOCH, -1, -1),
        ("on_reject", ErrorCode.STALE_BROKER_EPOCH, "older, ältere"),
    ]


@given(st.tuples(u32, st.uuids(), i32, i32, i64, i32, i64, i64), u32, i64, i64)
@settings(max_examples=60)
def test_everything_a_follower_says(fields: tuple[Any, ...], number: int, offset: int, durable: int) -> None:
    """Values of every size come back as they were."""
    fetch = frames.Fetch(*fields)
    frame = b"".join(
        [
            frames.pack_fetch(fetch),
            frames.pack_ack(number, offset, durable),
            frames.PING_FRAME,
            frames.pack_forget(number),
            frames.pack_credit(number),
            frames.pack_deleted(number, offset),
        ]
    )
    heard = Heard()
    frames.read_requests(frame, heard)
    assert heard.entries == [
        ("on_fetch", fetch),
        ("on_ack", number, offset, durable),
        ("on_forget", number),
        ("on_credit", number),
        ("on_deleted", number, offset),
    ]


def test_a_hello_and_what_follows_it() -> None:
    """The rest of the first frame is requests."""
    hello = frames.Hello(1, NodeId(2), NodeId(1), BrokerEpoch(77), "a cluster")
    first = frames.pack_hello(hello)
    read, position = frames.read_hello(first + frames.pack_credit(5))
    assert (read, position) == (hello, len(first))


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_hello(cut: int) -> None:
    """Whatever its length."""
    first = frames.pack_hello(frames.Hello(1, NodeId(2), NodeId(1), BrokerEpoch(77), "a cluster"))
    with pytest.raises(ProtocolError):
        frames.read_hello(first[:cut])


def test_no_hello() -> None:
    """A stream that opens with something else, or with a name that is no text."""
    with pytest.raises(ProtocolError):
        frames.read_hello(frames.pack_credit(5) * 20)
    broken = bytearray(frames.pack_hello(frames.Hello(1, NodeId(2), NodeId(1), BrokerEpoch(77), "aa")))
    broken[-1] = 0xFF
    with pytest.raises(ProtocolError):
        frames.read_hello(bytes(broken))


FETCH = frames.Fetch(1, UUID(int=3), 0, LeaderEpoch(1), 2, 1, 2, 0)


@pytest.mark.parametrize(
    "entry",
    [
        frames.pack_fetch(FETCH),
        frames.pack_ack(1, 2, 3),
        frames.pack_forget(1),
        frames.pack_credit(1),
    ],
)
def test_a_torn_request(entry: bytes) -> None:
    """Cut anywhere, behind a whole one: the whole one is heard."""
    for cut in range(1, len(entry)):
        heard = Heard()
        with pytest.raises(ProtocolError, match="ends within"):
            frames.read_requests(frames.pack_ack(9, 9, 9) + entry[:cut], heard)
        assert heard.entries == [("on_ack", 9, 9, 9)]


@pytest.mark.parametrize(
    "entry",
    [
        frames.pack_welcome(NodeId(1), BrokerEpoch(2)),
        frames.pack_accepted(1, 2, 3, 4),
        data_entry(1, b"abc"),
        piece_entry(b"abc"),
        frames.pack_watermark(1, 2, 3),
        frames.pack_diverging(1, 2, 3),
        frames.pack_error(1, ErrorCode.NONE),
        frames.pack_reject(ErrorCode.NONE, "words"),
    ],
)
def test_a_torn_reply(entry: bytes) -> None:
    """Cut anywhere; a length that lies is a cut too."""
    for cut in range(1, len(entry)):
        with pytest.raises(ProtocolError):
            frames.read_replies(entry[:cut], Heard())


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_random_bytes(frame: bytes) -> None:
    """Nothing but ProtocolError comes of them, and nothing beyond the frame is touched."""
    for read in (frames.read_requests, frames.read_replies):
        try:
            read(frame, Heard())
        except ProtocolError:
            continue


def test_unknown_kinds() -> None:
    """A kind of the other direction is unknown."""
    with pytest.raises(ProtocolError, match="unknown kind 21"):
        frames.read_requests(frames.pack_watermark(1, 2, 3), Heard())
    with pytest.raises(ProtocolError, match="unknown kind 3"):
        frames.read_replies(frames.pack_ack(1, 2, 3), Heard())
