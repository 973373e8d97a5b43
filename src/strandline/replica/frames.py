"""Frames of the replication stream: packed entries, many to a frame, big-endian, each led by one byte of kind.

From follower to leader:

        HELLO     protocol version, node id, node id of the addressed broker, broker epoch, cluster id: first on a
        stream FETCH     subscription, topic id, partition, current leader epoch, fetch offset, last fetched epoch,
                  durable offset, log start: "my log ends here"; begins (or begins anew) a subscription
        ACK       subscription, fetch offset, durable offset: the follower's new offsets
        FORGET    subscription: end it
        DELETED   subscription, log start: records before it are durably deleted on the follower, too
        CREDIT    bytes: number of further bytes of data that may be sent, so that the follower sets the pace

    From leader to follower:

        WELCOME   node id, broker epoch: the hello was accepted
        REJECT    error code, length, message: the hello was refused; the stream ends
        ACCEPTED  subscription, channel, high watermark, log start: the fetch is valid; its data come on that channel
        DATA      channel, leader epoch, base offset, high watermark, log start, length, then whole record batches
        PIECE     as DATA, with the batch's size and a position, then that part of one batch. A batch too large for an
                  entry comes in consecutive pieces, one such batch at a time on a stream
        WATERMARK channel, high watermark, log start: one of them rose, and there are no data to carry it
        DIVERGING subscription, epoch, end offset: truncate, then fetch again; nothing of this fetch was recorded
        ERROR     subscription, error code, log start, log end: the subscription is refused or has ended

    Both ways: PING, sent after a while without other entries.

    A *channel* is a number that the leader gives to one leadership (partition and leader epoch). It is the same for all
    followers, so that one encoded copy of a batch serves them all. The stream is ordered: data that belong to an older
    subscription arrive before the ACCEPTED of a newer one, and are dropped.

    Every read is checked against the bytes that are left; a malformed frame raises ProtocolError and ends the stream.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple, Protocol
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import BrokerEpoch, LeaderEpoch, NodeId, TopicId

PROTOCOL_VERSION = 3
"""Raised with every change of these layouts that an older peer cannot read."""

FRAME_BYTES_MAX = 1 << 20
"""Entries are joined into frames of up to this size; a larger entry travels alone (no entry of data is much larger: see
PIECE). Larger frames measured no better: they only delay the first entry in them."""

HELLO, FETCH, ACK, FORGET, CREDIT, DELETED = 1, 2, 3, 4, 5, 6
WELCOME, REJECT, ACCEPTED, DATA, WATERMARK, DIVERGING, ERROR, PIECE = 17, 18, 19, 20, 21, 22, 23, 24
PING = 31

_HELLO = Struct(">BHiiqH")
_FETCH = Struct(">BI16siiqiqq")
_ACK = Struct(">BIqq")
_FORGET = Struct(">BI")
_CREDIT = Struct(">BI")
_DELETED = Struct(">BIq")
_WELCOME = Struct(">Biq")
_REJECT = Struct(">BhH")
_ACCEPTED = Struct(">BIIqq")
_DATA = Struct(">BIiqqqI")
_PIECE = Struct(">BIiqqqIII")
_WATERMARK = Struct(">BIqq")
_DIVERGING = Struct(">BIiq")
_ERROR = Struct(">BIhqq")

_SIZES = {
    FETCH: _FETCH.size,
    ACK: _ACK.size,
    FORGET: _FORGET.size,
    CREDIT: _CREDIT.size,
    DELETED: _DELETED.size,
    WELCOME: _WELCOME.size,
    REJECT: _REJECT.size,
    ACCEPTED: _ACCEPTED.size,
    DATA: _DATA.size,
    PIECE: _PIECE.size,
    WATERMARK: _WATERMARK.size,
    DIVERGING: _DIVERGING.size,
    ERROR: _ERROR.size,
    PING: 1,
}

PING_FRAME = bytes([PING])
DATA_HEADER_SIZE = _DATA.size


class Hello(NamedTuple):
    """First entry on a stream: the broker that opens it, and the broker that it means to reach."""

    version: int
    node_id: NodeId
    target_id: NodeId
    broker_epoch: BrokerEpoch
    cluster_id: str


class Fetch(NamedTuple):
    """A follower's position in one partition; last_fetched_epoch is -1 if its log is empty."""

    subscription: int
    topic_id: TopicId
    partition: int
    current_leader_epoch: LeaderEpoch
    fetch_offset: int
    last_fetched_epoch: int
    durable_offset: int
    log_start_offset: int


