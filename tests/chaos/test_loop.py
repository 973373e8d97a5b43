"""The deterministic loop: virtual time, order, interleaving, and the hashes that sets depend on (rule E7)."""

from __future__ import annotations

import asyncio

import pytest

from strandline.chaos.sim.loop import BusyLoop, Deadlock
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig


def test_time_is_virtual_and_sleep_costs_nothing() -> None:
    """A day passes at once, and `loop.time()` agrees with it."""
    world = World(1)

    async def scenario() -> float:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - started

    assert world.run(scenario()) == pytest.approx(86_400, abs=1e-3)


def test_timers_of_one_instant_run_in_the_order_they_were_made() -> None:
    """asyncio's own heap is not FIFO for equal deadlines (rule E7)."""
    world = World(1)
    order: list[int] = []

    async def scenario() -> None:
        for number in range(50):
            world.loop.call_at_us(1_000, order.append, number)
        await asyncio.sleep(0.01)

    world.run(scenario())
    assert order == list(range(50))


def test_task_steps_are_permuted_and_plain_callbacks_are_not() -> None:
    """Some seeds run ready tasks in another order than others; callbacks of `call_soon` always run FIFO."""

    def one(seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        world = World(seed)
        tasks: list[int] = []
        callbacks: list[int] = []

        async def step(number: int) -> None:
            tasks.append(number)

        async def scenario() -> None:
            loop = asyncio.get_running_loop()
            made = [loop.create_task(step(number)) for number in range(5)]
            for number in range(5):
                loop.call_soon(callbacks.append, number)
            await asyncio.wait(made)

        world.run(scenario())
        return tuple(tasks), tuple(callbacks)

    runs = [one(seed) for seed in range(10)]
    assert len({tasks for tasks, _ in runs}) > 3
    assert {callbacks for _, callbacks in runs} == {(0, 1, 2, 3, 4)}


def test_tasks_and_futures_hash_by_number() -> None:
    """`asyncio.wait` returns sets of tasks: their order must not follow addresses."""

    def one() -> list[int]:
        world = World(7, WorldConfig(permute=False))

        async def number(value: int) -> int:
            return value

        async def scenario() -> list[int]:
            tasks = [asyncio.get_running_loop().create_task(number(value)) for value in range(40)]
            done, _ = await asyncio.wait(tasks)
            return [task.result() for task in done]

        return world.run(scenario())

    junk = [object() for _ in range(1000)]
    assert one() == one()
    assert len(junk) == 1000


def test_a_deadlock_and_a_busy_loop_are_named() -> None:
    """A run never hangs: without work it says so, and spinning at one instant too."""
    world = World(1)

    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        world.run(stuck())

    world = World(1)

    async def spinning() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(BusyLoop):
        world.run(spinning())


def test_timeouts_and_executors_work_as_on_a_real_loop() -> None:
    """`asyncio.timeout` fires at its deadline; `run_in_executor` runs inline, later."""
    world = World(3)

    async def scenario() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(0.25):
                await asyncio.sleep(10)
        except TimeoutError:
            at = loop.time()
        return at, await loop.run_in_executor(None, lambda: 41 + 1)

    at, answer = world.run(scenario())
    assert at == pytest.approx(0.25, abs=1e-4)
    assert answer == 42


def test_a_machines_timers_agree_with_its_own_clock() -> None:
    """On a machine whose clock is slow, a sleep ends when *its* clock says so: never early, for any rate."""
    for seed in range(20):
        world = World(seed, WorldConfig(clock_rate_error=0.1))
        machine = world.add_machine("n1")
        waits: list[float] = []

        async def main(ports: Ports, waits: list[float] = waits) -> None:
            for _ in range(20):
                before = ports.clock.monotonic_ms()
                await asyncio.sleep(0.123)
                waits.append(ports.clock.monotonic_ms() - before)

        async def scenario(world: World = world) -> None:
            process = world.spawn("n1", main)
            assert process.main is not None
            await process.main

        world.run(scenario())
        assert len(waits) == 20
        assert all(123.0 <= wait < 123.1 for wait in waits), (machine.clock.rate, waits)


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not() -> None:
    """Wall time is for record timestamps alone; a jump must not reach timeouts."""
    world = World(5)
    clock = world.add_machine("n1").clock
    wall, monotonic = clock.wall_ms(), clock.monotonic_ms()
    clock.jump_wall(-3_600_000)
    assert clock.wall_ms() == wall - 3_600_000
    assert clock.monotonic_ms() == monotonic
