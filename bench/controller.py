"""Costs of a controller that has very many partitions: `python -m bench.controller`.

One process, in which nothing is replaced but the network: a quorum of one on a real directory, the publisher of its
image, the active controller. Topics are created by requests as clients send them; then a broker with many leaderships
dies, the controller starts again from its log, takes a snapshot, and starts from that.

Beside each figure stands the longest time for which the event loop was held, in milliseconds of processor time, as
other programs on the machine do not count: no vote, no heartbeat and no client is served in it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import psutil
import structlog

from strandline.controller import methods
from strandline.controller.api import CreatableTopic, CreateTopicsRequest
from strandline.controller.broker_api import Heartbeat, PingReply, RegisterBrokerRequest, told
from strandline.controller.controller import Controller, ControllerConfig
from strandline.controller.machine import brokers
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.features import METADATA_FEATURE, OWN_LEVELS
from strandline.controller.metadata.publisher import ImagePublisher, ImageRehearsal
from strandline.controller.operations import CREATE_TOPICS
from strandline.controller.quorum.api import QuorumConfig, Voter
from strandline.controller.quorum.quorum import DIRECTORY, Quorum
from strandline.log.real_disk import RealDisk
from strandline.proto.ids import Endpoint, NodeId, Offset
from strandline.proto.ports import RpcUnavailable
from strandline.proto.system import SystemClock

PARTITIONS = 100_000
TOPIC_PARTITIONS = 100
TOPICS_A_REQUEST = 10
FACTOR = 3
BROKERS = 10
FIRST_PORT = 10_000
DEADLINE_S = 300.0
HELD_MAX_MS = 250.0
"""Promise for each step. A vote is waited for a second, a probe of a broker longer."""

ME = NodeId(1)
VICTIM = NodeId(1)
QUIET = {"session_timeout_ms": 86_400_000, "silence_timeout_ms": 86_400_000}
"""No broker runs, and none is to be fenced before its time."""


class Pings:
    """A network on which every broker answers a probe, but those that are `gone`."""

    def __init__(self) -> None:
        self.gone: set[NodeId] = set()

    async def call(self, endpoint: Endpoint, *_: Any, **__: Any) -> bytes:
        number = NodeId(endpoint.port - FIRST_PORT)
        if number in self.gone:
            raise RpcUnavailable("nothing listens there")
        return methods.PING.reply.encode(PingReply(number, UUID(int=number), told(OWN_LEVELS), "bench"))


class Held:
    """The longest call that the event loop made, in time of the processor."""

    def __init__(self) -> None:
        self._worst_s = 0.0
        self._run = asyncio.Handle._run  # type: ignore[attr-defined]  # what the loop does with each call
        asyncio.Handle._run = self._measured()  # type: ignore[attr-defined]

    def _measured(self) -> Callable[[asyncio.Handle], None]:
        run = self._run

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            self._worst_s = max(self._worst_s, time.thread_time() - began)

        return measured

    def worst_ms(self) -> float:
        """Since the last call of this."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s * 1000

    def stop(self) -> None:
        asyncio.Handle._run = self._run  # type: ignore[attr-defined]


class Node:
    """A controller on a directory."""

    def __init__(self, directory: str) -> None:
        self.clock = SystemClock()
        self.rpc = Pings()
        self.failed: list[BaseException] = []
        rng, rpc = random.Random(1), self.rpc
        self.quorum = Quorum(
            node_id=ME,
            directory_id=UUID(int=ME),
            cluster_id="bench",
            voters=[Voter(ME, UUID(int=ME), Endpoint("127.0.0.1", 1))],
            is_voter=True,
            disk=RealDisk(),
            clock=self.clock,
            rng=rng,
            rpc=rpc,  # type: ignore[arg-type]
            data_dir=directory,
            config=QuorumConfig(),
            on_fatal=self.failed.append,
        )
        self.publisher = ImagePublisher("bench")
        self.quorum.register(self.publisher)
        self.quorum.rehearse_on(ImageRehearsal(self.publisher))
        config = ControllerConfig()
        self.controller = Controller(
            node_id=ME,
            quorum=self.quorum,
            publisher=self.publisher,
            rpc=rpc,  # type: ignore[arg-type]
            clock=self.clock,
            rng=rng,
            config=config.replaced(machine=config.machine.replaced(times=config.machine.times.replaced(**QUIET))),
            on_fatal=self.failed.append,
        )
        self.quorum.register(self.controller)

    async def start(self) -> None:
        await self.quorum.start()
        await self.until(lambda: self.controller.active and self.publisher.image.metadata_version > 0)

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.perf_counter() + DEADLINE_S
        while not holds():
            if self.failed:
                raise self.failed[0]
            if time.perf_counter() > deadline:
                raise TimeoutError(f"not within {DEADLINE_S:g} s")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        self.controller.close()
        await self.quorum.close()

    async def join(self, number: NodeId) -> None:
        """A broker registers, and is unfenced."""
        first, last = OWN_LEVELS[METADATA_FEATURE]
        here = Endpoint("127.0.0.1", FIRST_PORT + number)
        request = RegisterBrokerRequest(
            "bench", number, UUID(int=number), {"PLAINTEXT": here}, here, features=told(OWN_LEVELS),
            min_metadata_version=first, max_metadata_version=last,
        )  # fmt: skip
        now_ms = self.clock.monotonic_ms
        await self.controller.submit(lambda state, at: brokers.register_broker(state, request, at, now_ms()))
        await self.heartbeat(number)

    async def heartbeat(self, number: NodeId) -> None:
        def beat(state: MachineState, next_offset: int) -> Result[Any]:
            epoch, offset = state.image.brokers[number].broker_epoch, Offset(self.publisher.image.offset)
            sent = Heartbeat(number, epoch, offset, False, False)
            return brokers.heartbeat(state, sent, next_offset, self.clock.monotonic_ms())

        await self.controller.submit(beat)

    async def create(self, first: int, topics: int, partitions: int = TOPIC_PARTITIONS) -> None:
        names = [f"topic-{number}" for number in range(first, first + topics)]
        wanted = tuple(CreatableTopic(name, partitions, FACTOR) for name in names)
        await self.controller.carry_out(CREATE_TOPICS, CreateTopicsRequest(wanted))

    async def lose(self, number: NodeId) -> None:
        """A broker's process dies; until it is fenced and leads nothing."""

        def broke(state: MachineState, _: int) -> Result[None]:
            state.sessions.stream_opened(number)
            state.sessions.stream_broke(number, self.clock.monotonic_ms())
            return Result(None)

        self.rpc.gone.add(number)
        await self.controller.submit(broke)
        await self.until(lambda: self.publisher.image.brokers[number].fenced)

    def led_by(self, number: NodeId) -> int:
        return sum(part.leader == number for _, part in self.publisher.image.partitions())


