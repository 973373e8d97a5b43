"""One topic as a queue and as a publication, with groups of our own consumer (rows S110, S111, S112, S123)."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial

from click.testing import CliRunner

from strandline.cli.main import main as program
from strandline.client import EARLIEST, Admin, Consumer, ConsumerRecord, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually, make_topic

RECORDS = 9_000


class Member:
    """A consumer on a thread of its own, until it is closed; `pause_s` passes after each poll."""

    def __init__(self, cluster: DevCluster, group: str, topic: str, pause_s: float = 0.0) -> None:
        self.read: list[ConsumerRecord] = []
        self.failure: BaseException | None = None
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._consumer = Consumer(
            cluster.bootstrap, group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=200
        )
        self._consumer.subscribe(topic)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._consumer as consumer:
                while not self._stopped.wait(self._pause_s):
                    self.read += consumer.poll(0.1)
                consumer.commit()
        except BaseException as error:
            self.failure = error

    @property
    def partitions(self) -> list[int]:
        """What the group has given it."""
        assert self.failure is None, self.failure
        return sorted(item.partition for item in self._consumer.assignment())

    def close(self) -> None:
        """Commit, leave."""
        self._stopped.set()
        self._thread.join(30)
        assert self.failure is None, self.failure


def members(stack: ExitStack, cluster: DevCluster, group: str, topic: str, count: int) -> list[Member]:
    found = [Member(cluster, group, topic) for _ in range(count)]
    for member in found:
        stack.callback(member.close)
    return found


def shared_out(group: list[Member], each: int) -> bool:
    """Every member has so many partitions."""
    assert [len(member.partitions) for member in group] == [each] * len(group)
    return True


def fill(cluster: DevCluster, topic: str, partitions: int, count: int = RECORDS) -> Counter[bytes]:
    values = [b"%d" % number for number in range(count)]
    with Producer(cluster.bootstrap, linger_ms=20) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % partitions)
    return Counter(values)


def values(group: list[Member]) -> Counter[bytes]:
    return Counter(record.value for member in group for record in member.read)


def ascending(records: list[ConsumerRecord]) -> bool:
    """In each partition, one after the other, none left out."""
    last: dict[int, int] = {}
    for record in records:
        if record.offset != last.get(record.partition, -1) + 1:
            return False
        last[record.partition] = record.offset
    return True


def test_one_group_shares_the_work(cluster: DevCluster) -> None:
    """Row S110: three members of one group, 9,000 records: each is handled once, each member has a third of them."""
    make_topic(cluster, "queue", 6)
    with ExitStack() as stack:
        group = members(stack, cluster, "queuers", "queue", 3)
        eventually(lambda: shared_out(group, 2))
        sent = fill(cluster, "queue", 6)
        eventually(lambda: values(group).total() >= RECORDS)
        assert values(group) == sent
        assert [len(member.read) for member in group] == [RECORDS // 3] * 3


def test_a_group_for_each_reads_everything(cluster: DevCluster) -> None:
    """Row S111: five groups each get all 9,000, at speeds that differ; a sixth that starts when they are done, too."""
    make_topic(cluster, "published", 2)
    sent = fill(cluster, "published", 2)
    with ExitStack() as stack:
        groups = [Member(cluster, f"reader-{number}", "published", number * 0.01) for number in range(5)]
        for member in groups:
            stack.callback(member.close)
        eventually(lambda: all(len(member.read) >= RECORDS for member in groups))
        late = Member(cluster, "reader-late", "published")
        stack.callback(late.close)
        eventually(lambda: len(late.read) >= RECORDS)
        for member in [*groups, late]:
            assert values([member]) == sent
            assert ascending(member.read)


def has_read(member: Member, since: int, count: int) -> bool:
    return sum(map(len, newest(member, since).values())) >= count


def newest(member: Member, since: int) -> dict[int, list[int]]:
    """Partition -> the offsets from `since` on, as they were read."""
    found: dict[int, list[int]] = {}
    for record in member.read:
        if record.offset >= since:
            found.setdefault(record.partition, []).append(record.offset)
    return found


def test_order_is_kept_within_a_partition_and_not_between(cluster: DevCluster) -> None:
    """Row S112: six members of six partitions: each sees one alone, strictly ascending. Three members: each sees two,
    in order each, but not in the order in which they were sent."""
    make_topic(cluster, "ordered", 6)
    fill(cluster, "ordered", 6, 3_000)
    for count, since in ((6, 500), (3, 1_000)):
        with ExitStack() as stack:
            group = members(stack, cluster, f"members-{count}", "ordered", count)
            eventually(partial(shared_out, group, 6 // count))
            fill(cluster, "ordered", 6, 3_000)
            wanted, each = list(range(since, since + 500)), 6 // count
            for member in group:
                eventually(partial(has_read, member, since, 500 * each))
                assert list(newest(member, since).values()) == [wanted] * each
    for member in group:
        sent = [int(record.value) for record in member.read if record.offset >= since]
        assert sent != sorted(sent)


def test_nothing_vanishes_until_it_is_deleted_below_the_lowest_commit(cluster: DevCluster) -> None:
    """Row S123: two groups read the same records; what both have committed is deleted on demand, and no more; the
    slower one goes on where it stood."""
    make_topic(cluster, "emptied", 2)
    fill(cluster, "emptied", 2, 200)

    def read(group: str, count: int) -> list[int]:
        settings = {"group_id": group, "auto_offset_reset": "earliest", "max_poll_records": 10}
        numbers: list[int] = []
        with Consumer(cluster.bootstrap, **settings) as consumer:
            consumer.subscribe("emptied")
            while len(numbers) < count:
                numbers += [int(record.value) for record in consumer.poll(5.0, count - len(numbers))]
            consumer.commit()
        return numbers

    assert sorted(read("quick", 200)) == list(range(200))
    seen = read("slow", 70)

    words = ["topic", "trim", "emptied", "--committed-by", "quick", "--committed-by", "slow", "-y"]
    told = CliRunner().invoke(program, [*words, "-b", cluster.bootstrap])
    assert told.exit_code == 0, told.output
    with Admin(cluster.bootstrap) as admin:
        committed = {item: one.offset for item, one in admin.list_group_offsets("slow").items()}
        starts = {item: one.offset for item, one in admin.list_offsets(dict.fromkeys(committed, EARLIEST)).items()}
    assert starts == committed
    assert sum(starts.values()) == 70
    assert sorted(seen + read("slow", 130)) == list(range(200))
