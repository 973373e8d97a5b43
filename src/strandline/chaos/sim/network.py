"""Connections between machines: latency, loss as delay, partitions, breaks, refused and black-holed connects.

A connection is a pair of `Socket`s. Items with a size travel over it in order: pieces of a byte stream for `transport`,
frames for `rpc`. The model is that of TCP:

- a blocked link (one direction) holds items and delivers them, in order, some time after it heals; a sender whose data
  is held too long closes the connection (ETIMEDOUT), and its peer notices only when it sends something itself,
- the machine of a killed process answers for it: peers get end-of-stream or a reset, and new connects are refused,
- a machine without power answers nothing: peers notice when their data is not acknowledged, and connects get no answer,
- a window bounds the bytes in flight, so that a reader that stops stalls the writer.

A byte stream is never reordered or duplicated, but single calls may be: `rpc` asks `lateness` and `repetition` for each
call, so that requests of one caller overtake each other, arrive after the caller gave up, or arrive twice.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.chaos.sim.links import Link, NetworkConfig
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.process import Machine, Process, ProcessState, current_process
from strandline.chaos.sim.sockets import END, Listener, Socket

LOCAL_NAMES = frozenset({"", "0.0.0.0", "127.0.0.1", "::", "::1", "localhost"})

_WORLD = contextvars.Context()
"""Context of callbacks that belong to the network itself and to no process."""


@dataclass
class Network:
    """All machines, links, listeners and open sockets."""

    loop: SimLoop
    rng: random.Random
    config: NetworkConfig
    machines: dict[str, Machine] = field(default_factory=dict)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    listeners: dict[tuple[str, int], Listener] = field(default_factory=dict)
    sockets: dict[Socket, None] = field(default_factory=dict)
    holding: dict[Socket, None] = field(default_factory=dict)
    """Senders whose items are held by a blocked link, in order of arrival."""
    delivered_bytes: int = 0

    def link(self, source: str, target: str) -> Link:
        key = (source, target)
        found = self.links.get(key)
        if found is None:
            found = self.links[key] = Link(source, target)
        return found

    # --- addresses ---

    def bind(self, process: Process, host: str | None, port: int, listener: Listener) -> tuple[str, int]:
        """Listen at `port` of the process's machine (0: the next free one). `host` is any name of this machine.

        Raises:
            OSError: the port is taken.
        """
        process.require_alive()
        machine = process.machine
        if not port:
            while (machine.name, machine.next_port) in self.listeners:
                machine.next_port += 1
            port = machine.next_port
            machine.next_port += 1
        address = (machine.name, port)
        if address in self.listeners:
            raise OSError(98, f"Address already in use: {host}:{port}")
        self.listeners[address] = listener
        return address

    def unbind(self, address: tuple[str, int], listener: Listener) -> None:
        if self.listeners.get(address) is listener:
            del self.listeners[address]

    # --- connecting ---

    async def connect(self, host: str, port: int) -> Socket:
        """A connection from the current process to a listener.

        Raises:
            ConnectionRefusedError: the machine is up and nobody listens there.
            TimeoutError: no answer within the connect timeout (blocked, or without power).
            OSError: no such machine.
        """
        process = current_process()
        if process is None:
            raise RuntimeError("only a simulated process can connect")
        process.require_alive()
        source = process.machine.name
        target = source if host in LOCAL_NAMES else host
        if target not in self.machines:
            raise OSError(-2, f"Name or service not known: {host}")
        there, back = self.link(source, target), self.link(target, source)
        deadline_us = self.loop.now_us + self.config.connect_timeout_us
        retry_us = 1_000_000
        while True:
            await self._travel(there)
            if not there.blocked and self.machines[target].powered and not self._lost(there):
                listener = self.listeners.get((target, port))
                if listener is None or not listener.process.alive:
                    if not back.blocked:
                        await self._travel(back)
                        raise ConnectionRefusedError(111, f"Connection refused: {host}:{port}")
                elif not back.blocked:
                    socket = self._pair(process, listener, (target, port))
                    try:
                        await self._travel(back)
                    except asyncio.CancelledError:
                        socket.close(reset=True)
                        raise
                    if socket.closed:
                        raise ConnectionResetError(104, f"Connection reset by peer: {host}:{port}")
                    return socket
            if self.loop.now_us + retry_us >= deadline_us:
                await self._until(max(deadline_us, self.loop.now_us))
                raise TimeoutError(110, f"Connection timed out: {host}:{port}")
            await self._until(self.loop.now_us + retry_us)
            retry_us *= 2

    def _pair(self, process: Process, listener: Listener, address: tuple[str, int]) -> Socket:
        machine = process.machine
        local = (machine.name, machine.next_port)
        machine.next_port += 1
        client = Socket(self, process, local, address)
        server = Socket(self, listener.process, address, local)
        client.peer, server.peer = server, client
        self.loop.call_soon(_accept, listener, server, context=listener.process.context)
        return client

    async def _travel(self, link: Link) -> None:
        await self._until(self.loop.now_us + self._latency(link))

    async def _until(self, due_us: int) -> None:
        future = self.loop.create_future()
        self.loop.call_at_us(due_us, _wake, future)
        await future

    # --- transmission ---

    def _latency(self, link: Link) -> int:
        config = self.config
        if link.extra_latency_us:
            self.loop.effects["link-slow"] += 1
        spread = config.latency_max_us - config.latency_min_us
        return config.latency_min_us + int(self.rng.random() * spread) + link.extra_latency_us

    def _lost(self, link: Link) -> bool:
        probability = max(self.config.loss_probability, link.loss_probability)
        lost = probability > 0 and self.rng.random() < probability
        if lost:
            self.loop.effects["packet-lost"] += 1
        return lost

    def lateness(self, source: str, target: str) -> int:
        """Microseconds between a call's arrival and its execution, drawn for each call."""
        probability = max(self.config.late_probability, self.link(source, target).late_probability)
        if probability > 0 and self.rng.random() < probability:
            self.loop.effects["call-late"] += 1
            return self.rng.randint(1, self.config.late_max_us)
        return 0

    def answer_lateness(self, method: str) -> int:
        """Microseconds between a call's execution and the departure of its answer, drawn for each call."""
        return self._lateness_of(method, self.config.late_answers, "answer-late")

    def _lateness_of(self, method: str, late: Sequence[str], effect: str) -> int:
        if method not in late or self.rng.random() >= self.config.method_probability:
            return 0
        self.loop.effects[effect] += 1
        return self.rng.randint(1, self.config.method_max_us)

    def repetition(self, source: str, target: str, method: str) -> int:
        """Microseconds after which a call arrives a second time; 0 if it does not."""
        if again_us := self._lateness_of(method, self.config.repeated_methods, "call-twice"):
            return again_us
        probability = max(self.config.repeat_probability, self.link(source, target).repeat_probability)
        if probability > 0 and self.rng.random() < probability:
            self.loop.effects["call-twice"] += 1
            return self.rng.randint(1, self.config.repeat_max_us)
        return 0

    def transmit(self, sender: Socket, item: Any, size: int) -> None:
        """Put one item on the wire to the peer; it arrives in order."""
        receiver = sender.peer
        assert receiver is not None
        link = self.link(sender.local[0], receiver.local[0])
        arrival_us = self.loop.now_us + self._latency(link)
        if self._lost(link):
            arrival_us += self.config.retransmit_us + int(self.rng.random() * self.config.retransmit_us)
        arrival_us = max(arrival_us, sender.last_arrival_us)
        sender.last_arrival_us = arrival_us
        self.loop.call_at_us(arrival_us, receiver.arrive, item, size, context=receiver.process.context)

    def hold(self, sender: Socket, item: Any, size: int) -> None:
        """Hold an item of a blocked link until the link heals; close the connection if that takes too long."""
        if sender.releasing and sender.peer is not None:
            sender.held.append((item, size))
            self._deliver_soon(sender, sender.peer)
            return
        if not sender.held:
            self.loop.call_at_us(self.loop.now_us + self.config.give_up_us, self._give_up, sender, context=_WORLD)
            self.holding[sender] = None
        sender.held.append((item, size))
        self.loop.effects["link-blocked"] += 1

    def _give_up(self, sender: Socket) -> None:
        if not sender.held:
            return
        sender.held.clear()
        self.holding.pop(sender, None)
        self.loop.effects["given-up"] += 1
        if sender.peer is not None:
            sender.peer.orphaned = True
        self._break(sender, TimeoutError(110, "Connection timed out"))

    # --- endings ---

    def forget(self, socket: Socket) -> None:
        self.sockets.pop(socket, None)

    def reset_peer(self, socket: Socket) -> None:
        """Send a reset to the other end. If the link is blocked, it is lost and the peer notices nothing."""
        peer = socket.peer
        if peer is None or peer.closed:
            return
        link = self.link(socket.local[0], peer.local[0])
        if link.blocked or socket.stalled:
            peer.orphaned = True
            return
        due_us = self.loop.now_us + self._latency(link)
        error = ConnectionResetError(104, "Connection reset by peer")
        self.loop.call_at_us(due_us, peer.break_off, error, context=peer.process.context)

    def _break(self, socket: Socket, error: Exception | None) -> None:
        self.loop.call_soon(socket.break_off, error, context=socket.process.context)

    def answer_orphan(self, socket: Socket) -> None:
        """Answer data that `socket` sent to a process that has ended: its machine sends a reset; if the machine cannot
        be reached, the connection times out."""
        if socket.doomed:
            return
        socket.doomed = True
        target = self.machines[socket.remote[0]]
        reachable = (
            target.powered
            and not self.link(socket.local[0], target.name).blocked
            and not self.link(target.name, socket.local[0]).blocked
        )
        if reachable:
            error: OSError = ConnectionResetError(104, "Connection reset by peer")
            due_us = self.loop.now_us + 2 * self.config.latency_max_us
        else:
            error = TimeoutError(110, "Connection timed out")
            due_us = self.loop.now_us + self.config.give_up_us
        self.loop.call_at_us(due_us, socket.break_off, error, context=socket.process.context)

    # --- faults ---

    def block(self, source: str, target: str) -> None:
        """Block the link from `source` to `target`. The other direction is not changed."""
        self.link(source, target).blocked = True

    def heal(self, source: str, target: str) -> None:
        """Unblock a link. Held items arrive after the delay of a retransmission."""
        link = self.link(source, target)
        if not link.blocked:
            return
        link.blocked = False
        for sender in self.holding:
            if sender.local[0] == source and sender.remote[0] == target:
                due_us = self.loop.now_us + int(self.rng.random() * self.config.retransmit_us)
                self.loop.call_at_us(due_us, self._release, sender, context=_WORLD)

    def _release(self, sender: Socket) -> None:
        receiver = sender.peer
        assert receiver is not None
        if sender.stalled or self.link(sender.local[0], receiver.local[0]).blocked:
            return
        self.holding.pop(sender, None)
        sender.last_arrival_us = max(sender.last_arrival_us, self.loop.now_us)
        sender.releasing = True
        for _ in sender.held:
            self._deliver_soon(sender, receiver)

    def _deliver_soon(self, sender: Socket, receiver: Socket) -> None:
        self.loop.call_at_us(self.loop.now_us, self._deliver_held, sender, receiver, context=receiver.process.context)

    def _deliver_held(self, sender: Socket, receiver: Socket) -> None:
        """Deliver the oldest held item. New items wait behind the held ones."""
        if sender.held:
            item, size = sender.held.popleft()
            sender.releasing = bool(sender.held)
            receiver.arrive(item, size, in_turn=True)

    def stall(self, sender: Socket, duration_us: int) -> None:
        """Delay everything that this end of a connection sends by `duration_us`. Other connections are not slowed."""
        sender.stalled = True
        self.loop.effects["connection-stalled"] += 1
        self.loop.call_at_us(self.loop.now_us + duration_us, self._go_on, sender, context=_WORLD)

    def _go_on(self, sender: Socket) -> None:
        sender.stalled = False
        if sender.held and not sender.releasing:
            self._release(sender)

    def heal_all(self) -> None:
        for link in list(self.links.values()):
            link.extra_latency_us = 0
            link.loss_probability = 0.0
            link.late_probability = 0.0
            link.repeat_probability = 0.0
            self.heal(link.source, link.target)

    def break_connections(self, first: str, second: str) -> int:
        """Reset every connection between two machines, both ends at once. Returns the number of connections."""
        broken = 0
        for socket in list(self.sockets):
            if socket.local[0] == first and socket.remote[0] == second and not socket.closed:
                self._break(socket, ConnectionResetError(104, "Connection reset by peer"))
                if socket.peer is not None:
                    self._break(socket.peer, ConnectionResetError(104, "Connection reset by peer"))
                broken += 1
                self.loop.effects["connection-reset"] += 1
        return broken

    def process_died(self, process: Process, *, silent: bool) -> None:
        """Close a dead process's listeners and sockets as its kernel would. `silent`: the machine has lost power."""
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]
        for socket in list(self.sockets):
            if socket.process is not process:
                continue
            socket.closed = True
            self.forget(socket)
            peer = socket.peer
            if peer is None or peer.closed:
                continue
            socket.buffer.clear()
            if silent:
                socket.held.clear()
                self.holding.pop(socket, None)
                peer.orphaned = True
                if peer.buffer or peer.in_flight_bytes:
                    self.answer_orphan(peer)
            elif self.rng.random() < 0.5 and not self.link(socket.local[0], peer.local[0]).blocked:
                self.reset_peer(socket)
            else:
                self._end_of_the_dead(socket)

    def _end_of_the_dead(self, socket: Socket) -> None:
        """End a dead process's connection: what the kernel had already sent arrives, then a plain end of stream."""
        peer = socket.peer
        assert peer is not None
        peer.orphaned = True
        self.transmit(socket, END, 0)


def _accept(listener: Listener, socket: Socket) -> None:
    if listener.process.state is ProcessState.DEAD:
        return
    listener.accept(socket)


def _wake(future: Any) -> None:
    if not future.done():
        future.set_result(None)
