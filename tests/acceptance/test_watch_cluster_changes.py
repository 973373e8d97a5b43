"""Row S86, the half without groups: whoever watches hears of changes as they happen."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from strandline.client import Admin, NewTopic
from strandline.client.aio import Admin as AsyncAdmin
from strandline.client.errors import ClientTimeout
from strandline.client.metadata import PartitionView, TopicView
from strandline.client.types import NodeInfo
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from strandline.tools.watch import Change, ClusterView, changes_between, watch, watch_async
from tests.acceptance.helpers import QUICK, eventually

ONE, TWO = NodeInfo(1, "h", 1), NodeInfo(2, "h", 2)
WHERE = TopicPartition("t", 0)


def view(
    *brokers: NodeInfo, leader: int | None = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2), topic: str = "t"
) -> ClusterView:
    partition = PartitionView(leader, epoch, (1, 2), isr, ())
    return ClusterView({node.node_id: node for node in brokers}, {topic: TopicView(topic, None, False, {0: partition})})


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (view(ONE, TWO), view(ONE, TWO), []),
        (view(ONE, TWO), view(TWO), [Change("broker-left", 1, before=ONE)]),
        (view(TWO), view(ONE, TWO), [Change("broker-joined", 1, after=ONE)]),
        (view(ONE), view(ONE, topic="u"), [Change("topic-deleted", "t"), Change("topic-created", "u")]),
        (
            view(ONE),
            view(ONE, leader=2, epoch=1, isr=(2,)),
            [Change("leader-changed", WHERE, 1, 2), Change("isr-changed", WHERE, (1, 2), (2,))],
        ),
        (view(ONE, leader=2, epoch=3), view(ONE, leader=1, epoch=2), []),
    ],
    ids=["nothing", "broker left", "broker joined", "topics", "leader and isr", "an older view is no change"],
)
def test_what_two_looks_differ_in(before: ClusterView, after: ClusterView, changes: list[Change]) -> None:
    """Row S86: each change once; what a broker tells that has not heard of the newest epoch is no change."""
    assert list(changes_between(before, after)) == changes
    assert all(str(change) for change in changes)


def test_s86_a_watcher_hears_of_a_death_and_of_a_join_within_a_second() -> None:
    """Row S86: a broker dies: `watch` tells within 1 s of its fencing; it comes back, a topic is made: told
    too."""
    with DevCluster(settings=QUICK) as cluster, Admin(cluster.bootstrap) as watcher:
        heard: list[tuple[float, Change]] = []

        def listen() -> None:
            for change in watch(watcher):
                heard.append((time.monotonic(), change))
                if change.what == "topic-created" and change.subject == "last":
                    return

        def told(what: str, subject: int | str) -> float | None:
            return next((at for at, change in heard if (change.what, change.subject) == (what, subject)), None)

        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        with Admin(cluster.bootstrap) as admin:
            numbers = itertools.count()

            def hears() -> bool:
                """Of a topic that is made after its first look."""
                admin.create_topics([NewTopic(f"heard-{next(numbers)}", 1, 3)])
                return bool(heard)

            eventually(hears, pause_s=0.5)
            admin.create_topics([NewTopic("first", 1, 3)])
            eventually(lambda: told("topic-created", "first"))
            cluster.pause(2)
            survivors = ",".join(cluster.client(node) for node in (1, 3))
            with Admin(survivors, request_timeout_ms=1000) as other:

                def fenced() -> bool:
                    nodes = {node.node_id: node for node in other.describe_cluster().nodes}
                    return 2 not in nodes or nodes[2].fenced

                eventually(fenced, pause_s=0.02)
                fenced_at = time.monotonic()
                left_at = eventually(lambda: told("broker-left", 2))
            assert left_at - fenced_at < 5  # 1 s is the claim on a machine of one's own
            cluster.resume(2)
            eventually(lambda: told("broker-joined", 2))
            admin.create_topics([NewTopic("last", 1, 3)])
        listening.join(10)
        assert not listening.is_alive()


def test_a_watcher_gives_up_when_nobody_answers() -> None:
    """No broker at all: ClientTimeout after default.api.timeout.ms, not silence for ever."""

    async def scenario() -> None:
        async with AsyncAdmin("127.0.0.1:1", default_api_timeout_ms=500, request_timeout_ms=300) as admin:
            with pytest.raises(ClientTimeout, match="no broker answered"):
                await anext(watch_async(admin, interval_ms=50))

    asyncio.run(scenario())
