"""A replica that nobody waits for gives way to those that clients wait for (rule B50)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from strandline.log.partition_log import PartitionLog
from strandline.log.syncer import Syncer
from strandline.proto.ids import TopicPartition
from strandline.replica import frames
from strandline.replica.backlog import CHUNK_BYTES, Backlog
from tests.replica.helpers import TP, batch, running, until
from tests.replica.test_follower_streams import RawLeader, replicated
from tests.replica.test_streams import RawFollower, fetch, lead_alone

pytestmark = pytest.mark.usefixtures("logs_made_at_once")

LIVE = TopicPartition("t", 1)
BATCH_BYTES = 100_000
BOUND = Backlog().bound


def test_a_follower_is_sent_no_more_than_its_disk_takes(tmp_path: Path) -> None:
    """Broker 2 catches up with ten megabytes and syncs none of them: it is sent one, whatever credit it gives, while
    another partition of the same stream goes on. What it has synced makes room for more."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            lead_alone(cluster, partition=1)
            for _ in range(100):
                await cluster[1].append(TP, batch(b"." * BATCH_BYTES))

            def sent() -> int:
                return cluster[1].replicas.replicated_out_bytes

            raw = await RawFollower.connect(cluster, first=fetch() + frames.pack_credit(1 << 30))
            await raw.hear_until("on_accepted")
            await until(lambda: sent() >= BOUND)
            await raw.say(fetch(partition=1, subscription=2))
            await raw.hear_until("on_accepted")
            for count in range(20):
                waiting = cluster[1].append(LIVE, batch(b"live"))
                await _hear_live(raw)
                await raw.say(frames.pack_ack(2, count + 1, count + 1))
                await waiting
                assert sent() < BOUND + CHUNK_BYTES + BATCH_BYTES, count
            before, offset = sent(), BOUND // BATCH_BYTES // 2
            await raw.say(frames.pack_ack(1, offset, 0))
            waiting = cluster[1].append(LIVE, batch(b"live"))
            await _hear_live(raw)
            await raw.say(frames.pack_ack(2, 21, 21))
            await waiting
            assert sent() < before + BATCH_BYTES, "what is appended there and not synced makes no room"
            await raw.say(frames.pack_ack(1, offset, offset))
            while sent() < before + BATCH_BYTES:
                await raw.hear()
            await raw.say(frames.pack_forget(1), fetch(subscription=3))
            while sent() < before + BOUND:
                await raw.hear()

    asyncio.run(scenario())


async def _hear_live(raw: RawFollower) -> None:
    """Until a record of the partition that is at its end has come: bytes that no others are as few as."""
    while True:
        for entry in await raw.hear():
            if entry[0] == "on_data" and len(entry[1][-1]) < BATCH_BYTES // 2:
                return


def test_a_follower_that_lags_is_synced_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of the ISR and behind what is committed: nobody waits. With all of that, or in the ISR: somebody may."""
    marked: list[bool] = []
    mark = Syncer.mark

    def spy(self: Syncer, log: PartitionLog, size: int = 0, **how: Any) -> None:
        marked.append(how.get("waited_for", True))
        mark(self, log, size, **how)

    monkeypatch.setattr(Syncer, "mark", spy)

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            cluster.controller.change(TP, isr=(1,))
            stream, first = await leader.accept()
            await stream.write(frames.pack_accepted(first.subscription, 5, 2, 0))
            for offset, waited_for in ((0, False), (1, True)):
                marked.clear()
                await stream.write(replicated(b"a", offset, high_watermark=2))
                await until(lambda offset=offset: cluster[2].log_dir.logs[TP].durable_offset == offset + 1)  # type: ignore[misc]
                assert marked[0] is waited_for
            cluster.controller.change(TP, isr=(1, 2))
            await until(lambda: 2 in cluster[2].replicas.partition(TP).state.isr)  # type: ignore[union-attr]
            marked.clear()
            await stream.write(replicated(b"a", 2, high_watermark=9))
            await until(lambda: cluster[2].log_dir.logs[TP].durable_offset == 3)
            assert marked[0] is True

    asyncio.run(scenario())
