"""The receive buffer: frames lie whole in it, and it grows with what arrives, never with what is announced."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.cluster.broker.memory import Account, MemoryBudget
from strandline.cluster.broker.receive import START_BYTES, STREAM_BYTES, ReceiveBuffer
from strandline.cluster.broker.request import Peer

PEER = Peer("L", "host")


def put(buffer: ReceiveBuffer, data: bytes, frame_bytes: int = 0) -> int:
    """Receive as much of `data` as there is room for; returns how much."""
    assert buffer.make_room(frame_bytes)
    room = buffer.room()
    size = min(len(room), len(data))
    assert size > 0
    room[:size] = data[:size]
    buffer.received(size)
    return size


def test_an_idle_connection_has_no_buffer() -> None:
    """Thousands of idle connections must be cheap."""
    budget = MemoryBudget(1 << 20)
    buffer = ReceiveBuffer(budget, PEER)
    assert buffer.capacity == 0
    put(buffer, b"x")
    assert buffer.capacity == START_BYTES
    assert budget.used_bytes == 0
    buffer.start = buffer.end
    assert buffer.make_room(0)
    assert buffer.capacity == 0


def test_an_announced_frame_that_never_comes_costs_nothing() -> None:
    """100 MB announced, ten bytes sent: the buffer stays at its first size."""
    budget = MemoryBudget(1 << 20)
    buffer = ReceiveBuffer(budget, PEER)
    put(buffer, struct.pack(">i", 100 << 20))
    for _ in range(6):
        put(buffer, b"y", (100 << 20) + 4)
    assert buffer.capacity == START_BYTES
    assert budget.used_bytes == 0


def test_growth_is_charged_and_given_back() -> None:
    """What a large frame takes is held against the node's budget until it is released."""
    budget = MemoryBudget(1 << 30)
    buffer = ReceiveBuffer(budget, PEER)
    frame = 3 << 20
    sent = 0
    while sent < frame:
        sent += put(buffer, bytes(min(frame - sent, 100_000)), frame)
        assert buffer.capacity <= max(2 * sent, START_BYTES * 2, STREAM_BYTES)
    assert buffer.end - buffer.start == frame
    assert budget.used_for(Account.RECEIVE) == buffer.capacity - START_BYTES
    buffer.release()
    assert budget.used_bytes == 0


def test_a_partial_frame_is_moved_not_lost() -> None:
    """The tail of a pipelined stream stays whole when the buffer starts again at its beginning."""
    buffer = ReceiveBuffer(MemoryBudget(1 << 30), PEER)
    first = bytes(range(256)) * 60
    put(buffer, first)
    buffer.start += 15_000  # frames read
    rest = bytes(buffer.view[buffer.start : buffer.end])
    put(buffer, b"tail", 2000)
    assert bytes(buffer.view[buffer.start : buffer.end]) == rest + b"tail"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=8), st.lists(st.integers(300, 50_000), min_size=1))
def test_frames_come_out_as_they_went_in(sizes: list[int], reads: list[int]) -> None:
    """Whatever the sizes of frames and of reads, every frame is found whole and in order."""
    budget = MemoryBudget(1 << 30)
    buffer = ReceiveBuffer(budget, PEER)
    frames = [struct.pack(">i", size) + bytes([number % 251]) * size for number, size in enumerate(sizes)]
    stream = b"".join(frames)
    found: list[bytes] = []
    turn = 0
    while stream:
        known = 0
        if buffer.end - buffer.start >= 4:
            known = struct.unpack_from(">i", buffer.view, buffer.start)[0] + 4
        size = put(buffer, stream[: reads[turn % len(reads)]], known)
        stream = stream[size:]
        turn += 1
        while buffer.end - buffer.start >= 4:
            size = struct.unpack_from(">i", buffer.view, buffer.start)[0] + 4
            if buffer.end - buffer.start < size:
                break
            found.append(bytes(buffer.view[buffer.start : buffer.start + size]))
            buffer.start += size
    assert found == frames
    assert budget.used_bytes == max(0, buffer.capacity - START_BYTES)


def test_without_room_one_buffer_grows_at_a_time() -> None:
    """Two large frames on a small budget: the second waits, keeps its bytes, and goes on when the first is finished."""
    budget = MemoryBudget(100_000)
    first, second = ReceiveBuffer(budget, PEER), ReceiveBuffer(budget, Peer("L", "other"))
    frame = 200_000
    for buffer in (first, second):
        while buffer.end < 2 * START_BYTES:
            put(buffer, b"a" * START_BYTES, frame)
    while first.end < frame:
        put(first, bytes(frame - first.end), frame)
        assert not second.make_room(frame)
    assert budget.turn is first
    first.start = first.end
    assert first.make_room(0)
    assert budget.turn is None
    assert first.capacity == 0
    assert second.make_room(frame)
    assert bytes(second.view[: second.end]) == b"a" * (2 * START_BYTES)
    second.release()
    assert budget.used_bytes == 0


def test_a_turn_ends_with_its_request() -> None:
    """A peer that pipelines large requests does not keep the turn; it keeps what has come of the next request."""
    budget = MemoryBudget(60_000)
    buffer, other = ReceiveBuffer(budget, PEER), ReceiveBuffer(budget, Peer("L", "other"))
    frame = 100_000
    while buffer.end < frame:
        put(buffer, bytes(frame - buffer.end), frame)
    assert budget.turn is buffer
    put(buffer, b"next", frame)
    buffer.start = frame
    assert buffer.make_room(0)
    assert budget.turn is None
    assert bytes(buffer.view[buffer.start : buffer.end]) == b"next"
    assert buffer.capacity == START_BYTES
    buffer.release()
    other.release()
