"""Offsets of transactions while coordinators of groups come and go: production nodes, the wire of clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.controller.metadata.features import NEWEST_LEVEL
from strandline.proto.error_codes import ErrorCode
from tests.schedules.groups.site import GaveUp, Site, Wire, find

LEVELS = {"metadata.version": NEWEST_LEVEL, "transaction.version": 2}
AGAIN = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class TransactionalClient:
    """A producer by protocol version 1, and a reader of stable offsets, each of which asks until it has an answer."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.producer_id = self.epoch = -1

    async def begin(self) -> None:
        await self.site.admin(lambda admin: admin.update_features(LEVELS))
        answer = await self._ask("init_producer_id", transactional_id="tx", transaction_timeout=60_000)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        await self._ask("add_offsets_to_txn", group_id="g", **self._whose)

    async def commit(self, offset: int) -> None:
        one = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
        await self._ask("txn_offset_commit", group_id="g", topics=[{"name": "t", "partitions": [one]}], **self._whose)

    async def end(self, *, committed: bool) -> None:
        await self._ask("end_txn", committed=committed, **self._whose)

    async def stable(self) -> int | None:
        """The offset, None while it is unstable."""
        topics = [{"name": "t", "partition_indexes": (0,)}]
        answer = await self._ask("stable_offset_fetch", group_id="g", topics=topics, require_stable=True)
        one = answer.topics[0].partitions[0]
        if one.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            return None
        assert one.error_code == 0, one
        return int(one.committed_offset)

    async def settled(self) -> int:
        while (offset := await self.stable()) is None:
            await self.site.world.sleep_ms(100)
        return offset

    @property
    def _whose(self) -> dict[str, Any]:
        return {"transactional_id": "tx", "producer_id": self.producer_id, "producer_epoch": self.epoch}

    async def _ask(self, api: str, **values: Any) -> Any:
        key, kind = ("g", 0) if "offset" in api and "add" not in api else ("tx", 1)

        async def ask(_ports: Ports) -> Any:
            while True:
                try:
                    wire = await Wire.to(await find(self.site.cluster.names, key, kind))
                    try:
                        answer = await wire.ask(api, **values)
                    finally:
                        wire.close()
                except GaveUp:
                    continue
                if api == "txn_offset_commit":
                    error = answer.topics[0].partitions[0].error_code
                else:
                    error = answer.error_code
                if error not in AGAIN:
                    assert error == 0, (api, answer)
                    return answer
                await asyncio.sleep(0.1)

        return await self.site.process("client", ask)


@pytest.mark.parametrize("committed", [True, False])
def test_redpanda_6326_a_transaction_outlives_the_coordinator_of_its_group(committed: bool) -> None:
    """The coordinator dies with a pending offset: the next one knows of it, takes what comes behind it, and its marker.
    When that one dies too, the last of them reads the same in its log."""

    async def story(site: Site) -> None:
        client = TransactionalClient(site)
        await client.begin()
        await client.commit(5)
        victim = await site.lose_coordinator("g", site.world.kill)
        assert await client.stable() is None
        await client.commit(7)
        await client.end(committed=committed)
        assert await client.settled() == (7 if committed else -1)
        await site.bring_back(victim)
        await site.lose_coordinator("g", site.world.power_cut)
        assert await client.settled() == (7 if committed else -1)

    Site(6326, transaction_state_log_num_partitions="2").play(story, t=1)


def test_a_marker_finds_the_coordinator_that_its_group_has_by_then() -> None:
    """The coordinator is cut off while the transaction is decided: its marker goes to the one that is elected."""

    async def story(site: Site) -> None:
        client = TransactionalClient(site)
        await client.begin()
        await client.commit(5)
        victim = site.led("g")
        site.world.isolate(victim)
        await client.end(committed=True)
        await site.until(lambda: site.led("g") != victim, "another coordinates", within_ms=20_000)
        assert await client.settled() == 5
        await site.bring_back(victim)
        assert await client.settled() == 5

    Site(6327, transaction_state_log_num_partitions="2").play(story, t=1)
