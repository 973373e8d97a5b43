"""One dishonest disk, and nothing in its log that tells (schedule 96; rule B30; docs/correctness.md).

After kill -9 of all it gives back zeros for the newest batches that it had synced, or a file that is cut at a batch's
end. Its log looks as if it had never been longer.
"""

from __future__ import annotations

import pytest

from strandline.controller.machine.unproven import WAIT_MS
from tests.schedules.helpers import schedule
from tests.schedules.recovery.ruin import Ruin, both_layouts

how = pytest.mark.parametrize("cut", [False, True], ids=["zeros", "cut at a batch's end"])


@how
@both_layouts
@schedule(96, rule="B30: the greatest log of the last ISR leads", mutant="unproven-end-leads-at-once")
def test_96_the_dishonest_one_is_back_first(split: bool, cut: bool) -> None:
    """All are killed; the newest batches of one that was in sync are gone. It is back a moment before the others: it
    led, and the honest ones were cut to match. In the combined layout the quorum falls, and rises, with the brokers."""

    async def story(ruin: Ruin) -> None:
        for value in range(5):
            await ruin.write(value, value + 1)
        dishonest = ruin.leader_name
        assert dishonest is not None
        first, *others = ruin.others(dishonest)
        await ruin.fall_in_turn(first)
        for value in range(5, 20):
            await ruin.write(value, value + 1)
        ruin.kill_all()
        ruin.lose_newest(dishonest, 10, cut=cut)
        ruin.start_controllers()
        ruin.start(dishonest, first)
        await ruin.world.sleep_ms(300)
        ruin.start(*others)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    for seed in range(2):
        Ruin(seed, split).play(story)


def test_96_one_dead_machine_costs_half_a_second() -> None:
    """The disks are honest, and the other member of the last ISR stays dead: the wait ends, and nothing is lost."""

    async def story(ruin: Ruin) -> None:
        first, second, dead = ruin.brokers
        await ruin.write(0, 20)
        await ruin.fall_in_turn(first, second, dead)
        began = ruin.world.now_ms
        ruin.start(second)
        await ruin.until(lambda: ruin.partition().leader == int(second[1:]), "it leads", within_ms=6_000)
        assert ruin.world.now_ms - began >= WAIT_MS
        assert ruin.world.now_ms - began < WAIT_MS + 1_000
        ruin.start(first)
        await ruin.write(20, 30)
        ruin.start(dead)
        await ruin.nothing_is_lost()

    Ruin(3, split=True).play(story)


def test_96_a_controller_dies_while_it_waits() -> None:
    """The next one knows of no report: it waits as well, and the greatest log leads."""

    async def story(ruin: Ruin) -> None:
        first, dishonest, honest = ruin.brokers
        for value in range(20):
            await ruin.write(value, value + 1)
        await ruin.fall_in_turn(first, dishonest, honest)
        ruin.lose_newest(dishonest, 10)
        ruin.start(dishonest)
        await ruin.until(lambda: ruin.cluster.newest_image().brokers[int(dishonest[1:])].active, "it is unfenced")  # type: ignore[union-attr]
        controller = ruin.cluster.controller()
        assert controller is not None
        ruin.kill(controller)
        ruin.start(honest)
        await ruin.write(20, 30)
        assert ruin.leader_name == honest
        ruin.start(controller, first)
        await ruin.nothing_is_lost()

    Ruin(4, split=True).play(story)
