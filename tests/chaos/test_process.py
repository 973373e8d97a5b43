"""Death without politeness: a kill is not a cancellation (rule E8)."""

from __future__ import annotations

import asyncio
import gc

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World


def test_a_killed_process_runs_no_finally() -> None:
    """kill -9: no `finally`, no `except CancelledError`, no GeneratorExit, not even when all is collected later."""
    world = World(1)
    world.add_machine("n1")
    log: list[str] = []

    async def main(ports: Ports) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(worker())
                log.append("started")
                await asyncio.sleep(1000)
        finally:
            log.append("finally of main")

    async def worker() -> None:
        try:
            while True:
                await asyncio.sleep(0.1)
                log.append("tick")
        finally:
            log.append("finally of worker")

    async def scenario() -> None:
        world.spawn("n1", main)
        await asyncio.sleep(0.25)
        world.kill("n1")
        await asyncio.sleep(10)

    world.run(scenario())
    gc.collect()
    assert log == ["started", "tick", "tick"]


def test_a_pause_defers_everything_in_order() -> None:
    """SIGSTOP: timers that came due meanwhile run at once on SIGCONT, in their order."""
    world = World(1)
    world.add_machine("n1")
    log: list[tuple[int, int]] = []

    async def main(ports: Ports) -> None:
        loop = asyncio.get_running_loop()
        for number in range(5):
            loop.call_later(0.1 * number, lambda number=number: log.append((number, round(world.now_ms))))
        await asyncio.sleep(100)

    async def scenario() -> None:
        world.spawn("n1", main)
        await asyncio.sleep(0.15)
        world.pause("n1")
        await asyncio.sleep(5)
        world.resume("n1")
        await asyncio.sleep(1)

    world.run(scenario())
    assert [number for number, _ in log] == [0, 1, 2, 3, 4]
    assert [at for _, at in log] == [0, 100, 5150, 5150, 5150]


def test_a_blocking_sync_holds_the_node_up() -> None:
    """`sync_now` blocks the loop in production: what comes next in the same process waits, others do not."""
    world = World(1)
    for name in ("n1", "n2"):
        world.add_machine(name)
    times: dict[str, float] = {}

    async def main(ports: Ports, name: str, sync: bool) -> None:
        if sync:
            file = ports.disk.open("/f", create=True)
            file.pwrite(b"x", 0)
            ports.disk.sync_now([file])
        await asyncio.sleep(0)
        times[name] = world.now_ms

    async def scenario() -> None:
        world.spawn("n1", lambda ports: main(ports, "n1", True))
        world.spawn("n2", lambda ports: main(ports, "n2", False))
        await asyncio.sleep(1)

    world.run(scenario())
    assert times["n1"] >= 0.2 > times["n2"]


def test_a_strike_kills_in_the_middle_of_a_callback() -> None:
    """Between two disk calls of one synchronous function: the first took place, the second did not, nobody lived on."""
    for operations in range(1, 8):
        world = World(operations)
        machine = world.add_machine("n1")
        survived: list[str] = []

        async def main(ports: Ports, survived: list[str] = survived) -> None:
            try:
                for name in "abcdefgh":
                    ports.disk.open(f"/{name}", create=True)
            except Exception:
                survived.append("caught")
            survived.append("went on")

        async def scenario(world: World = world, operations: int = operations) -> dict[str, bytes]:
            machine = world.machines["n1"]
            machine.disk.strike_after(operations, lambda: world.kill("n1"))
            world.spawn("n1", main)
            await asyncio.sleep(1)
            return machine.disk.files()

        files = world.run(scenario())
        assert len(files) == operations - 1
        assert survived == []
        assert machine.process is not None
        assert not machine.process.alive


def test_each_incarnation_has_its_own_chance() -> None:
    """A restarted process does not replay its predecessor's random choices."""
    world = World(9)
    world.add_machine("n1")
    draws: list[int] = []

    async def main(ports: Ports) -> None:
        draws.append(ports.rng.getrandbits(64))

    async def scenario() -> None:
        for _ in range(3):
            process = world.spawn("n1", main)
            await asyncio.sleep(0.1)
            world.kill("n1")
            assert not process.alive

    world.run(scenario())
    assert len(set(draws)) == 3