def pack_hello(hello: Hello) -> bytes:
    """Return a HELLO entry."""
    cluster_id = hello.cluster_id.encode()
    head = _HELLO.pack(HELLO, hello.version, hello.node_id, hello.target_id, hello.broker_epoch, len(cluster_id))
    return head + cluster_id


def pack_fetch(fetch: Fetch) -> bytes:
    """Return a FETCH entry."""
    return _FETCH.pack(
        FETCH,
        fetch.subscription,
        fetch.topic_id.bytes,
        fetch.partition,
        fetch.current_leader_epoch,
        fetch.fetch_offset,
        fetch.last_fetched_epoch,
        fetch.durable_offset,
        fetch.log_start_offset,
    )


def pack_ack(subscription: int, fetch_offset: int, durable_offset: int) -> bytes:
    """Return an ACK entry."""
    return _ACK.pack(ACK, subscription, fetch_offset, durable_offset)


def pack_forget(subscription: int) -> bytes:
    """Return a FORGET entry."""
    return _FORGET.pack(FORGET, subscription)


def pack_deleted(subscription: int, log_start_offset: int) -> bytes:
    """Return a DELETED entry."""
    return _DELETED.pack(DELETED, subscription, log_start_offset)


def pack_credit(size: int) -> bytes:
    """Return a CREDIT entry."""
    return _CREDIT.pack(CREDIT, size)


def pack_welcome(node_id: NodeId, broker_epoch: BrokerEpoch) -> bytes:
    """Return a WELCOME entry."""
    return _WELCOME.pack(WELCOME, node_id, broker_epoch)


def pack_reject(code: ErrorCode, message: str) -> bytes:
    """Return a REJECT entry; a message beyond 65,535 bytes is cut."""
    text = message.encode()[:65535]
    return _REJECT.pack(REJECT, code, len(text)) + text


def pack_accepted(subscription: int, channel: int, high_watermark: int, log_start_offset: int) -> bytes:
    """Return an ACCEPTED entry."""
    return _ACCEPTED.pack(ACCEPTED, subscription, channel, high_watermark, log_start_offset)


def pack_data_header(
    channel: int, leader_epoch: int, base_offset: int, *, high_watermark: int, log_start_offset: int, size: int
) -> bytes:
    """Return the header of a DATA entry, which `size` bytes of batches must follow."""
    return _DATA.pack(DATA, channel, leader_epoch, base_offset, high_watermark, log_start_offset, size)


def pack_piece_header(
    channel: int,
    leader_epoch: int,
    base_offset: int,
    *,
    high_watermark: int,
    log_start_offset: int,
    batch_size: int,
    position: int,
    size: int,
) -> bytes:
    """Return the header of a PIECE entry, which `size` bytes of the batch, from `position` on, must follow."""
    return _PIECE.pack(
        PIECE, channel, leader_epoch, base_offset, high_watermark, log_start_offset, batch_size, position, size
    )


def pack_watermark(channel: int, high_watermark: int, log_start_offset: int) -> bytes:
    """Return a WATERMARK entry."""
    return _WATERMARK.pack(WATERMARK, channel, high_watermark, log_start_offset)


def pack_diverging(subscription: int, epoch: int, end_offset: int) -> bytes:
    """Return a DIVERGING entry."""
    return _DIVERGING.pack(DIVERGING, subscription, epoch, end_offset)


