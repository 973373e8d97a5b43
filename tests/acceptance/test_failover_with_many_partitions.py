"""Row S19: what many partitions cost when a broker dies."""

from __future__ import annotations

import pytest
from bench.partitions import measure


@pytest.mark.timeout(400)
def test_s19_a_killed_node_is_ready_and_every_partition_led_within_the_bounds() -> None:
    """Row S19: every time is told, and under the bounds that are stated for ten times as many partitions; those,
    `python -m bench.partitions` holds against 1,000."""
    figures = measure(100, print)
    print(figures)
    assert figures.held
