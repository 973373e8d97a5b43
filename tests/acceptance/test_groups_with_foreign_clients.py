"""Consumer groups on real processes, with other people's clients (rows S54 to S63, S85)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import needs_kcat
from tests.acceptance.helpers import QUICK, describe, eventually, make_topic
from tests.acceptance.readers import FENCED, SESSION_S, Reader, ReaderProcess, handled, produce, settings_of, sizes

PROGRESS_S_MAX = 3.0
"""What a group may take beyond the session rules. Nothing is measured here, the machine is shared."""

NOISE_S = 20.0

PATIENT = {"session_timeout_ms": 45_000}
"""For members that nobody may take for dead, or whose going must be noticed otherwise, on a slow machine too."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nodes=3, settings=QUICK) as processes:
        yield processes


def coordinator(cluster: DevCluster, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.responsive})  # kept: an answer needs its client
    return int(admin.describe_consumer_groups([group])[group].result(15).coordinator.id)


def test_partitions_are_shared_out(cluster: DevCluster) -> None:
    """Rows S56, S57, S59: 8 partitions over 3 members, then 4, then 3 again; every record is handled, each by one
    owner."""
    make_topic(cluster, "shared", 8)
    values = produce(cluster, "shared", 8, 400)
    with ExitStack() as stack:
        readers = [Reader(cluster.bootstrap, "sharers", "shared", **PATIENT) for _ in range(3)]
        for reader in readers:
            stack.callback(reader.close)
        eventually(lambda: sizes(readers) == [3, 3, 2])
        fourth = Reader(cluster.bootstrap, "sharers", "shared", **PATIENT)
        eventually(lambda: sizes([*readers, fourth]) == [2, 2, 2, 2])
        values |= produce(cluster, "shared", 8, 100, "more")
        eventually(lambda: handled([*readers, fourth]) == values)
        left = time.monotonic()
        fourth.close()
        eventually(lambda: sizes(readers) == [3, 3, 2])
        assert time.monotonic() - left < 40, "who leaves is not waited for"


def test_a_killed_member_is_replaced(cluster: DevCluster) -> None:
    """Rows S58, S61, S85: more members than partitions: the idle one takes over within the session timeout. The
    registry shows who has what, and forgets the dead."""
    make_topic(cluster, "few", 1)
    produce(cluster, "few", 1, 20)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def owners() -> dict[str, list[int]]:
        """By client id, once the group is stable."""
        described = admin.describe_consumer_groups(["idlers"])["idlers"].result(15)
        if described.state is not ConsumerGroupState.STABLE:
            return {}
        return {
            member.client_id: [one.partition for one in member.assignment.topic_partitions]
            for member in described.members
        }

    with ExitStack() as stack:
        processes = {}
        for name in ("a", "b"):
            processes[name] = ReaderProcess(cluster.bootstrap, "idlers", "few", client_id=name)
            stack.callback(processes[name].close)

        def shared_out() -> dict[str, list[int]] | None:
            found = owners()
            return found if sorted(found.values()) == [[], [0]] else None

        (owner,) = [name for name, partitions in eventually(shared_out).items() if partitions]
        (idle,) = {"a", "b"} - {owner}
        struck = time.monotonic()
        processes[owner].signal(signal.SIGKILL)
        eventually(lambda: owners() == {idle: [0]}, SESSION_S + PROGRESS_S_MAX + NOISE_S)
        assert time.monotonic() - struck >= SESSION_S - 2, "it might have lived"


def test_an_old_owner_is_fenced(cluster: DevCluster) -> None:
    """Row S85: a member that was thrown out for its silence commits, and is refused; the offsets stay."""
    make_topic(cluster, "fencing", 1)
    produce(cluster, "fencing", 1, 10)
    slow = Consumer(settings_of(cluster.bootstrap, "fencers", max_poll_interval_ms=6000))
    slow.subscribe(["fencing"])
    try:

        def record() -> Message | None:
            polled = slow.poll(1)
            return polled if polled is not None and polled.error() is None else None

        slow.commit(eventually(record), asynchronous=False)
        # librdkafka leaves by itself when it is not polled for max.poll.interval.ms.
        fresh = Reader(cluster.bootstrap, "fencers", "fencing")
        try:
            eventually(lambda: fresh.assigned == {0})
            with pytest.raises(KafkaException) as refused:
                slow.commit(offsets=[TopicPartition("fencing", 0, 1)], asynchronous=False)
            assert refused.value.args[0].code() in FENCED
        finally:
            fresh.close()
    finally:
        slow.close()


