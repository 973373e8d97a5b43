"""A stage for tiered storage: one tiered partition on three brokers in the simulated world, and its store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from strandline.log.config import LogConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.tier import Tier
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import DeletionDone
from strandline.replica.states import (
    ReadOutcome,
)
from strandline.replica.tier_config import TierConfig
from tests.replica.helpers import TP
from tests.replica.simulated import decoded
from tests.schedules.replication.bench import Bench

T0 = 1_700_000_000_000
CONFIG = TierConfig(
    {
        "remote.log.storage.url": "s3://simulated",
        "remote.log.manager.task.interval.ms": 200,
        "remote.log.reaper.grace.ms": 60_000,
    }
)
LOG = LogConfig(
    segment_bytes=400, index_interval_bytes=100, remote_storage=True, retention_ms=-1, local_retention_ms=-1
)
NOTHING_STAYS = replace(LOG, local_retention_bytes=0)


class Tiers(Bench):
    """One tiered partition on three brokers, each record a batch of its own; four or five make a segment."""

    def __init__(self, log_config: LogConfig = NOTHING_STAYS, tier_config: TierConfig = CONFIG, **more: object) -> None:
        super().__init__(retention_check_interval_ms=500, **more)  # type: ignore[arg-type]
        self.tier_config = tier_config
        self._state = replace(self._state, log_config=log_config)
        self.sent = 0

    @property
    def tier(self) -> Tier:
        return self.controller.state(TP).tier

    @property
    def leader(self) -> int:
        return int(self.controller.state(TP).leader)

    async def fill(self, count: int = 30) -> None:
        for _ in range(count):
            await self.append(self.leader, b"%d" % self.sent)
            self.sent += 1

    async def copied(self, *, leaves: bool = True) -> None:
        """Every closed segment is in the tier, and with `leaves` the disks have the active one alone."""

        def done() -> bool:
            log = self.log(self.leader)
            copied = self.tier.end_offset == log.bases[-1]
            return copied and (not leaves or len(log.segments) == 1)

        await self.until(done)

    async def ask(self, node: int, offset: int) -> ReadOutcome:
        """As a consumer that asks again while it gets nothing."""
        while True:
            outcome = await self.inside(node, lambda: self.manager(node).read_cold(TP, offset, 400))
            if outcome.data or outcome.error is not ErrorCode.NONE or offset >= outcome.high_watermark:
                return outcome

    async def consume(self, node: int, offset: int = 0) -> list[bytes]:
        """All values from an offset on, as a consumer of the node."""
        found: list[bytes] = []
        while True:
            outcome = await self.ask(node, offset)
            assert outcome.error is ErrorCode.NONE, outcome
            if not outcome.data:
                return found
            found += decoded(outcome.data)
            offset = outcome.next_offset

    def delete(self, offset: int, done: DeletionDone) -> None:
        def act(manager: ReplicaManager) -> None:
            manager.delete_records(TP, offset, done)

        self.broker(self.leader).run(act)

    def values_from(self, offset: int) -> list[bytes]:
        return [b"%d" % number for number in range(offset, self.sent)]


def play(scenario: Callable[[Tiers], Awaitable[None]], bench: Tiers | None = None) -> Tiers:
    bench = bench or Tiers()
    bench.play(scenario)  # type: ignore[arg-type]
    assert bench.fatals == []
    return bench
