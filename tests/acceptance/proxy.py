"""A TCP proxy that understands just enough of Kafka's frames to lose, hold and damage chosen ones."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

PRODUCE = 0
"""Api key of Produce."""

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")


class TcpProxy:
    """Stands before one listener of a node, which advertises `address`; every connection is to `target`.

    While `mute`, what the node sends is lost; its connections stay open. Runs on a thread of its own.
    """

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self._server: asyncio.Server | None = None
        self.open()
        self.reset()

    def reset(self) -> None:
        """No faults, and clients are let in."""
        self.mute = False
        self.open()

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self._port}"

    def shut(self) -> None:
        """Break every connection and refuse new ones, as a node that is gone."""
        self._call(self._shut())

    def open(self) -> None:
        """Undo `shut`."""
        if self._server is None:
            self._call(self._listen())

    def close(self) -> None:
        """End the thread."""
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Inside, on the thread

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:
            writer.close()  # let in just before `shut`, which has not seen it
            return
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                assert self.target is not None, "no target yet"
                far_reader, far_writer = await asyncio.open_connection(*self.target)
                ways = [asyncio.create_task(way) for way in self._ways(reader, writer, far_reader, far_writer)]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
                    far_writer.close()
        finally:
            self._tasks.discard(task)
            writer.close()

    def _ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> list[Coroutine[Any, Any, None]]:
        """The two directions of one connection; it ends with the first that ends."""
        return [_carry(reader, far_writer, lambda: True), _carry(far_reader, writer, lambda: not self.mute)]


class KafkaProxy(TcpProxy):
    """Before a listener of Kafka's protocol.

    Hooks, called on the thread; None does nothing:
        lose_reply: (api key) -> whether this reply is dropped, and its connection with it.
        damage_request: (api key, frame) -> changes the frame of a request in place.

    Counts since `reset`: `requests` by api key, `lost` replies, `frames` of produce requests, and
    `producing_connections`, the numbers of the connections that carried any.
    """

    _serial = 0

    def __init__(self) -> None:
        self._may_reply = asyncio.Event()
        super().__init__()

    def reset(self) -> None:
        """No faults, no counts, and clients are let in."""
        self.lose_reply: Callable[[int], bool] | None = None
        self.damage_request: Callable[[int, bytearray], None] | None = None
        self.requests: Counter[int] = Counter()
        self.lost = 0
        self.frames: list[bytes] = []
        self.producing_connections: set[int] = set()
        self.release_replies()
        super().reset()

    def hold_replies(self) -> None:
        """Let replies wait until `release_replies`."""
        self._loop.call_soon_threadsafe(self._may_reply.clear)

    def release_replies(self) -> None:
        """Undo `hold_replies`."""
        self._loop.call_soon_threadsafe(self._may_reply.set)

    def _ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> list[Coroutine[Any, Any, None]]:
        self._serial += 1
        asked: dict[int, int] = {}
        return [
            self._carry_requests(self._serial, reader, far_writer, asked),
            self._carry_replies(far_reader, writer, asked),
        ]

    async def _carry_requests(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = bytearray(await _frame(reader))
            api_key, _version, correlation = _HEADER.unpack_from(frame)
            asked[correlation] = api_key
            if api_key == PRODUCE:
                self.producing_connections.add(connection)
                self.frames.append(bytes(frame))
            self.requests[api_key] += 1  # last: tests in another thread wait for it, and look at the others then
            if self.damage_request is not None:
                self.damage_request(api_key, frame)
            writer.write(_LENGTH.pack(len(frame)) + frame)
            await writer.drain()

    async def _carry_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = await _frame(reader)
            api_key = asked.pop(_LENGTH.unpack_from(frame)[0])
            await self._may_reply.wait()
            if self.lose_reply is not None and self.lose_reply(api_key):
                self.lost += 1
                return
            writer.write(_LENGTH.pack(len(frame)) + frame)
            await writer.drain()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, let_through: Callable[[], bool]) -> None:
    while data := await reader.read(1 << 16):
        if let_through():
            writer.write(data)
            await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(4))
    return await reader.readexactly(length)
