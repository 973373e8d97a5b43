"""What has come over one gRPC stream and was not read yet: payload of DATA frames in, messages out, and the window.

A message is five bytes (compressed or not, length) and its content, in as many frames as its sender liked.
"""

from __future__ import annotations

from collections import deque
from struct import Struct

from h2.errors import ErrorCodes

from strandline.cluster.node.internal.options import STREAM_WINDOW_BYTES
from strandline.cluster.node.internal.status import RESOURCE_EXHAUSTED, UNIMPLEMENTED, CallError

PREFIX = Struct(">BI")
"""Compressed or not, length."""


class Violation(Exception):
    """The peer breaks the protocol; `code` is HTTP/2's word for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Inbox:
    """Messages that have come, and a part of one.

    Invariants:
        * what was received and not granted again is at most the window;
        * a message that is not complete is granted again only while the reader waits for it: a peer cannot fill the
          memory of one that does not read.
    """

    __slots__ = ("_goal", "_held", "_message_bytes_max", "_partial", "_unread", "_window", "messages")

    def __init__(self, message_bytes_max: int) -> None:
        self.messages: deque[bytes] = deque()
        self._message_bytes_max = message_bytes_max
        self._partial = bytearray()
        self._goal = 0
        self._window = STREAM_WINDOW_BYTES
        self._held = 0
        self._unread = 0

    @property
    def within_message(self) -> bool:
        """A part of a message has come."""
        return bool(self._partial)

    def expect(self, size: int) -> None:
        """A frame of this size begins. Raises Violation."""
        self._window -= size
        if self._window < 0:
            raise Violation("DATA beyond the window of its stream", ErrorCodes.FLOW_CONTROL_ERROR)

    def feed(self, view: memoryview) -> None:
        """A part of the payload. Raises CallError for a message that is not taken."""
        self._held += len(view)
        if self._partial:
            self._partial += view
            if len(self._partial) < self._goal:
                return
            whole, self._partial = self._partial, bytearray()
            view = memoryview(whole)
        at, end = 0, len(view)
        self._goal = PREFIX.size
        while end - at >= PREFIX.size:
            compressed, size = PREFIX.unpack_from(view, at)
            if compressed:
                raise CallError(UNIMPLEMENTED, "Received a compressed message, which was not offered")
            if size > self._message_bytes_max:
                words = f"Received message larger than max ({size} vs. {self._message_bytes_max})"
                raise CallError(RESOURCE_EXHAUSTED, words)
            stop = at + PREFIX.size + size
            if stop > end:
                self._goal = stop - at
                break
            self.messages.append(bytes(view[at + PREFIX.size : stop]))
            self._unread += stop - at
            at = stop
        if at < end:
            self._partial += view[at:]

    def take(self) -> bytes:
        """The next message."""
        message = self.messages.popleft()
        self._unread -= len(message) + PREFIX.size
        return message

    def to_grant(self, *, reader_waits: bool, ended: bool) -> int:
        """How much the peer may send again; 0 while that is little, for each grant costs a frame."""
        kept = self._unread if reader_waits else self._unread + len(self._partial)
        consumed = self._held - kept
        if consumed < STREAM_WINDOW_BYTES // 4 and not ended:
            return 0
        self._held -= consumed
        self._window += consumed
        return consumed

    def padding(self, size: int) -> None:
        """Padding counts against the window, and is granted again at once."""
        self._window += size

    def clear(self) -> int:
        """Nobody reads any more; returns how much was held."""
        self.messages.clear()
        self._partial = bytearray()
        held, self._held, self._unread = self._held, 0, 0
        return held
