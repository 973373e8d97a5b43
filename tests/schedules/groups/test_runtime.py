"""The runtime of coordinators: who is served when, and what becomes of who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.chaos.testing.simulation import RunFailed, Simulation
from strandline.client.aio import Consumer, Producer
from strandline.cluster.groups.commands import FetchOffsets, JoinGroup, ListGroups
from strandline.cluster.groups.machine import Effects
from strandline.cluster.groups.runtime import Phase
from strandline.cluster.groups.shard import GroupShard
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.group_records import group_record
from tests.schedules.groups.one_broker import ME, OTHER, OneBroker

JOIN = JoinGroup("g", "", None, "c", "/h", 10_000, 60_000, "consumer", (("range", b""),), member_id_required=False)
FETCH = FetchOffsets("g", None)


def run(path: Path, story: Callable[[OneBroker], Awaitable[None]]) -> None:
    async def whole() -> None:
        broker = OneBroker(path)
        try:
            await story(broker)
        finally:
            await broker.close()

    asyncio.run(whole())


async def refusal(asked: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        await asked
    return error.value.code


def test_only_the_leader_coordinates(tmp_path: Path) -> None:
    """NOT_COORDINATOR without the leadership; COORDINATOR_LOAD_IN_PROGRESS until the log is read to its end."""

    async def story(broker: OneBroker) -> None:
        assert await refusal(broker.runtime.ask(0, FETCH)) is ErrorCode.NOT_COORDINATOR
        broker.elect(ME, 0)
        broker.publish()
        assert await refusal(broker.runtime.ask(0, FETCH)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await broker.offset() == -1
        broker.elect(OTHER, 1)
        broker.publish()
        assert await refusal(broker.runtime.ask(0, FETCH)) is ErrorCode.NOT_COORDINATOR

    run(tmp_path, story)


def test_who_waits_is_sent_away_with_the_leadership(tmp_path: Path) -> None:
    """A join that waits for other members: NOT_COORDINATOR at once, so that the client looks for the new one."""

    async def story(broker: OneBroker) -> None:
        broker.elect(ME, 0)
        broker.publish()
        await broker.offset()
        waiting = asyncio.ensure_future(broker.runtime.ask(0, JOIN))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        broker.elect(OTHER, 1)
        broker.publish()
        assert await refusal(waiting) is ErrorCode.NOT_COORDINATOR

    run(tmp_path, story)


def test_a_new_leader_waits_until_what_it_loaded_is_committed(tmp_path: Path) -> None:
    """Schedule 41: it has records of which it cannot tell whether they are. Here too few replicas are in sync to
    tell."""

    async def story(broker: OneBroker) -> None:
        broker.elect(OTHER, 0)
        broker.replicate(9, leader_epoch=0)
        broker.elect(ME, 1, min_isr=2)
        broker.publish()
        for _ in range(50):
            await asyncio.sleep(0)
            assert await refusal(broker.runtime.ask(0, FETCH)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        broker.elect(ME, 1, change=1)
        assert await broker.offset() == 9

    run(tmp_path, story)


def test_a_log_that_does_not_parse(tmp_path: Path) -> None:
    """Its groups have no coordinator, in words; nothing is guessed, and the node goes on."""

    async def story(broker: OneBroker) -> None:
        broker.elect(OTHER, 0)
        broker.replicate_record(group_record("g", None).key, b"\x00\x03nonsense", leader_epoch=0)
        broker.elect(ME, 1)
        broker.publish()
        while (hosted := next(broker.runtime.hosted())).phase is Phase.LOADING:
            await asyncio.sleep(0.001)
        assert hosted.phase is Phase.FAILED
        assert await refusal(broker.runtime.ask(0, FETCH)) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(tmp_path, story)


def test_a_shard_that_breaks_is_loaded_anew(tmp_path: Path) -> None:
    """A mistake of ours costs who waits one try, not the broker its groups; and it is heard of."""
    heard: list[object] = []

    async def story(broker: OneBroker) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context["exception"]))
        broker.elect(ME, 0)
        broker.publish()
        assert await broker.commit(5) is ErrorCode.NONE
        waiting = asyncio.ensure_future(broker.runtime.ask(0, JOIN))
        await asyncio.sleep(0)
        assert await refusal(broker.runtime.ask(0, "no command")) is ErrorCode.NOT_COORDINATOR
        assert await refusal(waiting) is ErrorCode.NOT_COORDINATOR
        assert await broker.offset() == 5

    run(tmp_path, story)
    assert [type(error) for error in heard] == [TypeError]


def test_a_seed_in_which_a_shard_breaks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else in the run tells of it: the member joins at the second try, and reads all the same."""
    working, broken = GroupShard.handle, [RuntimeError("this shard has a mistake")]

    def handle(shard: GroupShard, command: Any, to: Any, now: Now) -> Effects:
        if isinstance(command, JoinGroup) and broken:
            raise broken.pop()
        return working(shard, command, to, now)

    async def main(env: Env) -> None:
        await env.create_topic("t")
        async with Producer(env.bootstrap) as producer:
            await producer.send("t", b"value")
        async with Consumer(env.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe("t")
            while not await consumer.poll(1.0):
                pass

    monkeypatch.setattr(GroupShard, "handle", handle)
    with pytest.raises(RunFailed, match="this shard has a mistake"):
        Simulation(1, settings={"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}).run(main)
    assert not broken


def test_a_client_that_goes_away_while_it_waits(tmp_path: Path) -> None:
    """Its connection cancels the question; the answer has nowhere to go, and nothing is left behind."""

    async def story(broker: OneBroker) -> None:
        broker.elect(ME, 0)
        broker.publish()
        await broker.offset()
        waiting = asyncio.ensure_future(broker.runtime.ask(0, JOIN))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0)
        hosted = broker.runtime.serving(0)
        assert hosted.waiting == {}
        assert [group.group_id for group in await broker.runtime.ask(0, ListGroups())] == ["g"]

    run(tmp_path, story)


def test_a_node_that_stops_takes_up_nothing_more(tmp_path: Path) -> None:
    """Metadata go on arriving while a node stops."""

    async def story(broker: OneBroker) -> None:
        broker.elect(ME, 0)
        broker.publish()
        await broker.offset()
        broker.runtime.close()
        broker.elect(ME, 1)
        broker.publish()
        assert list(broker.runtime.hosted()) == []
        assert await refusal(broker.runtime.ask(0, FETCH)) is ErrorCode.NOT_COORDINATOR

    run(tmp_path, story)


def test_a_long_log_is_read_in_pieces(tmp_path: Path) -> None:
    """The event loop turns between them; the last record of a key counts."""

    async def story(broker: OneBroker) -> None:
        broker.elect(OTHER, 0)
        for offset in range(300):
            broker.replicate_record(b"\x00\x01\x00\x01g\x00\x01t" + bytes(4), value_of(offset), leader_epoch=0)
        broker.elect(ME, 1)
        broker.publish()
        assert await broker.offset() == 299

    run(tmp_path, story)


def value_of(offset: int) -> bytes:
    """An OffsetCommitValue whose text makes it long."""
    text = b"x" * 20_000
    return b"\x00\x03" + offset.to_bytes(8, "big") + b"\xff" * 4 + len(text).to_bytes(2, "big") + text + bytes(8)