def pack_error(subscription: int, code: ErrorCode, log_start_offset: int = -1, log_end_offset: int = -1) -> bytes:
    """Return an ERROR entry."""
    return _ERROR.pack(ERROR, subscription, code, log_start_offset, log_end_offset)


class LeaderSide(Protocol):
    """Takes a follower's entries, in order. A method may raise ProtocolError for an entry that makes no sense."""

    def on_fetch(self, fetch: Fetch) -> None: ...
    def on_ack(self, subscription: int, fetch_offset: int, durable_offset: int) -> None: ...
    def on_forget(self, subscription: int) -> None: ...
    def on_deleted(self, subscription: int, log_start_offset: int) -> None: ...
    def on_credit(self, size: int) -> None: ...


class Data(NamedTuple):
    """Batches of one channel; `batches` is a view into the frame."""

    channel: int
    leader_epoch: int
    base_offset: int
    high_watermark: int
    log_start_offset: int
    batches: memoryview


class Piece(NamedTuple):
    """A part of one batch of `batch_size` bytes; `part` is a view into the frame. Otherwise like `Data`."""

    channel: int
    leader_epoch: int
    base_offset: int
    high_watermark: int
    log_start_offset: int
    batch_size: int
    position: int
    part: memoryview


class FollowerSide(Protocol):
    """Takes a leader's entries, in order. A method may raise ProtocolError for an entry that makes no sense."""

    def on_welcome(self, node_id: NodeId, broker_epoch: BrokerEpoch) -> None: ...
    def on_reject(self, code: ErrorCode, message: str) -> None: ...
    def on_accepted(self, subscription: int, channel: int, high_watermark: int, log_start_offset: int) -> None: ...
    def on_data(self, data: Data) -> None: ...
    def on_piece(self, piece: Piece) -> None: ...
    def on_watermark(self, channel: int, high_watermark: int, log_start_offset: int) -> None: ...
    def on_diverging(self, subscription: int, epoch: int, end_offset: int) -> None: ...
    def on_error(self, subscription: int, code: ErrorCode, log_start_offset: int, log_end_offset: int) -> None: ...


def read_hello(frame: bytes) -> tuple[Hello, int]:
    """Return the hello that opens a stream's first frame, and the index at which the rest of the frame begins.

    Raises:
        ProtocolError: the frame does not begin with a valid hello.
    """
    try:
        kind, version, node_id, target_id, broker_epoch, length = _HELLO.unpack_from(frame)
        end = _HELLO.size + length
        if kind != HELLO or end > len(frame):
            raise ProtocolError("a replication stream must open with a hello")
        cluster_id = frame[_HELLO.size : end].decode()
    except (error, UnicodeDecodeError) as problem:
        raise ProtocolError(f"a replication stream opened with a broken hello: {problem}") from None
    return Hello(version, NodeId(node_id), NodeId(target_id), BrokerEpoch(broker_epoch), cluster_id), end


def read_requests(frame: bytes, side: LeaderSide, position: int = 0) -> None:
    """Pass a follower's entries to `side`.

    Raises:
        ProtocolError: the frame is malformed.
    """
    end = len(frame)
    while position < end:
        kind = frame[position]
        if end - position < _SIZES.get(kind, 0):
            raise _torn(end, position)
        if kind == ACK:
            _, subscription, fetch_offset, durable_offset = _ACK.unpack_from(frame, position)
            position += _ACK.size
            side.on_ack(subscription, fetch_offset, durable_offset)
        elif kind == CREDIT:
            _, size = _CREDIT.unpack_from(frame, position)
            position += _CREDIT.size
            side.on_credit(size)
        elif kind == FETCH:
            _, subscription, topic_id, *rest = _FETCH.unpack_from(frame, position)
            position += _FETCH.size
            side.on_fetch(Fetch(subscription, UUID(bytes=topic_id), *rest))
        elif kind == FORGET:
            _, subscription = _FORGET.unpack_from(frame, position)
            position += _FORGET.size
            side.on_forget(subscription)
        elif kind == DELETED:
            _, subscription, log_start = _DELETED.unpack_from(frame, position)
            position += _DELETED.size
            side.on_deleted(subscription, log_start)
        elif kind == PING:
            position += 1
        else:
            raise ProtocolError(f"a follower sent an entry of unknown kind {kind} at byte {position}")