@dataclass
class Figures:
    """Seconds, seconds of the processor, and milliseconds at a stretch, by what was done; megabytes."""

    partitions: int
    brokers: int
    leaders_lost: int = 0
    image_mb: float = 0.0
    took_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    held_ms: dict[str, float] = field(default_factory=dict)


async def measure(partitions: int, count: int, say: Callable[[str], None]) -> Figures:
    """Run it once."""
    figures, held = Figures(partitions, count), Held()

    async def timed(name: str, work: Awaitable[None]) -> None:
        say(name)
        await asyncio.sleep(0)
        held.worst_ms()
        began, used = time.perf_counter(), time.process_time()
        await work
        figures.took_s[name] = round(time.perf_counter() - began, 2)
        figures.cpu_s[name] = round(time.process_time() - used, 2)
        await asyncio.sleep(0)
        figures.held_ms[name] = round(held.worst_ms(), 1)

    async def load(node: Node) -> None:
        for first in range(0, partitions // TOPIC_PARTITIONS, TOPICS_A_REQUEST):
            await node.create(first, TOPICS_A_REQUEST)

    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        node = Node(directory)
        await node.start()
        for number in range(1, count + 1):
            await node.join(NodeId(number))
        before = _rss_mb()
        await timed("load", load(node))
        figures.image_mb = round(_rss_mb() - before, 1)
        await timed("one topic more", node.create(partitions, 1, 1))
        await timed("a heartbeat", node.heartbeat(NodeId(2)))
        figures.leaders_lost = node.led_by(VICTIM)
        await timed("a broker dies", node.lose(VICTIM))
        await node.close()
        node = Node(directory)
        await timed("start from the log", node.start())
        await timed("snapshot", _snapshot(node, directory))
        await node.close()
        node = Node(directory)
        await timed("start from the snapshot", node.start())
        await node.close()
    held.stop()
    return figures


async def _snapshot(node: Node, directory: str) -> None:
    node.quorum.snapshot_soon()
    await node.until(lambda: any(Path(directory, DIRECTORY).glob("*.checkpoint")))


def _rss_mb() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


@click.command(help=__doc__)
@click.option("--partitions", type=click.IntRange(1_000, 200_000), default=PARTITIONS, show_default=True)
@click.option("--brokers", "count", type=click.IntRange(FACTOR, 100), default=BROKERS, show_default=True)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(partitions: int, count: int, output: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.disable()  # as in a node, whose collections have a share of the time of their own
    figures = asyncio.run(measure(partitions, count, lambda line: click.echo(f"... {line}", err=True)))
    if output == "json":
        click.echo(json.dumps(figures.__dict__))
    else:
        click.echo(f"{partitions:,} partitions, {FACTOR} replicas each, on {count} brokers: {figures.image_mb} MB")
        click.echo(f"the broker that dies leads {figures.leaders_lost:,}")
        for name, took_s in figures.took_s.items():
            used, held = figures.cpu_s[name], figures.held_ms[name]
            click.echo(f"{name:26}{took_s:8.2f} s   of the processor {used:6.2f} s   at a stretch {held:7.1f} ms")
    if partitions <= PARTITIONS and figures.held_ms["a broker dies"] > HELD_MAX_MS:
        sys.exit(1)


if __name__ == "__main__":
    main()
