"""Batches that come in pieces, because they are too large for one entry of a stream (schedule 54)."""

from __future__ import annotations

import structlog

from strandline.log.config import BATCH_BYTES_MAX
from strandline.proto.errors import ProtocolError
from strandline.replica import frames
from strandline.replica.following import Following

log = structlog.get_logger("strandline.replica")


class Pieces:
    """What one stream has brought of a batch that is not whole yet.

    It is kept for one followed partition at a time, and no batch is larger than any setting allows: that bounds the
    memory that a leader can take here. The buffer grows as bytes arrive, whatever size was announced.
    """

    __slots__ = ("_batch", "_following")

    def __init__(self) -> None:
        self._batch = bytearray()
        self._following: Following | None = None

    def take(self, following: Following, piece: frames.Piece) -> memoryview | None:
        """Keep a piece; the whole batch if this was its last one, else None.

        Raises:
            ProtocolError: it does not go on where the last one ended, or another partition's batch is not whole yet, or
                the batch is larger than any that can have been appended.
        """
        name, size = following.partition.topic_partition, len(piece.part)
        if self._following not in (None, following):
            raise ProtocolError(f"{name}: a piece came before another partition's batch was whole")
        if piece.batch_size > BATCH_BYTES_MAX:
            raise ProtocolError(f"{name}: a batch of {piece.batch_size} bytes; the largest has {BATCH_BYTES_MAX}")
        if piece.position != len(self._batch) or not 0 < size <= piece.batch_size - piece.position:
            raise ProtocolError(
                f"{name}: a piece of {size} bytes at byte {piece.position} of {piece.batch_size} came after "
                f"{len(self._batch)} bytes of the batch"
            )
        self._following = following
        self._batch += piece.part
        if len(self._batch) < piece.batch_size:
            return None
        batch = memoryview(self._batch)
        self._batch, self._following = bytearray(), None
        return batch

    def drop(self, following: Following) -> None:
        """The rest of its batch is not wanted, or will not come."""
        if self._following is following:
            self._batch, self._following = bytearray(), None