def _torn(size: int, position: int) -> ProtocolError:
    return ProtocolError(f"a frame of {size} bytes ends within the entry that begins at byte {position}")


def read_replies(frame: bytes, side: FollowerSide) -> None:
    """Pass a leader's entries to `side`.

    Raises:
        ProtocolError: the frame is malformed.
    """
    view = memoryview(frame)
    end = len(frame)
    position = 0
    while position < end:
        kind = frame[position]
        if end - position < _SIZES.get(kind, 0):
            raise _torn(end, position)
        if kind == DATA:
            _, channel, epoch, base_offset, high_watermark, log_start, size = _DATA.unpack_from(frame, position)
            start = position + DATA_HEADER_SIZE
            position = start + size
            if position > end:
                raise ProtocolError(f"a leader's data of {size} bytes are longer than the frame that holds them")
            batches = view[start:position]
            side.on_data(Data(channel, epoch, base_offset, high_watermark, log_start, batches))
        elif kind == PIECE:
            position = _read_piece(view, position, side)
        elif kind == WATERMARK:
            _, channel, high_watermark, log_start = _WATERMARK.unpack_from(frame, position)
            position += _WATERMARK.size
            side.on_watermark(channel, high_watermark, log_start)
        elif kind == PING:
            position += 1
        else:
            position = _read_rare_reply(kind, frame, position, side)


def _read_piece(view: memoryview, position: int, side: FollowerSide) -> int:
    (_, channel, epoch, base_offset, high_watermark, log_start, batch_size, where, size) = _PIECE.unpack_from(
        view, position
    )
    start = position + _PIECE.size
    following: int = start + size
    if following > len(view):
        raise ProtocolError(f"a leader's piece of {size} bytes is longer than the frame that holds it")
    part = view[start:following]
    side.on_piece(Piece(channel, epoch, base_offset, high_watermark, log_start, batch_size, where, part))
    return following


def _read_rare_reply(kind: int, frame: bytes, position: int, side: FollowerSide) -> int:
    if kind == ACCEPTED:
        _, subscription, channel, high_watermark, log_start = _ACCEPTED.unpack_from(frame, position)
        side.on_accepted(subscription, channel, high_watermark, log_start)
        return position + _ACCEPTED.size
    if kind == DIVERGING:
        _, subscription, epoch, end_offset = _DIVERGING.unpack_from(frame, position)
        side.on_diverging(subscription, epoch, end_offset)
        return position + _DIVERGING.size
    if kind == ERROR:
        _, subscription, code, log_start, log_end = _ERROR.unpack_from(frame, position)
        side.on_error(subscription, ErrorCode.of(code), log_start, log_end)
        return position + _ERROR.size
    if kind == WELCOME:
        _, node_id, broker_epoch = _WELCOME.unpack_from(frame, position)
        side.on_welcome(NodeId(node_id), BrokerEpoch(broker_epoch))
        return position + _WELCOME.size
    if kind == REJECT:
        _, code, length = _REJECT.unpack_from(frame, position)
        start = position + _REJECT.size
        following: int = start + length
        if following > len(frame):
            raise ProtocolError("a leader's rejection is longer than the frame that holds it")
        side.on_reject(ErrorCode.of(code), frame[start:following].decode(errors="replace"))
        return following
    raise ProtocolError(f"a leader sent an entry of unknown kind {kind} at byte {position}")
