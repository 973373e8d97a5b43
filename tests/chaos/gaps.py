"""How long acks stay away after a fault, in the simulator's scenario of clients and faults."""

from __future__ import annotations

from typing import Any

from strandline.chaos.options import override
from strandline.chaos.scenario import ScenarioRun
from strandline.chaos.scenario_options import ScenarioOptions


def gaps_ms(seed: int, options: dict[str, Any], fault: str) -> list[float]:
    """After each fault whose note begins so: until every one of three partitions has acked a send made after it."""
    run = ScenarioRun(seed, override(ScenarioOptions.draw(seed), options))
    run.execute()
    gaps = []
    for struck_ms in [at for at, what in run.nemesis.events if what.startswith(fault)]:
        first: dict[int, float] = {}
        for send in run.history.sends:
            if send.acked and send.invoked_ms >= struck_ms:
                gap_ms = send.completed_ms - struck_ms
                first[send.partition.number] = min(gap_ms, first.get(send.partition.number, gap_ms))
        assert len(first) == 3
        gaps.append(max(first.values()))
    return gaps
