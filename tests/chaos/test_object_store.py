"""The faults of the simulator's object store: each is what it says, and a seed decides which call it hits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strandline.chaos.sim.effects import EFFECTS
from strandline.chaos.sim.object_store import SimStore
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import current_process
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.world import World
from strandline.log.object_store import ObjectStore
from strandline.proto.errors import ObjectMissing, StoreError
from tests.log.tier.stores import chunked


class Site:
    """A world with a store and one machine."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.world.add_machine("n1")
        self.sim = SimStore(self.world.loop, split(seed, "store"))

    def spawn(self, work: Callable[[ObjectStore], Coroutine[Any, Any, None]]) -> None:
        """Run it as a process of the machine."""

        async def main(ports: Ports) -> None:
            process = current_process()
            assert process is not None
            await work(self.sim.for_node(process))

        self.world.spawn("n1", main)


async def put(store: ObjectStore, key: str) -> None:
    await store.put(key, chunked(b"abc", 1), 3)


def test_what_a_dead_process_had_sent_is_carried_out() -> None:
    """As a real store does: objects outlive nodes, and appear after them."""
    for seed in range(12):
        site, sent = Site(seed), []

        async def work(store: ObjectStore, sent: list[str] = sent) -> None:
            for number in range(100):
                sent.append(f"k{number}")
                await put(store, f"k{number}")

        async def scenario(site: Site = site) -> None:
            site.spawn(work)
            await site.world.sleep_ms(500)
            site.world.kill("n1")
            await site.world.sleep_ms(1_000)

        site.world.run(scenario())
        assert list(site.sim.objects) in (sent, sent[:-1])
        assert 3 < len(sent) < 100


def test_an_answer_that_is_lost_leaves_the_object() -> None:
    """The caller cannot tell; therefore each attempt has an id of its own."""
    site, errors = Site(), []

    async def work(store: ObjectStore) -> None:
        site.sim.faults.answers_lost = 1.0
        with pytest.raises(StoreError):
            await put(store, "k")
        assert "k" in site.sim.objects
        site.sim.heal()
        site.sim.faults.refused = 1.0
        for call in (put(store, "l"), store.get("k", 0, 1), store.delete("k")):
            with pytest.raises(StoreError) as caught:
                await call
            errors.append(caught.value)
        site.sim.heal()
        assert list(site.sim.objects) == ["k"]

    async def scenario() -> None:
        site.spawn(work)
        await site.world.sleep_ms(5_000)

    site.world.run(scenario())
    assert len(errors) == 3
    assert not any(isinstance(error, ObjectMissing) for error in errors)


def test_a_slow_store_carries_out_what_was_given_up() -> None:
    """Beyond the timeout the caller has an error, and the object appears later."""
    site, seen = Site(), []

    async def work(store: ObjectStore) -> None:
        site.sim.faults.slow_factor = 5_000
        with pytest.raises(StoreError):
            await put(store, "k")
        seen.append(list(site.sim.objects))

    async def scenario() -> None:
        site.spawn(work)
        await site.world.sleep_ms(1_000_000)

    site.world.run(scenario())
    assert seen == [[]]
    assert list(site.sim.objects) == ["k"]


def test_equal_seeds_are_equal_runs() -> None:
    """Latencies and faults are drawn by the seed, from a generator of the store's own."""
    traces = []
    for seed in (3, 3, 4):
        site = Site(seed)

        async def work(store: ObjectStore, site: Site = site) -> None:
            site.sim.faults.refused = 0.3
            for number in range(20):
                try:
                    await put(store, f"k{number}")
                except StoreError:
                    await asyncio.sleep(0.01)

        async def scenario(site: Site = site) -> None:
            site.spawn(work)
            await site.world.sleep_ms(10_000)

        site.world.run(scenario())
        traces.append((site.world.trace, tuple(site.sim.objects)))
        assert set(site.world.loop.effects) <= set(EFFECTS)
    assert traces[0] == traces[1] != traces[2]
