"""The `Rpc` port of a simulated process: production's, over simulated sockets.

What travels between nodes is the same as in production, byte for byte: HTTP/2, in pieces at random, over connections
that are late, cut and reset. Where the network says so (`Network.lateness`, `repetition`), single calls overtake each
other and arrive twice, as they do when a client repeats what it believes lost: their handlers begin later, and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from strandline.chaos.sim.network import Network
from strandline.chaos.sim.process import Process
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.node.internal.grpc_server import Handlers, log_failed_call
from strandline.cluster.node.internal.grpc_stream import GrpcStream
from strandline.cluster.node.internal.internal_tls import InternalTls
from strandline.proto.errors import ConfigError
from strandline.proto.ports import StreamHandler, UnaryHandler


class SimRpc(GrpcRpc):
    """Calls of one process, and to it."""

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__(network.rng, network.config.frame_bytes_max)
        self._network = network
        self._process = process

    def secure(self, tls: InternalTls) -> None:
        """Refuse TLS: raises ConfigError, for OpenSSL draws chance of its own, and no seed would replay."""
        raise ConfigError("listener.security.protocol.map", "INTERNAL:SSL", "PLAINTEXT in the simulator")

    def handlers(self, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]) -> Handlers:
        return _UnrulyHandlers(self._network, self._process, unary, streams)


class _UnrulyHandlers(Handlers):
    """Handlers whose calls begin late, behind younger ones, and begin twice."""

    def __init__(
        self,
        network: Network,
        process: Process,
        unary: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
    ) -> None:
        super().__init__(unary, streams, network.config.frame_bytes_max)
        self._network = network
        self._here = process.machine.name

    async def answer(self, method: str, handler: UnaryHandler, stream: GrpcStream) -> None:
        route = (stream.peer.rpartition(":")[0], self._here)

        async def unruly(request: bytes) -> bytes:
            late_us, again_us = self._network.lateness(*route), self._network.repetition(*route, method)
            if again_us:
                self.start_task(self._unheard(method, handler, request, late_us + again_us))
            if late_us:
                try:
                    await asyncio.sleep(late_us / 1e6)
                except asyncio.CancelledError:
                    # Its caller gave it up meanwhile: it is carried out all the same, when it comes.
                    self.start_task(self._unheard(method, handler, request, late_us))
                    raise
            answer = await handler(request)
            if answer_us := self._network.answer_lateness(method):
                await asyncio.sleep(answer_us / 1e6)
            return answer

        await super().answer(method, unruly, stream)

    async def _unheard(self, method: str, handler: UnaryHandler, request: bytes, wait_us: int) -> None:
        """Run a handler whose caller no longer waits. An error is logged as for any other call."""
        await asyncio.sleep(wait_us / 1e6)
        try:
            await handler(request)
        except Exception as error:
            log_failed_call(method, error)
