"""Schedule 186: a group's coordinator that is cut off from the other nodes, but not from clients, tells committed
offsets as they were before another one took over."""

from __future__ import annotations

import pytest

from strandline.chaos.testing.env import Env
from strandline.proto.errors import StrandlineError
from tests.client.members import fill, member, simulate, until
from tests.schedules.clients.test_topics_made_anew import WHERE, coordinator
from tests.schedules.helpers import schedule


@pytest.mark.parametrize("seed", range(3))
@schedule(186, rule="committed offsets come with a proof", mutant="stable-offsets-without-proof")
def test_186_a_deposed_coordinator_tells_no_offsets(seed: int) -> None:
    """A consumer asks it by the connection that it has. It hears of what the new one has taken, or nothing."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        async with member(env, request_timeout_ms=2_000) as consumer:
            consumer.assign([WHERE])
            await consumer.commit({WHERE: 5})
            victim = coordinator(env)
            for node in {1, 2, 3} - {victim}:
                env.faults.partition(victim, node)
            await until(lambda: coordinator(env) != victim)
            async with member(env) as other:
                other.assign([WHERE])
                await other.commit({WHERE: 9})
            try:
                found = (await consumer.committed([WHERE]))[WHERE]
            except StrandlineError:
                env.faults.heal()
                found = (await consumer.committed([WHERE]))[WHERE]
            assert found is not None
            assert found.offset == 9

    simulate(main, seed)
