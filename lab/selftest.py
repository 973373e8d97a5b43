"""A small workload that touches every part of the world, for the self-test: one seed, many processes, one trace.

``python -m lab.selftest SEED [cluster]`` prints the trace hash, with ``cluster`` that of a
cluster under faults. The small workload does on purpose what breaks determinism:
sets of tasks, task groups, timers of one instant, cancellations, executors, kills in mid-flight, garbage.
"""

from __future__ import annotations

import asyncio
import os
import sys

from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.log.disk import read_file, write_file_durably
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcError, Stream

_MACHINES = ("n1", "n2", "n3")


class Counter:
    """A node of the workload: counts what its peers tell it, keeps the count on disk, answers over TCP and RPC."""

    def __init__(self, name: str, ports: Ports) -> None:
        self.name = name
        self.ports = ports
        self.count = 0

    async def run(self) -> None:
        ports = self.ports
        if ports.disk.exists("/count"):
            self.count = int(read_file(ports.disk, "/count") or b"0")
        await ports.rpc.serve(Endpoint(self.name, 1), {"/Add": self.add}, {"/Watch": self.watch})
        await asyncio.start_server(self.serve, "0.0.0.0", 2)
        async with asyncio.TaskGroup() as group:
            for peer in _MACHINES:
                if peer != self.name:
                    group.create_task(self.pester(peer))
                    group.create_task(self.chat(peer))

    async def add(self, request: bytes) -> bytes:
        self.count += int(request)
        write_file_durably(self.ports.disk, "/count", b"%d" % self.count)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        return b"%d" % self.count

    async def watch(self, stream: Stream) -> None:
        while await stream.read() is not None:
            await stream.write(b"%d" % self.count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line * 3)
            await writer.drain()
        writer.close()

    async def pester(self, peer: str) -> None:
        """Several calls at once, the first answer wins, the others are cancelled."""
        while True:
            calls = {
                asyncio.get_running_loop().create_task(self.call(peer, self.ports.rng.randint(1, 9))) for _ in range(3)
            }
            done, late = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            for task in late:
                task.cancel()
            for task in done:
                self.count += task.result()
            await asyncio.sleep(0.05)

    async def call(self, peer: str, number: int) -> int:
        try:
            return int(await self.ports.rpc.call(Endpoint(peer, 1), "/Add", b"%d" % number, timeout_ms=20)) % 7
        except RpcError:
            return 0

    async def chat(self, peer: str) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(peer, 2)
                for number in range(20):
                    writer.write(b"%d says %d\n" % (self.count, number))
                    await reader.readline()
                writer.close()
                stream = await self.ports.rpc.open_stream(Endpoint(peer, 1), "/Watch", timeout_ms=100)
                await stream.write(b"?")
                self.count += len(await stream.read() or b"")
                stream.close()
            except (OSError, RpcError):
                self.count += 1
            await asyncio.sleep(0.03)


async def _scenario(world: World) -> None:
    def start(name: str) -> None:
        world.spawn(name, lambda ports: Counter(name, ports).run())

    for name in _MACHINES:
        start(name)
    for turn in range(6):
        victim = _MACHINES[turn % 3]
        await world.sleep_ms(300)
        if turn % 2:
            world.power_cut(victim)
        else:
            world.kill(victim)
        world.partition(_MACHINES[(turn + 1) % 3], _MACHINES[(turn + 2) % 3], one_way=turn > 2)
        await world.sleep_ms(200)
        start(victim)
        world.heal()


def trace(seed: int) -> str:
    """The trace hash of the workload under `seed`, with figures that name what ran."""
    config = WorldConfig(network=NetworkConfig(loss_probability=0.01), clock_rate_error=0.02, wall_error_ms=5000)
    world = World(seed, config)
    for name in _MACHINES:
        world.add_machine(name)
    world.run(_scenario(world))
    return f"{world.trace:016x} {world.loop.events} events {world.now_ms:.0f} ms"


def cluster_trace(seed: int) -> str:
    """The trace hash of a cluster under faults."""
    from strandline.chaos.scenario import ScenarioRun

    return str(ScenarioRun(seed).execute()["trace"])


if __name__ == "__main__":
    chosen = cluster_trace if sys.argv[2:] == ["cluster"] else trace
    sys.stdout.write(chosen(int(sys.argv[1])) + "\n")
    sys.stdout.flush()
    os._exit(0)  # no finalisation: it would run the `finally` blocks of simulated processes that are dead