def test_a_static_member_restarts_without_a_rebalance(cluster: DevCluster) -> None:
    """KIP-345: it returns within its session and has its partitions again; the others notice nothing."""
    make_topic(cluster, "static", 4)
    first = Reader(cluster.bootstrap, "statics", "static", group_instance_id="one", **PATIENT)
    second = Reader(cluster.bootstrap, "statics", "static", group_instance_id="two", **PATIENT)
    try:
        eventually(lambda: sizes([first, second]) == [2, 2])
        before, seen = set(second.assigned), len(first.events)
        second.close()
        second = Reader(cluster.bootstrap, "statics", "static", group_instance_id="two", **PATIENT)
        eventually(lambda: second.assigned == before)
        assert len(first.events) == seen, "no rebalance"
    finally:
        second.close()
        first.close()


def test_cooperative_members_keep_what_they_have(cluster: DevCluster) -> None:
    """KIP-429: a member that joins takes partitions from the other, which goes on with the rest all the while."""
    make_topic(cluster, "sticky", 6)
    values = produce(cluster, "sticky", 6, 120)
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    first = Reader(cluster.bootstrap, "stickers", "sticky", **settings)
    readers = [first]
    try:
        eventually(lambda: sizes(readers) == [6])
        readers.append(Reader(cluster.bootstrap, "stickers", "sticky", **settings))
        eventually(lambda: sizes(readers) == [3, 3])
        taken = [partitions for kind, partitions in first.events if kind == "revoke" and partitions]
        assert [len(partitions) for partitions in taken] == [3], first.events
        eventually(lambda: handled(readers) == values)
    finally:
        for reader in readers:
            reader.close()


def test_commit_and_resume(cluster: DevCluster) -> None:
    """Row S63: the commit is the next offset; a later member begins there, whatever its client."""
    make_topic(cluster, "resumed", 1)
    produce(cluster, "resumed", 1, 100)

    async def read(count: int) -> list[int]:
        consumer = AIOKafkaConsumer(
            "resumed",
            bootstrap_servers=cluster.bootstrap,
            group_id="resumers",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            async with asyncio.timeout(30):
                offsets = [(await consumer.getone()).offset for _ in range(count)]
            await consumer.commit({AioTopicPartition("resumed", 0): offsets[-1] + 1})
            return offsets
        finally:
            await consumer.stop()

    assert asyncio.run(read(40)) == list(range(40))
    assert asyncio.run(read(20)) == list(range(40, 60))
    reader = Reader(cluster.bootstrap, "resumers", "resumed")
    try:
        eventually(lambda: len(reader.read) == 40)
        assert [offset for _, _, offset, _ in reader.read] == list(range(60, 100))
    finally:
        reader.close()


def test_offsets_are_set_and_groups_deleted_by_an_administrator(cluster: DevCluster) -> None:
    """List, set, describe and delete through any client's admin API; not while the group has members."""
    make_topic(cluster, "admined", 2)
    produce(cluster, "admined", 2, 20)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    reader = Reader(cluster.bootstrap, "admins", "admined")
    try:
        eventually(lambda: len(reader.read) == 20)
        listed = {one.group_id: one.state.name for one in admin.list_consumer_groups().result(15).valid}
        assert listed["admins"] == "STABLE"
        wanted = [ConsumerGroupTopicPartitions("admins", [TopicPartition("admined", 0, 3)])]
        refused = admin.alter_consumer_group_offsets(wanted)["admins"].result(15)
        assert refused.topic_partitions[0].error.code() == KafkaError.UNKNOWN_MEMBER_ID
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["admins"])["admins"].result(15)
    finally:
        reader.close()
    admin.alter_consumer_group_offsets(wanted)["admins"].result(15)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("admins")])["admins"].result(15)
    assert {one.partition: one.offset for one in found.topic_partitions} == {0: 3, 1: 10}
    admin.delete_consumer_groups(["admins"])["admins"].result(15)
    assert "admins" not in {one.group_id for one in admin.list_consumer_groups().result(15).valid}


