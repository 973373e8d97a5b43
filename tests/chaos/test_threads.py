"""Threads of simulated processes: the blocking clients, switched and interrupted where the seed says."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lab.mutants import without
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import current_process
from strandline.chaos.sim.threads import Caller, Queue, Stuck, Threads, threads_of_clients
from strandline.client import Consumer, Producer, loop_thread
from strandline.client.aio import Producer as AsyncProducer
from strandline.client.types import ConsumerRecord
from strandline.proto.ids import TopicPartition
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play

COUNT = 60


def by_a_thread(
    work: Callable[[Threads, Caller], None], *, seed: int = 0, switch_points: int = 20, filled: bool = False
) -> None:
    """Run `work` in a thread of a simulated process, beside a scripted broker."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        if filled:
            async with AsyncProducer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, batch_size=200) as producer:
                await asyncio.gather(*[await producer.send("t", b"%d" % at, partition=0) for at in range(COUNT)])
        process, loop = current_process(), asyncio.get_running_loop()
        assert process is not None
        assert isinstance(loop, SimLoop)
        rng = random.Random(seed)
        process.threads = threads = Threads(loop, process, clock=ports.clock, rng=rng, switch_points=switch_points)

        def run() -> None:
            assert threads.current is not None
            work(threads, threads.current)

        await threads.run(run)

    with threads_of_clients():
        play(scenario, {"t": 1}, seed=seed)


def consumer(threads: Threads) -> Consumer:
    settings: dict[str, Any] = {"clock": threads.clock, "rng": threads.rng, "auto_offset_reset": "earliest"}
    one = Consumer(BOOTSTRAP, **settings)
    one.assign([("t", 0)])
    return one


def read_among_interrupts(seed: int) -> list[tuple[float, int]]:
    """Everything, by polls and one by one, each of which is interrupted soon: when it came, and its offset."""
    seen: list[tuple[float, int]] = []

    def work(threads: Threads, caller: Caller) -> None:
        one, empty = consumer(threads), 0
        while len(seen) < COUNT and empty < 10:
            caller.arm(threads.rng.choice((None, threads.rng.randint(1, 40))), threads.rng.uniform(0, 0.005))
            found: list[ConsumerRecord] = []
            try:
                if threads.rng.random() < 0.5:
                    found = one.poll(0.2, 3)
                else:
                    record = one.next_record(0.2)
                    found = [] if record is None else [record]
                empty = 0 if found else empty + 1
            except KeyboardInterrupt:
                pass
            finally:
                caller.disarm()
            seen.extend((threads.clock.monotonic_ms(), record.offset) for record in found)
        assert threads.interrupts > 0
        assert threads.switches > 0
        one.close()

    by_a_thread(work, seed=seed, filled=True)
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_interrupts_at_any_point_cost_no_record(seed: int) -> None:
    """Between any two calls of the client, on its way in, while it waits, and on its way out."""
    assert [offset for _, offset in read_among_interrupts(seed)] == list(range(COUNT))


def test_what_an_interrupted_poll_brought_is_missed_without_the_rule() -> None:
    """The scheduler finds what a storm of signals found on real processes, in a few of its seeds."""
    with without("interrupted-poll-counts-as-handed-out"):
        for seed in range(30):
            try:
                assert [offset for _, offset in read_among_interrupts(seed)] == list(range(COUNT))
            except AssertionError:
                return
    pytest.fail("no seed finds it")


def test_the_same_seed_is_the_same_run() -> None:
    """Instants and offsets, whatever the machine does with the real threads."""
    assert read_among_interrupts(3) == read_among_interrupts(3)


def flush_and_look(seed: int) -> None:
    def work(threads: Threads, _: Caller) -> None:
        one = Producer(BOOTSTRAP, linger_ms=5)
        for _round in range(12):
            futures = [one.send("t", b"x", partition=0) for _ in range(5)]
            one.flush(30.0)
            assert all(future.done() for future in futures)
        one.close()

    by_a_thread(work, seed=seed, switch_points=5)


def test_109_a_flush_ends_behind_the_futures() -> None:
    """Schedule 109, as the scheduler found it: the loop is stopped between the two."""
    for seed in range(4):
        flush_and_look(seed)
    with without("a-flush-returns-before-the-futures-are-done"):
        for seed in range(30):
            try:
                flush_and_look(seed)
            except AssertionError:
                return
    pytest.fail("no seed finds it")


def test_an_interrupted_send_leaves_nothing_behind() -> None:
    """Rule B37, at each point of it: its record is sent or not, `flush` ends, and no memory is taken."""
    interrupted: list[int] = []

    def work(threads: Threads, caller: Caller) -> None:
        one = Producer(BOOTSTRAP, batch_size=1, linger_ms=0)
        one.send("t", b"x", partition=0).result(10.0)
        for points in range(1, 100):
            caller.arm(points, 0.0)
            try:
                one.send("t", b"x", partition=0, headers=[("h", b"x")])
            except KeyboardInterrupt:
                interrupted.append(points)
            finally:
                caller.disarm()
            one.flush(30.0)
            assert one._running is not None
            assert one._running.core.accumulator.memory.used == 0
        one.close()

    by_a_thread(work, switch_points=100)
    assert len(interrupted) > 20


def test_a_wait_has_its_time_and_its_interrupt() -> None:
    """As of `queue.SimpleQueue`, in virtual time."""

    def work(threads: Threads, caller: Caller) -> None:
        queue, began_ms = Queue(threads), threads.clock.monotonic_ms()
        threads.loop.call_later(2.0, queue.put, "late")
        with pytest.raises(Exception, match=r"^$") as caught:
            queue.get(timeout=1.0)
        assert type(caught.value).__name__ == "Empty"
        assert queue.get(timeout=5.0) == "late"
        assert 1_900 < threads.clock.monotonic_ms() - began_ms < 2_200
        caller.arm(None, 0.5)
        with pytest.raises(KeyboardInterrupt):
            queue.get()
        caller.disarm()

    by_a_thread(work)


def test_the_loop_says_that_it_waits_in_vain() -> None:
    """For a queue that nobody but itself can fill: an error of the code under test, and no run that hangs."""

    def work(threads: Threads, caller: Caller) -> None:
        failed: list[BaseException] = []

        def on_the_loop() -> None:
            try:
                Queue(threads).get()
            except Stuck as error:
                failed.append(error)

        threads.loop.call_soon(on_the_loop)
        caller.sleep(0.1)
        assert failed

    by_a_thread(work)


def test_the_modules_are_given_back() -> None:
    by_a_thread(lambda threads, caller: None)
    assert loop_thread.threading is threading
    assert loop_thread.asyncio is asyncio
    with Producer(BOOTSTRAP, max_block_ms=10) as producer:
        assert producer.flush() is None


def test_positions_survive_in_place() -> None:
    """Pauses, seeks and positions of the twin are made on its loop, and are there when the call has ended."""

    def work(threads: Threads, _: Caller) -> None:
        one, where = consumer(threads), TopicPartition("t", 0)
        one.seek(where, 5)
        assert one.position(where) == 5
        one.pause(where)
        assert one.poll(0.1) == []
        one.resume(where)
        assert one.poll(1.0, 1)[0].offset == 5
        one.close()

    by_a_thread(work, filled=True)
