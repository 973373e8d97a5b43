"""Waiting until what this node's leadership appended is committed."""

from __future__ import annotations

import asyncio

from strandline.controller.raft.core import RaftCore
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


class Commits:
    """Futures by the offset that they wait for.

    Invariants:
    - one is answered only by the leadership that appended: once that is lost, whether the record will be committed is
      not known here.
    """

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._waiting: dict[asyncio.Future[None], tuple[int, int]] = {}

    def committed(self, epoch: int, offset: int) -> asyncio.Future[None]:
        """The end of the wait: nothing, or KafkaError NOT_CONTROLLER."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = (epoch, offset)
        self.settle()
        return future

    def settle(self) -> None:
        """End the waits that are over; call after any change of the core."""
        if not self._waiting:
            return
        leading = self._core.leading
        for future, (epoch, offset) in list(self._waiting.items()):
            if future.done():
                del self._waiting[future]
            elif leading is None or leading.epoch != epoch:
                self._lost(future)
            elif leading.epoch_high_watermark is not None and offset < leading.epoch_high_watermark:
                del self._waiting[future]
                future.set_result(None)

    def close(self) -> None:
        """Fail the waits: this node's quorum has stopped."""
        for future in list(self._waiting):
            self._lost(future)

    def _lost(self, future: asyncio.Future[None]) -> None:
        del self._waiting[future]
        if not future.done():
            message = "This node gave up the leadership of the quorum before it was committed: ask the next leader."
            future.set_exception(KafkaError(ErrorCode.NOT_CONTROLLER, message))
