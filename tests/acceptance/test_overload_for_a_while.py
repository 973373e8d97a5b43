"""Row S99: more than a cluster can take, for a while."""

from __future__ import annotations

import pytest
from bench.overload import RECOVERY_MAX_S, RSS_MAX_MB, SILENCE_MAX_S, overload


@pytest.mark.timeout(170)
def test_s99_a_load_above_capacity_is_carried_and_forgotten() -> None:
    """Row S99: open-loop load at 120 % of capacity: acks go on, no record fails, memory is bounded, and latency is back
    soon after the load drops. `python -m bench.overload` does it for five minutes."""
    figures = overload(8.0, print)
    assert figures.failed == 0
    assert figures.longest_silence_s <= SILENCE_MAX_S
    assert figures.acked_per_s > 0.5 * figures.capacity_per_s
    assert figures.rss_peak_mb <= RSS_MAX_MB
    assert figures.recovered_after_s <= RECOVERY_MAX_S
