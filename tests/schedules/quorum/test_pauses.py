"""Schedule 60: a node stands still, and its connections stay open. Nothing breaks, so nothing tells but its silence."""

from __future__ import annotations

import asyncio

import pytest

from strandline.proto.ids import NodeId
from tests.chaos.gaps import gaps_ms
from tests.controller.sim_cluster import SimCluster
from tests.schedules.helpers import schedule

GAP_MS_MAX = 3000
"""From the pause to the first ack of a record that was sent after it."""

PAUSES = {
    "duration_ms": 24_000,
    "kill_clients": False,
    "world": {"network": {"latency_max_us": 500, "loss_probability": 0.0}, "disk": {"sync_max_us": 2000}},
    "faults": {
        "kinds": ["pause"],
        "gap_min_ms": 7500,
        "gap_max_ms": 8000,
        "duration_min_ms": 4500,
        "duration_max_ms": 5000,
    },
    "node": {
        "controller.quorum.election.timeout.ms": "1000",
        "controller.quorum.fetch.timeout.ms": "1500",
        "broker.session.timeout.ms": "9000",
        "broker.silence.timeout.ms": "2500",
        "flush.policy": "ack",
    },
    "workload": {
        "lanes": [0, 0],
        "send_gap_ms": 20.0,
        "burst_max": 1,
        "topics": {"alpha": 3},
        "producer": {
            "linger_ms": 0,
            "delivery_timeout_ms": 60_000,
            "request_timeout_ms": 400,
            "retry_backoff_max_ms": 200,
        },
    },
}
"""Nothing but a pause every eight seconds, of any node, under the default timeouts. The client looks for a new leader
whenever it had no answer for 400 ms, and at least five times a second."""


@pytest.mark.parametrize("split_layout", [False, True], ids=["combined", "split"])
@schedule(
    60,
    rule="open and silent is suspected",
    mutant="silence-is-no-suspicion",
)
def test_60_any_node_is_paused(split_layout: bool) -> None:
    """SIGSTOP of a leader, a follower, the active controller: acks went on after the 9 s of a session, or after two."""
    options = {**PAUSES, "split_layout": split_layout}
    gaps = [gap for seed in (1, 2) for gap in gaps_ms(seed, options, "pause")]
    assert len(gaps) >= 4
    assert max(gaps) < GAP_MS_MAX, sorted(gaps)


@schedule(60, rule="who led the quorum and was given up is suspected", mutant="deposed-controller-is-trusted")
def test_60_the_active_controller_is_paused_with_its_broker() -> None:
    """The new controller granted nine seconds to whom it had just given up for being silent."""

    async def scenario(cluster: SimCluster) -> float:
        active, other = cluster.active_and_other()
        cluster.world.pause(f"n{active.node}")

        def fenced() -> bool:
            return other.publisher.image.brokers[active.node].fenced

        return await cluster.until(fenced)

    assert SimCluster(60).play(scenario) < 2500


@schedule(60, rule="a late answer is an answer", mutant="leader-given-up-for-being-late")
def test_60_a_controller_that_is_late_stays_what_it_is() -> None:
    """Its loop stands still for 0.9 s, again and again: no election, and nobody is fenced. A fetch that had waited for
    half a second came to nothing then, and so did the next, which was made to wait as long again."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        before = other.quorum.leader_and_epoch
        for round_ in range(10):
            cluster.world.pause(f"n{active.node}")
            await asyncio.sleep(0.9)
            cluster.world.resume(f"n{active.node}")
            await asyncio.sleep(0.7 + round_ / 10)
        assert other.quorum.leader_and_epoch == before
        assert not [broker for broker in other.publisher.image.brokers.values() if broker.fenced]

    SimCluster(61).play(scenario)


@schedule(60, rule="a late answer is an answer", mutant="answer-to-a-probe-ends-no-silence")
def test_60_a_broker_that_is_late_is_not_fenced() -> None:
    """It stands still for 1.4 s of every 1.7, as under a load that nobody should have. Its heartbeats come 3.4 s apart;
    it answers, late, and stays."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        fenced: list[NodeId] = []
        active.publisher.subscribe(
            lambda _, image: fenced.extend(node for node, broker in image.brokers.items() if broker.fenced)
        )
        for _ in range(10):
            cluster.world.pause(f"n{other.node}")
            await asyncio.sleep(1.4)
            cluster.world.resume(f"n{other.node}")
            await asyncio.sleep(0.3)
        assert not fenced

    SimCluster(62).play(scenario)
