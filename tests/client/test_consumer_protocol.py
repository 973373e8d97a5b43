"""What our consumer does with group.protocol=consumer (KIP-848) alone, on simulated clusters of production nodes, and
rolled to and from the classic protocol. What both protocols share: `test_groups_both_protocols`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strandline.chaos.testing.env import Env
from strandline.client.aio import Admin
from strandline.client.config import ConsumerConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import TopicPartition
from tests.client.members import CONSUMER, Reader, commits_only_grow, fill, member, simulate, until


def test_of_two_under_one_name_the_second_is_refused() -> None:
    """KIP-848: while the first lives; and the second says so."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        one = Reader(env, **CONSUMER, group_instance_id="a")
        await until(lambda: one.numbers == [0, 1])
        twin = Reader(env, **CONSUMER, group_instance_id="a")
        with pytest.raises(KafkaError, match="UNRELEASED_INSTANCE_ID"):
            await twin.task
        assert one.numbers == [0, 1]
        await one.stop()

    simulate(main)


@pytest.mark.parametrize("error", ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"])
def test_who_is_none_any_more_hears_of_it_and_joins_anew(error: str) -> None:
    """What it had may be another's: on_lost is told, nothing is committed, and it joins and gets its share."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 2)
        one = Reader(env, **CONSUMER)
        both = [TopicPartition("t", 0), TopicPartition("t", 1)]
        await until(lambda: one.numbers == [0, 1])
        env.faults.fail_next("CONSUMER_GROUP_HEARTBEAT", error)
        await until(lambda: ("lost", both) in one.events)
        await until(lambda: one.numbers == [0, 1] and one.consumer.state.name == "stable")
        assert one.events[-2:] == [("lost", both), ("assigned", both)]
        last = one.consumer.state.last_error
        assert isinstance(last, KafkaError)
        assert last.code is ErrorCode[error]
        await one.stop()

    simulate(main)


def test_a_commit_between_two_epochs_is_sent_again() -> None:
    """The coordinator is an epoch ahead of the answer that tells the member so: STALE_MEMBER_EPOCH is no refusal."""

    async def main(env: Env) -> None:
        await env.create_topic("t")
        await fill(env, "t", 10, 1)
        one = member(env, **CONSUMER)
        one.subscribe("t")
        while not await one.poll(1.0):
            pass
        env.faults.fail_next("OFFSET_COMMIT", "STALE_MEMBER_EPOCH")
        await one.commit()
        found = (await one.committed())[TopicPartition("t", 0)]
        assert found is not None
        assert found.offset == 10
        await one.close()

    simulate(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_is_rolled_up_and_down_and_no_record_is_skipped(seed: int) -> None:
    """Member by member to the consumer protocol and back, under load, while brokers and members die (KIP-848, "Online
    migration"): every acknowledged record is handled, and no committed offset goes back."""

    async def main(env: Env) -> None:
        await env.create_topic("t", 4)
        handled: set[bytes] = set()
        classic = {"partition_assignment_strategy": "cooperative-sticky" if seed % 2 else "range"}

        def reading(settings: dict[str, Any]) -> Callable[[], Any]:
            async def run() -> None:
                async with member(env, **settings) as consumer:
                    consumer.subscribe("t")
                    while True:
                        handled.update(record.value or b"" for record in await consumer.poll(0.5, 20))

            return run

        alive = [env.spawn(reading(classic), f"c{number}") for number in range(2)]
        async with commits_only_grow(env, "t", 4):
            produced = 0
            for turn, settings in enumerate((CONSUMER, CONSUMER, classic, classic)):
                await fill(env, "t", 100, 4, start=produced)
                produced += 100
                alive.append(env.spawn(reading(settings), f"m{turn}"))
                await asyncio.sleep(env.rng.uniform(0.5, 4))
                alive.pop(0).kill()
                node = env.rng.randint(1, 3)
                env.faults.kill(node)
                await asyncio.sleep(env.rng.uniform(0.5, 3))
                env.faults.start(node)
                await until(lambda count=produced: len(handled) == count, 120)  # type: ignore[misc]
        async with (
            Admin(env.bootstrap) as admin,
            asyncio.timeout(60),
        ):  # when the session of the last killed one is over
            while [one.type.lower() for one in await admin.list_groups() if one.group_id == "g"] != ["classic"]:
                await asyncio.sleep(0.5)

    simulate(main, seed)


def test_settings() -> None:
    """What the brokers decide in this protocol may not be set; the assignor may only in it."""
    for name, value in (
        ("session.timeout.ms", 10_000),
        ("heartbeat.interval.ms", 100),
        ("partition.assignment.strategy", "range"),
    ):
        with pytest.raises(ConfigError, match="the brokers decide"):
            ConsumerConfig({"group.protocol": "consumer", name: value})
    with pytest.raises(ConfigError, match=r"group\.protocol=consumer"):
        ConsumerConfig({"group.remote.assignor": "range"})
    with pytest.raises(ConfigError, match="classic, consumer"):
        ConsumerConfig({"group.protocol": "streams"})
