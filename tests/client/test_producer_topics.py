"""Topics that come and go under a producer: their queues leave it, and no record of a living topic is taken for one
that is in its log already (scripted brokers, real logs)."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.errors import UnknownTopic
from strandline.client.sender import EPOCH_MAX, PartitionQueue
from strandline.proto.ids import TopicPartition
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play
from tests.client.members import until

TOPICS = [f"t{number}" for number in range(5)]


def producer(ports: Ports, **settings: Any) -> Producer:
    return Producer(
        BOOTSTRAP, clock=ports.clock, rng=ports.rng, **{"linger_ms": 0, "metadata_max_age_ms": 300, **settings}
    )


def queues(one: Producer) -> list[str]:
    assert one._core is not None
    return sorted({item.topic for item in one._core.accumulator.queues})


def used(one: Producer) -> int:
    assert one._core is not None
    return one._core.accumulator.memory.used


def hide(cluster: ScriptedCluster, topic: str) -> UUID:
    """Brokers tell of no such topic any more."""
    return cluster.topic_ids.pop(topic)


def test_queues_of_deleted_topics_leave_the_producer() -> None:
    """What waited for them fails with the topic's name, its memory is given back, and nothing of them is kept."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports) as one:
            for topic in TOPICS:
                await one.send_and_wait(topic, b"x", partition=0)
                await one.send_and_wait(topic, b"x")
            assert queues(one) == TOPICS
            futures = []
            for topic in TOPICS[1:]:
                hide(cluster, topic)
                futures.append(await one.send(topic, b"late", partition=0))
            for topic, future in zip(TOPICS[1:], futures, strict=True):
                with pytest.raises(UnknownTopic, match=topic):
                    await future
            assert used(one) == 0
            await until(lambda: queues(one) == ["t0"])
            assert one._core is not None
            assert list(one._core._sticky) == ["t0"]
            await one.send_and_wait("t0", b"y")

    play(scenario, dict.fromkeys(TOPICS, 1))


def test_queues_of_topics_that_are_not_sent_to_leave_the_producer() -> None:
    """A topic that was deleted long after the last record for it: nobody asks for it any more."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, metadata_max_idle_ms=3_000) as one:
            for topic in TOPICS:
                await one.send_and_wait(topic, b"x")
            for _ in range(10):
                await one.send_and_wait("t0", b"x")
                await asyncio.sleep(1)
            assert queues(one) == ["t0"]

    cluster = play(scenario, dict.fromkeys(TOPICS, 1))
    epochs = {record.value for record in cluster.records[TopicPartition("t0", 0)]}
    assert epochs == {b"x"}


@pytest.mark.parametrize("how", ["idle", "hidden"])
@pytest.mark.parametrize("epoch", [0, EPOCH_MAX - 1])
def test_a_queue_that_is_made_again_repeats_no_sequence(how: str, epoch: int) -> None:
    """The topic lives: it was idle for long, or a broker that hears of nothing told that there is none. Its log holds
    sequences 0, 1, 2 of this producer: new records under these would be answered as duplicates, and lost."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with producer(ports, metadata_max_idle_ms=2_000) as one:
            for turn in range(4):
                for number in range(3):
                    ack = await one.send_and_wait("t", b"%d" % (3 * turn + number), partition=0)
                    assert ack.offset == 3 * turn + number
                assert one._core is not None
                if epoch and not turn:
                    one._core.accumulator.queues[TopicPartition("t", 0)].producer_epoch = epoch
                topic_id = hide(cluster, "t") if how == "hidden" else None
                await until(lambda: not queues(one))
                if topic_id is not None:
                    cluster.topic_ids["t"] = topic_id

    cluster = play(scenario, {"t": 1})
    assert [record.value for record in cluster.records[TopicPartition("t", 0)]] == [b"%d" % n for n in range(12)]


def test_the_first_batch_of_a_topic_that_was_made_anew_travels_alone() -> None:
    """Its log has no trace of the producer, so its leader takes any sequence: of two batches under way in an election
    the second could come first. An id that is not known for a moment changes nothing."""
    queue = PartitionQueue(TopicPartition("t", 0))
    queue.goes_to(UUID(int=1))
    queue.known = True
    queue.goes_to(UUID(int=1))
    queue.goes_to(None)
    queue.goes_to(UUID(int=1))
    assert queue.known
    queue.goes_to(None)
    queue.goes_to(UUID(int=2))
    assert not queue.known
