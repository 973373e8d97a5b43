"""Kafka's system test consumer_test, against three processes of ours: brokers and members of a group are stopped and
started again. Members are librdkafka's, in both group protocols."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from bench.clusters import admin_client
from interop.applications import is_whole

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually, make_topic
from tests.acceptance.readers import Reader, handled, produce, sizes

pytestmark = pytest.mark.timeout(400)

PROTOCOLS = {"classic": {"session_timeout_ms": 30_000}, "consumer": {"group_protocol": "consumer"}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nodes=3, settings=QUICK | {"group.consumer.session.timeout.ms": "45000"}) as processes:
        yield processes


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def members(stack: ExitStack, cluster: DevCluster, name: str, count: int, **settings: Any) -> list[Reader]:
    """Of the group `name`, which read the topic `name`; with instance ids 0, 1, ... where `settings` ask for them."""
    static = settings.pop("static", False)
    found = []
    for number in range(count):
        given = {**settings, **({"group_instance_id": str(number)} if static else {})}
        found.append(Reader(cluster.bootstrap, name, name, **given))
        stack.callback(found[-1].close)
    return found


def roll_brokers(cluster: DevCluster) -> None:
    """Each is stopped in order and started again; then every replica is in sync."""
    admin = admin_client(cluster.bootstrap)
    for node in cluster.broker_ids:
        cluster.stop_node(node)
        cluster.start_node(node)
        eventually(lambda: is_whole(admin), 120)


def counted_once(readers: Sequence[Reader], values: set[bytes]) -> None:
    """Nothing was read twice by members that left in order."""
    read = [value for reader in readers for _, _, _, value in reader.read]
    assert (len(read), set(read)) == (len(values), values)


def test_a_rolling_restart_of_brokers_rebalances_nobody(cluster: DevCluster, protocol: str) -> None:
    """`test_broker_rolling_bounce`: the coordinator moves three times, and no member loses a partition."""
    name = f"rolled-{protocol}"
    make_topic(cluster, name, 6)
    values = produce(cluster, name, 6, 60)
    with ExitStack() as stack:
        readers = members(stack, cluster, name, 3, **PROTOCOLS[protocol])
        eventually(lambda: sizes(readers) == [2, 2, 2] and handled(readers) == values)
        before = [list(reader.events) for reader in readers]
        roll_brokers(cluster)
        values |= produce(cluster, name, 6, 60, "after")
        eventually(lambda: handled(readers) == values)
        assert [reader.events for reader in readers] == before
        counted_once(readers, values)


@pytest.mark.parametrize("how", ["all", "rolling"])
def test_members_that_are_restarted_read_each_record_once(cluster: DevCluster, protocol: str, how: str) -> None:
    """`test_consumer_bounce`: all at once, or one after the other; who leaves in order has committed what it read."""
    name = f"bounced-{protocol}-{how}"
    make_topic(cluster, name, 4)
    values = produce(cluster, name, 4, 40)
    with ExitStack() as stack:
        readers = members(stack, cluster, name, 2, **PROTOCOLS[protocol])
        gone: list[Reader] = []
        for turn in range(3):
            eventually(lambda: sizes(readers) == [2, 2] and handled([*readers, *gone]) == values)  # noqa: B023
            for group in ([0, 1],) if how == "all" else ([0], [1]):
                for number in group:
                    readers[number].close()
                    gone.append(readers[number])
                for number in group:
                    [readers[number]] = members(stack, cluster, name, 1, **PROTOCOLS[protocol])
                eventually(lambda: sizes(readers) == [2, 2])
                values |= produce(cluster, name, 4, 20, f"turn-{turn}-{group}-")
        eventually(lambda: handled([*readers, *gone]) == values)
        counted_once([*readers, *gone], values)


def test_a_static_members_new_id_outlives_its_coordinators(cluster: DevCluster, protocol: str) -> None:
    """`test_static_consumer_persisted_after_rejoin`: it was restarted, and then every broker; the coordinator knows
    its new member id, and it goes on without a rebalance."""
    name = f"persisted-{protocol}"
    make_topic(cluster, name, 4)
    values = produce(cluster, name, 4, 40)
    with ExitStack() as stack:
        readers = members(stack, cluster, name, 2, static=True, **PROTOCOLS[protocol])
        eventually(lambda: sizes(readers) == [2, 2] and handled(readers) == values)
        readers[0].close()
        old = readers[0]
        [readers[0]] = members(stack, cluster, name, 1, static=True, **PROTOCOLS[protocol])
        eventually(lambda: sizes(readers) == [2, 2])
        before = [list(reader.events) for reader in readers]
        roll_brokers(cluster)
        values |= produce(cluster, name, 4, 40, "after")
        eventually(lambda: handled([*readers, old]) == values)
        assert [reader.events for reader in readers] == before


def test_of_two_members_with_one_instance_id_one_stays(cluster: DevCluster, protocol: str) -> None:
    """`test_fencing_static_consumer`: in the classic protocol the newer one fences the older; in the consumer protocol
    the older one stays, and the newer one comes in once it is gone."""
    name = f"conflict-{protocol}"
    make_topic(cluster, name, 4)
    values = produce(cluster, name, 4, 40)
    with ExitStack() as stack:
        readers = members(stack, cluster, name, 2, static=True, **PROTOCOLS[protocol])
        eventually(lambda: sizes(readers) == [2, 2] and handled(readers) == values)
        theirs = set(readers[0].assigned)
        [rival] = members(stack, cluster, name, 1, static=True, **PROTOCOLS[protocol])
        if protocol == "consumer":
            values |= produce(cluster, name, 4, 40, "more")
            eventually(lambda: handled(readers) == values)
            assert (rival.events, readers[0].assigned) == ([], theirs)
            return
        eventually(lambda: rival.assigned == theirs)
        tags = (f"more-{number}-" for number in itertools.count())

        def reads_no_more() -> bool:
            """The older one hears of it at its next heartbeat."""
            fresh = produce(cluster, name, 4, 40, next(tags))
            eventually(lambda: fresh <= handled([readers[1], rival]))
            return not fresh & handled([readers[0]])

        eventually(reads_no_more)
