"""Appends of clients' batches: what was refused before they came to the log counts (rule C1, schedule 52)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.proto.error_codes import ErrorCode
from tests.replica.helpers import TOPIC_ID, TP, batch, running, syncs_held


@pytest.mark.parametrize("named_by", ["name", "topic id"])
def test_refused_before_there_was_a_log(tmp_path: Path, named_by: str) -> None:
    """Schedule 52: what came for a topic that this broker had not heard of, by name or by id, counts once it hosts
    it."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            leader = cluster[1]
            first, second = (batch(b"a", producer_id=3, producer_epoch=0, base_sequence=number) for number in (0, 1))
            topic = TP.topic if named_by == "name" else TOPIC_ID
            leader.replicas.note_refusal(topic, TP.partition, first, ErrorCode.UNKNOWN_TOPIC_ID)
            cluster.create()
            assert (await leader.append(TP, batch(b"another producer's"))).error is ErrorCode.NONE
            assert (await leader.append(TP, second)).error is ErrorCode.UNKNOWN_TOPIC_ID
            assert (await leader.append(TP, first)).error is ErrorCode.NONE
            assert (await leader.append(TP, second)).error is ErrorCode.NONE

    asyncio.run(scenario())


@pytest.mark.parametrize("acks", [0, 1])
def test_who_waits_for_no_sync_waits_where_much_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """Rule B51: beyond a bound of what lies in the page cache alone, no append is answered before some was synced."""
    monkeypatch.setattr("strandline.log.syncer.UNSYNCED_BYTES_MAX", 150)

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            leader = cluster[1]
            cluster.create()
            assert (await leader.append(TP, batch(b"a"))).error is ErrorCode.NONE
            with syncs_held(leader.disk, monkeypatch):
                first, *others = [leader.append(TP, batch(b"a" * 50), acks) for _ in range(4)]
                assert (await first).error is ErrorCode.NONE
                await asyncio.sleep(0.05)
                assert [one.done() for one in others] == [False] * 3
            assert [(await one).error for one in others] == [ErrorCode.NONE] * 3

    asyncio.run(scenario())
