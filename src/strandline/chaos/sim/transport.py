"""asyncio's transports and servers over the simulated network: byte streams in random pieces, with back pressure."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strandline.chaos.sim.network import Network
from strandline.chaos.sim.process import Process, current_process
from strandline.chaos.sim.sockets import Socket

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HIGH_WATER_BYTES = 64 * 1024  # asyncio's own default


class SocketInfo:
    """Object for `get_extra_info("socket")` and `Server.sockets`: addresses, and options that go nowhere."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, local: tuple[str, int], remote: tuple[str, int] | None = None) -> None:
        self._local = local
        self._remote = remote

    def getsockname(self) -> tuple[str, int]:
        return self._local

    def getpeername(self) -> tuple[str, int] | None:
        return self._remote

    def setsockopt(self, *option: Any) -> None:
        """Accepted: latency here does not depend on TCP_NODELAY."""

    def fileno(self) -> int:
        return -1


class SimTransport(asyncio.Transport):
    """One end of a byte stream, for a `Protocol` or a `BufferedProtocol`."""

    def __init__(self, end: Socket) -> None:
        super().__init__(
            {
                "sockname": end.local,
                "peername": end.remote,
                "socket": SocketInfo(end.local, end.remote),
            }
        )
        self._socket = end
        self._loop = end.network.loop
        self._protocol: asyncio.BaseProtocol | None = None
        self._closing = False
        self._lost = False
        self._reading = True
        self._unread: deque[bytes] = deque()
        self._ended = False
        self._write_paused = False
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4
        self._drain_planned = False

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach the protocol and tell it; called in the owner's context."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._socket.attach(self)

    # --- writing ---

    def write(self, data: Buffer) -> None:
        if self._closing or not self._socket.process.alive:
            return
        payload = bytes(data)
        if not payload:
            return
        self._loop.mix(zlib.crc32(payload))
        network = self._socket.network
        rng = network.rng
        if len(payload) > 1 and rng.random() < network.config.fragment_probability:
            cut = rng.randint(1, len(payload) - 1)
            self._send(payload[:cut])
            self._send(payload[cut:])
        else:
            self._send(payload)
        if self._socket.buffer_bytes > self._high and not self._write_paused and self._protocol is not None:
            self._write_paused = True
            self._protocol.pause_writing()

    def _send(self, piece: bytes) -> None:
        self._socket.send(piece, len(piece))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def write_eof(self) -> None:
        self._socket.finish()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._socket.buffer_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    # --- reading ---

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if self._reading or self._closing:
            return
        self._reading = True
        if self._unread:
            self._loop.call_soon(self._drain, context=self._socket.process.context)

    def on_item(self, item: Any, size: int) -> None:
        self._unread.append(item)
        network = self._socket.network
        if self._drain_planned:
            return
        if network.rng.random() < network.config.coalesce_probability:
            # The reader comes late: what arrives until then is read as one piece.
            self._drain_planned = True
            delay_us = network.rng.randint(1, network.config.latency_max_us)
            self._loop.call_at_us(self._loop.now_us + delay_us, self._drain, context=self._socket.process.context)
        else:
            self._drain()

    def on_end(self) -> None:
        self._ended = True
        if not self._drain_planned:
            self._drain()

    def _drain(self) -> None:
        self._drain_planned = False
        while self._unread and self._reading and not self._closing:
            piece = self._unread.popleft() if len(self._unread) == 1 else b"".join(self._unread)
            self._unread.clear()
            taken = self._hand_over(piece)
            if taken < len(piece):
                self._unread.appendleft(piece[taken:])
            self._socket.consumed(taken)
        if self._ended and not self._unread and not self._closing:
            self._ended = False
            if not self._keeps_half_open():
                self.close()

    def _keeps_half_open(self) -> bool:
        assert isinstance(self._protocol, (asyncio.Protocol, asyncio.BufferedProtocol))
        return bool(self._protocol.eof_received())

    def _hand_over(self, piece: bytes) -> int:
        """Give the protocol as much of `piece` as it takes; returns how many bytes."""
        protocol = self._protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(piece)
            return len(piece)
        assert isinstance(protocol, asyncio.BufferedProtocol)
        taken = 0
        while taken < len(piece) and self._reading and not self._closing:
            buffer = memoryview(protocol.get_buffer(len(piece) - taken)).cast("B")
            count = min(len(buffer), len(piece) - taken)
            if not count:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:count] = piece[taken : taken + count]
            buffer.release()
            taken += count
            protocol.buffer_updated(count)
        return taken

    def on_writable(self) -> None:
        if self._write_paused and self._socket.buffer_bytes <= self._low and self._protocol is not None:
            self._write_paused = False
            self._protocol.resume_writing()

    # --- endings ---

    def on_broken(self, error: Exception | None) -> None:
        self._closing = True
        self._connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._socket.close()
            self._loop.call_soon(self._connection_lost, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._socket.close(reset=True)
            self._loop.call_soon(self._connection_lost, None)

    def _connection_lost(self, error: Exception | None) -> None:
        if not self._lost and self._protocol is not None:
            self._lost = True
            self._protocol.connection_lost(error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol


class SimServer(asyncio.AbstractServer):
    """A listening port, as `loop.create_server` returns it."""

    def __init__(self, network: Network, process: Process, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self.process = process
        self.sockets: tuple[SocketInfo, ...] = ()
        self._network = network
        self._factory = factory
        self._address: tuple[str, int] | None = None

    def bind(self, host: str | None, port: int) -> None:
        self._address = self._network.bind(self.process, host, port, self)
        self.sockets = (SocketInfo((host or self._address[0], self._address[1])),)

    def accept(self, socket: Socket) -> None:
        SimTransport(socket).start(self._factory())

    def close(self) -> None:
        if self._address is not None:
            self._network.unbind(self._address, self)
            self._address = None
            self.sockets = ()

    def is_serving(self) -> bool:
        return self._address is not None

    async def start_serving(self) -> None:
        """Do nothing: it serves from the start."""

    async def serve_forever(self) -> None:
        await self.process.machine.disk.loop.create_future()

    async def wait_closed(self) -> None:
        """Returns at once, as asyncio's does on Python 3.11."""

    async def __aenter__(self) -> SimServer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


class NetworkTransports:
    """Servers and connections of the processes on one network, for `loop.create_server` and its like."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | list[str] | None, port: int | None
    ) -> SimServer:
        """A server of the current process."""
        process = current_process()
        if process is None:
            raise RuntimeError("only a simulated process can listen")
        server = SimServer(self._network, process, factory)
        server.bind(host[0] if isinstance(host, (list, tuple)) else host, port or 0)
        return server

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """A connection of the current process."""
        transport = SimTransport(await self._network.connect(host, int(port)))
        protocol = factory()
        transport.start(protocol)
        return transport, protocol
