"""One end of a simulated connection: buffering, the window, what arrives, how it ends. `network` moves the items."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Protocol

from strandline.chaos.sim.links import Link, NetworkConfig
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.process import Process


class Receiver(Protocol):
    """The upper side of a socket. All methods are called in the context of the process that owns the socket."""

    def on_item(self, item: Any, size: int) -> None:
        """Take one item that arrived. The receiver calls `socket.consumed(size)` when it has taken it in."""

    def on_end(self) -> None:
        """Hear that the peer sent all it will send."""

    def on_broken(self, error: Exception | None) -> None:
        """Hear that the connection is gone; nothing else will be called."""

    def on_writable(self) -> None:
        """Buffered items have left: there may be room again."""


class Listener(Protocol):
    """The acceptor of connections at a port."""

    process: Process

    def accept(self, socket: Socket) -> None:
        """Take the server's end; called in the context of the listening process."""


class Wire(Protocol):
    """The network (`strandline.chaos.sim.network.Network`), as one end of a connection uses it."""

    loop: SimLoop
    rng: random.Random
    config: NetworkConfig
    sockets: dict[Socket, None]
    delivered_bytes: int

    def link(self, source: str, target: str) -> Link: ...
    def transmit(self, sender: Socket, item: Any, size: int) -> None: ...
    def hold(self, sender: Socket, item: Any, size: int) -> None: ...
    def forget(self, socket: Socket) -> None: ...
    def reset_peer(self, socket: Socket) -> None: ...
    def answer_orphan(self, socket: Socket) -> None: ...
    def lateness(self, source: str, target: str) -> int: ...
    def answer_lateness(self, method: str) -> int: ...
    def repetition(self, source: str, target: str, method: str) -> int: ...


END = object()
"""Item that marks the end of a stream."""


class Socket:
    """One end of a connection, owned by a process.

    `send` never blocks: items over the window wait in `buffer`, whose size the upper side watches.
    """

    def __init__(self, network: Wire, process: Process, local: tuple[str, int], remote: tuple[str, int]) -> None:
        self.network = network
        self.process = process
        self.local = local
        self.remote = remote
        self.peer: Socket | None = None
        self.receiver: Receiver | None = None
        self.number = network.loop.next_number()
        self.closed = False
        self.orphaned = False
        self.doomed = False
        self.end_sent = False
        self.buffer: deque[tuple[Any, int]] = deque()
        self.buffer_bytes = 0
        self.in_flight_bytes = 0
        self.last_arrival_us = 0
        self.held: deque[tuple[Any, int]] = deque()
        self.stalled = False
        """True while data sent by this end is delayed: this connection is slow, and others are not."""
        self.releasing = False
        """The link has healed, and what was held is on its way to the peer."""
        self.early: list[tuple[Any, int]] = []
        network.sockets[self] = None

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def attach(self, receiver: Receiver) -> None:
        """Connect the upper side; what arrived before it is handed over now."""
        self.receiver = receiver
        early, self.early = self.early, []
        for item, size in early:
            self._deliver(receiver, item, size)

    # --- the sender's side ---

    def send(self, item: Any, size: int) -> None:
        """Queue one item for the peer. On a closed socket it goes nowhere, as with asyncio's transports."""
        if self.closed or self.end_sent:
            return
        self.buffer.append((item, size))
        self.buffer_bytes += size
        if self.orphaned:
            self.network.answer_orphan(self)
        else:
            self._pump()

    def finish(self) -> None:
        """Send end-of-stream after all that is buffered."""
        if not self.end_sent and not self.closed:
            self.buffer.append((END, 0))
            self._pump()
            self.end_sent = True

    def close(self, *, reset: bool = False) -> None:
        """Give the socket up. What is buffered is dropped when `reset`, else it still leaves, with an end behind it."""
        if self.closed:
            return
        if reset or self.orphaned:
            self.network.reset_peer(self)
        else:
            self.finish()
        self.closed = True
        if reset:
            self.buffer.clear()
            self.buffer_bytes = 0
        self.network.forget(self)

    def _pump(self) -> None:
        if not self.process.alive:
            self.buffer.clear()
            return
        window = self.network.config.window_bytes
        while self.buffer and self.in_flight_bytes < window:
            item, size = self.buffer.popleft()
            self.buffer_bytes -= size
            self.in_flight_bytes += size
            self.network.transmit(self, item, size)

    def consumed(self, size: int) -> None:
        """Open the window of the sender by `size`; called on the receiving end."""
        sender = self.peer
        if sender is None:
            return
        sender.in_flight_bytes -= size
        if sender.buffer:
            sender._pump()
            if not sender.closed and sender.receiver is not None:
                self.network.loop.call_soon(sender._writable, context=sender.process.context)

    def _writable(self) -> None:
        if not self.closed and self.receiver is not None:
            self.receiver.on_writable()

    # --- the receiver's side; runs in the owner's context ---

    def arrive(self, item: Any, size: int, *, in_turn: bool = False) -> None:
        """`in_turn`: it was held, and is the oldest of what was."""
        sender = self.peer
        if (
            sender is not None
            and not in_turn
            and (sender.held or sender.stalled or self.network.link(sender.local[0], self.local[0]).blocked)
        ):
            self.network.hold(sender, item, size)
            return
        if self.closed:
            if not self.orphaned:
                self.network.reset_peer(self)
            return
        if self.receiver is None:
            self.early.append((item, size))
        else:
            self._deliver(self.receiver, item, size)

    def _deliver(self, receiver: Receiver, item: Any, size: int) -> None:
        if item is END:
            receiver.on_end()
        else:
            self.network.delivered_bytes += size
            receiver.on_item(item, size)

    def break_off(self, error: Exception | None) -> None:
        """Break the connection under its owner."""
        if self.closed:
            return
        self.closed = True
        self.buffer.clear()
        self.buffer_bytes = 0
        self.network.forget(self)
        if self.receiver is not None:
            self.receiver.on_broken(error)
