"""How long a crash costs, in virtual time and under the default timeouts: kill -9 of a leader to the next ack."""

from __future__ import annotations

from tests.chaos.gaps import gaps_ms

GAP_MS_MAX = 1000
"""A broken connection is a suspicion: probe at once, fence when nobody comes back."""

QUIET = {
    "duration_ms": 12_000,
    "kill_clients": False,
    "world": {"network": {"latency_max_us": 500, "loss_probability": 0.0}, "disk": {"sync_max_us": 2000}},
    "faults": {
        "kinds": ["kill_leader"],
        "gap_min_ms": 4500,
        "gap_max_ms": 5000,
        "duration_min_ms": 1500,
        "duration_max_ms": 2000,
    },
    "node": {
        "controller.quorum.election.timeout.ms": "1000",
        "controller.quorum.fetch.timeout.ms": "2000",
        "broker.session.timeout.ms": "9000",
        "flush.policy": "ack",
    },
    "workload": {
        "lanes": [0, 0],
        "send_gap_ms": 20.0,
        "burst_max": 1,
        "topics": {"alpha": 3},
        "producer": {"linger_ms": 0, "delivery_timeout_ms": 60_000, "request_timeout_ms": 5000},
    },
}
"""Nothing but the death of a leader (often the active controller too), every five seconds."""


def test_a_dead_leader_costs_well_under_a_second() -> None:
    """Of each partition, whether or not the active controller died with its leader."""
    gaps = [gap for seed in range(4) for gap in gaps_ms(seed, QUIET, "kill")]
    assert len(gaps) >= 6
    assert max(gaps) < GAP_MS_MAX, sorted(gaps)
