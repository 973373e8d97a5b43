"""Appends of clients' batches: what was refused before they came to the log counts (rule C1, schedule 52)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.proto.error_codes import ErrorCode
from tests.replica.helpers import TOPIC_ID, TP, batch, running


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