@needs_kcat
def test_kcat_as_a_group(cluster: DevCluster) -> None:
    """kcat -G: the balanced consumer of librdkafka's own tool."""
    make_topic(cluster, "kcatted", 3)
    values = produce(cluster, "kcatted", 3, 60)
    with subprocess.Popen(
        ["kcat", "-b", cluster.bootstrap, "-X", "auto.offset.reset=earliest", "-u", "-G", "kcatters", "kcatted"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:
        assert running.stdout is not None
        try:
            assert {running.stdout.readline().strip() for _ in range(60)} == values
        finally:
            running.terminate()


def test_the_coordinator_is_killed(cluster: DevCluster) -> None:
    """Row S60: the group goes on under another broker; its offsets are there, and nothing is read twice for it."""
    make_topic(cluster, "survivors", 4)
    produce(cluster, "survivors", 4, 40)
    readers = [Reader(cluster.bootstrap, "group-of-survivors", "survivors") for _ in range(2)]
    victim = 0
    try:
        eventually(lambda: len(handled(readers)) == 40 and sizes(readers) == [2, 2])
        victim = coordinator(cluster, "group-of-survivors")
        struck = time.monotonic()
        cluster.kill(victim)
        values = produce(cluster, "survivors", 4, 40, "after")
        eventually(lambda: values <= handled(readers), SESSION_S + PROGRESS_S_MAX + NOISE_S)
        print(f"progress {time.monotonic() - struck:.1f} s after the coordinator's death")
        assert coordinator(cluster, "group-of-survivors") != victim
        again = [offset for reader in readers for _, _, offset, _ in reader.read]
        assert len(again) <= 84, "records handled twice"
    finally:
        for reader in readers:
            reader.close()
        if victim:
            cluster.start_node(victim)
            eventually(lambda: len(describe(cluster, "survivors").isr) == 3)


def test_a_hundred_partitions_over_ten_members(cluster: DevCluster) -> None:
    """10 each, one owner each; then one leaves, and nine share what ten had: 12 for one, 11 for the others."""
    make_topic(cluster, "hundred", 100)
    readers = [Reader(cluster.bootstrap, "tens", "hundred") for _ in range(10)]
    try:
        began = time.monotonic()
        eventually(lambda: sizes(readers) == [10] * 10)
        joined = time.monotonic()
        readers.pop().close()
        eventually(lambda: sizes(readers) == [12, *[11] * 8])
        assert {partition for reader in readers for partition in reader.assigned} == set(range(100))
        print(f"joined in {joined - began:.1f} s, rebalanced in {time.monotonic() - joined:.1f} s")
    finally:
        for reader in readers:
            reader.close()


def test_offsets_survive_the_whole_cluster(cluster: DevCluster) -> None:
    """Row S62: an internal topic, three copies, compacted by its settings; every node is stopped and started."""
    make_topic(cluster, "kept", 1)
    produce(cluster, "kept", 1, 30)
    reader = Reader(cluster.bootstrap, "keepers", "kept")
    try:
        eventually(lambda: len(reader.read) == 30)
    finally:
        reader.close()
    for node in cluster.node_ids:
        cluster.stop_node(node)
    for node in cluster.node_ids:
        cluster.start_node(node, wait=False)
    cluster.wait_ready()
    consumer = Consumer(settings_of(cluster.bootstrap, "keepers"))
    try:
        (committed,) = consumer.committed([TopicPartition("kept", 0)], timeout=30)
        assert committed.offset == 30
        topics = consumer.list_topics(timeout=15).topics
        assert {len(one.replicas) for one in topics["__consumer_offsets"].partitions.values()} == {3}
    finally:
        consumer.close()
