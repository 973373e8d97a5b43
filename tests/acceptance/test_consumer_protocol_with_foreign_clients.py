"""The consumer protocol (KIP-848) on real processes: librdkafka's and Java's `group.protocol=consumer`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from strandline.cluster.node.dev import DevCluster
from strandline.proto.error_codes import ErrorCode
from tests.acceptance.helpers import QUICK, eventually, make_topic
from tests.acceptance.readers import JavaReader, Reader, ReaderProcess, handled, produce, sizes

SETTINGS = {
    **QUICK,
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "4000",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nodes=3, settings=SETTINGS) as processes:
        yield processes


def test_members_share_move_and_survive_their_coordinator(cluster: DevCluster) -> None:
    """Partitions are shared out, move when members come and go and the topic grows; a coordinator that is killed moves
    nothing; every record is handled, and what was committed is where the classic protocol goes on."""
    make_topic(cluster, "ticks", 6)
    values = produce(cluster, "ticks", 6, 300)
    with ExitStack() as stack:
        readers = []
        for _ in range(3):
            readers.append(Reader(cluster.responsive, "readers", "ticks", group_protocol="consumer"))
            stack.callback(readers[-1].close)
        eventually(lambda: sizes(readers) == [2, 2, 2])
        admin = AdminClient({"bootstrap.servers": cluster.responsive})
        found = admin.describe_consumer_groups(["readers"])["readers"].result(15)
        assert (found.type.name, found.partition_assignor) == ("CONSUMER", "uniform")
        assert sorted(len(one.target_assignment.topic_partitions) for one in found.members) == [2, 2, 2]
        fourth = Reader(cluster.responsive, "readers", "ticks", group_protocol="consumer")
        eventually(lambda: sizes([*readers, fourth]) == [2, 2, 1, 1])
        values |= produce(cluster, "ticks", 6, 100, "more")
        eventually(lambda: handled([*readers, fourth]) == values)
        fourth.close()
        eventually(lambda: sizes(readers) == [2, 2, 2])
        admin.create_partitions([NewPartitions("ticks", 9)])["ticks"].result(15)
        eventually(lambda: sizes(readers) == [3, 3, 3])
        before = [set(reader.assigned) for reader in readers]
        cluster.kill(found.coordinator.id)
        values |= produce(cluster, "ticks", 9, 100, "last")
        eventually(lambda: handled([*readers, fourth]) == values)
        assert [reader.assigned for reader in readers] == before
        # A commit that is under way while its member comes to a new epoch is refused, in Kafka too.
        assert {error for reader in readers for error in reader.errors} <= {ErrorCode.STALE_MEMBER_EPOCH}
        cluster.start_node(found.coordinator.id)
    eventually(lambda: group_state(cluster, "readers") is ConsumerGroupState.EMPTY)
    classic = Reader(cluster.responsive, "readers", "ticks")
    eventually(lambda: len(classic.assigned) == 9)
    again = produce(cluster, "ticks", 9, 18, "again")
    eventually(lambda: handled([classic]) == again)
    classic.close()


def group_state(cluster: DevCluster, group: str) -> ConsumerGroupState:
    admin = AdminClient({"bootstrap.servers": cluster.responsive})
    state: ConsumerGroupState = admin.describe_consumer_groups([group])[group].result(15).state
    return state


def shares(cluster: DevCluster, group: str, reader: Reader) -> tuple[int, list[int]]:
    """How many partitions the reader has, and how many each member by the coordinator's word; asserted, to be seen."""
    admin = AdminClient({"bootstrap.servers": cluster.responsive})
    members = admin.describe_consumer_groups([group])[group].result(15).members
    found = len(reader.assigned), [len(member.assignment.topic_partitions) for member in members]
    assert found == (2, [2, 2]), (found, reader.events, [member.member_id for member in members])
    return found


def test_a_killed_member_and_what_operators_do(cluster: DevCluster) -> None:
    """It is replaced after the group's session timeout; offsets of an empty group can be set, and the group deleted."""
    make_topic(cluster, "orphaned", 4)
    values = produce(cluster, "orphaned", 4, 60)
    admin = AdminClient({"bootstrap.servers": cluster.responsive})
    process = ReaderProcess(cluster.responsive, "orphans", "orphaned", group_protocol="consumer")
    try:
        eventually(lambda: group_state(cluster, "orphans") is ConsumerGroupState.STABLE)
        reader = Reader(cluster.responsive, "orphans", "orphaned", group_protocol="consumer")
        eventually(lambda: shares(cluster, "orphans", reader) == (2, [2, 2]))
        process.signal(signal.SIGKILL)
        eventually(lambda: len(reader.assigned) == 4)
        with pytest.raises(KafkaException):
            admin.delete_consumer_groups(["orphans"])["orphans"].result(15)
        reader.close()
    finally:
        process.close()
    back = ConsumerGroupTopicPartitions("orphans", [TopicPartition("orphaned", number, 0) for number in range(4)])
    admin.alter_consumer_group_offsets([back])["orphans"].result(15)
    reader = Reader(cluster.responsive, "orphans", "orphaned", group_protocol="consumer")
    eventually(lambda: handled([reader]) == values)
    reader.close()
    admin.delete_consumer_groups(["orphans"])["orphans"].result(15)
    assert "orphans" not in [one.group_id for one in admin.list_consumer_groups().result(15).valid]


