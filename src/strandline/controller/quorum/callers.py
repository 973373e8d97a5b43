"""Calls of peers that wait for the core's answer, and the bytes that go into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

from strandline.controller.quorum.metadata_log import MetadataLog
from strandline.controller.quorum.methods import encode_response
from strandline.controller.quorum.snapshots import SnapshotStore
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.messages import (
    FetchResponse,
    FetchSnapshotResponse,
    ReadRange,
    ReadSnapshot,
    Reply,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ports import RpcUnavailable


class Callers:
    """Tokens of the core's requests, each with the future that its handler awaits.

    Invariants:
    - a token is answered once at most, and not at all once its caller is gone.
    """

    def __init__(
        self,
        core: RaftCore,
        log: MetadataLog,
        snapshots: SnapshotStore,
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self._core = core
        self._log = log
        self._snapshots = snapshots
        self._spawn = spawn
        self._next_token = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    def open(self) -> tuple[int, asyncio.Future[bytes]]:
        """A new token and the future of its answer."""
        self._next_token += 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_token] = future
        return self._next_token, future

    def forget(self, token: int) -> None:
        """Forget a call that was answered, or whose caller is gone."""
        self._waiting.pop(token, None)

    def close(self) -> None:
        """Fail the calls that wait: there will be no answer."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RpcUnavailable("this node's quorum has stopped"))

    def reply(self, reply: Reply) -> None:
        """Carry out one of the core's replies: now, or when the bytes are read."""
        if reply.token not in self._waiting:
            return  # the caller is gone
        read = reply.read
        if isinstance(read, ReadRange):
            data = self._log.read(read.offset, read.max_bytes)
            if data is None:
                self._spawn(self._reply_cold(reply, read))
            else:
                self._answer(reply.token, encode_response(reply.response, data))
        elif isinstance(read, ReadSnapshot) and isinstance(reply.response, FetchSnapshotResponse):
            self._spawn(self._reply_snapshot(reply.token, reply.response, read))
        else:
            self._answer(reply.token, encode_response(reply.response))

    async def _reply_cold(self, reply: Reply, read: ReadRange) -> None:
        """Records that had to be read off the loop; worthless if leadership went meanwhile, as the log may have too."""
        epoch = self._core.epoch
        data = await self._log.read_cold(read.offset, read.max_bytes)
        if self._core.leading is None or self._core.epoch != epoch:
            stale = FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, self._core.epoch, self._core.leader_id)
            self._answer(reply.token, encode_response(stale))
        else:
            self._answer(reply.token, encode_response(reply.response, data))

    async def _reply_snapshot(self, token: int, response: FetchSnapshotResponse, read: ReadSnapshot) -> None:
        found = await self._snapshots.read(read.snapshot, read.position, read.max_bytes)
        if found is None:
            response = replace(response, error=ErrorCode.SNAPSHOT_NOT_FOUND)
        elif read.position >= found[0]:
            response = replace(response, error=ErrorCode.POSITION_OUT_OF_RANGE, size=found[0])
        else:
            response = replace(response, size=found[0], position=read.position, data=found[1])
        self._answer(token, encode_response(response))

    def _answer(self, token: int, payload: bytes) -> None:
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_result(payload)