class Load:
    """Records of a topic, one every few milliseconds, until it is stopped; all of them acknowledged."""

    def __init__(self, cluster: DevCluster, topic: str, partitions: int) -> None:
        self.values: set[bytes] = set()
        self._stopped = threading.Event()
        self._producer = Producer({"bootstrap.servers": cluster.responsive})
        self._thread = threading.Thread(target=self._run, args=(topic, partitions), daemon=True)
        self._thread.start()

    def _run(self, topic: str, partitions: int) -> None:
        number = 0
        while not self._stopped.wait(0.005):
            value = f"load {number}".encode()
            self._producer.produce(topic, value, partition=number % partitions)
            self.values.add(value)
            number += 1

    def stop(self) -> set[bytes]:
        """Returns what was produced."""
        self._stopped.set()
        self._thread.join(30)
        assert self._producer.flush(30) == 0
        return self.values


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_is_rolled_to_the_consumer_protocol_and_back(cluster: DevCluster, strategy: str) -> None:
    """Member by member, under load, as KIP-848 has it ("Online migration"): no record is lost, nobody is thrown out,
    and at every moment the members have all partitions between them."""
    topic, group = f"rolled-{strategy}", f"rollers-{strategy}"
    make_topic(cluster, topic, 6)
    admin = AdminClient({"bootstrap.servers": cluster.responsive})
    kinds: list[dict[str, str]] = [{"partition_assignment_strategy": strategy}, {"group_protocol": "consumer"}]
    load = Load(cluster, topic, 6)
    with ExitStack() as stack:

        def start(kind: int) -> Reader:
            reader = Reader(cluster.responsive, group, topic, **kinds[kind])
            stack.callback(reader.close)
            return reader

        readers = [start(0), start(0)]
        everybody = list(readers)
        eventually(lambda: sizes(readers) == [3, 3])
        for kind in (1, 1, 0, 0):
            readers.append(start(kind))
            everybody.append(readers[-1])
            eventually(lambda: sizes(readers) == [2, 2, 2])
            assert admin.describe_consumer_groups([group])[group].result(15).type.name == "CONSUMER"
            readers.pop(0).close()
            eventually(lambda: sizes(readers) == [3, 3])
        eventually(lambda: group_type(admin, group) == "CLASSIC")
        values = load.stop()
        eventually(lambda: handled(everybody) == values)
        assert len(values) > 500
        assert not [event for reader in everybody for event in reader.events if event[0] == "lost"]


def group_type(admin: AdminClient, group: str) -> str:
    found = admin.describe_consumer_groups([group])[group].result(15)
    assert found.state is ConsumerGroupState.STABLE
    return str(found.type.name)


def test_a_group_of_java_consumers_is_rolled_to_the_consumer_protocol_and_back(cluster: DevCluster) -> None:
    """Java's consumers with their default assignors, under load: each new member speaks the other protocol, an old one
    leaves; the group follows, no partition has two members, none is lost by its member, every record is read."""
    make_topic(cluster, "java-rolled", 6)
    admin = AdminClient({"bootstrap.servers": cluster.responsive})
    with ExitStack() as stack:

        def start(protocol: str) -> JavaReader:
            reader = JavaReader(cluster.responsive, "java-rollers", "java-rolled", protocol)
            stack.callback(reader.close)
            return reader

        def share(wanted: list[int]) -> bool:
            owned = sorted(partition for reader in readers for partition in reader.assigned)
            counts = sorted(len(reader.assigned) for reader in readers)
            assert (counts, owned) == (wanted, list(range(6))), [reader.said[-4:] for reader in readers]
            return True

        readers = [start("classic"), start("classic")]
        everybody = list(readers)
        eventually(lambda: share([3, 3]), 150)
        load = Load(cluster, "java-rolled", 6)
        for protocol in ("consumer", "consumer", "classic", "classic"):
            readers.append(start(protocol))
            everybody.append(readers[-1])
            eventually(lambda: share([2, 2, 2]), 150)
            assert admin.describe_consumer_groups(["java-rollers"])["java-rollers"].result(15).type.name == "CONSUMER"
            readers.pop(0).leave()
            eventually(lambda: share([3, 3]))
        eventually(lambda: group_type(admin, "java-rollers") == "CLASSIC")
        values = load.stop()
        eventually(lambda: set[bytes]().union(*(reader.read for reader in everybody)) == values)
        assert not [line for reader in everybody for line in reader.said if line.startswith("lost")]


def test_java_and_librdkafka_in_one_group(cluster: DevCluster) -> None:
    """Java's consumer subscribes by a pattern that the coordinator resolves, beside librdkafka by name; both read."""
    make_topic(cluster, "both", 4)
    values = produce(cluster, "both", 4, 200)
    java = JavaReader(cluster.responsive, "mixed", "^bot.", "consumer", wanted=220)
    try:
        eventually(lambda: offsets(cluster, "mixed", "both", 4) == [50] * 4, 150)
        reader = Reader(cluster.responsive, "mixed", "both", group_protocol="consumer")
        eventually(lambda: len(reader.assigned) == 2)
        more = produce(cluster, "both", 4, 40, "more")
        java.wait(150)
        eventually(lambda: java.read | handled([reader]) == values | more)
        assert not java.read & handled([reader])
        eventually(lambda: len(reader.assigned) == 4)
        reader.close()
    finally:
        java.close()


def offsets(cluster: DevCluster, group: str, topic: str, partitions: int) -> list[int]:
    admin = AdminClient({"bootstrap.servers": cluster.responsive})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(partitions)])
    found = admin.list_consumer_group_offsets([asked])[group].result(15)
    return [one.offset for one in found.topic_partitions]
