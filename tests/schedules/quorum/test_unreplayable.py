"""A record that some node cannot replay takes down no majority (rule A16): it is not acknowledged, or one node
stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from strandline.controller.metadata.records import ConfigRecord, RemoveTopicRecord
from strandline.controller.metadata.table import encode_records
from strandline.controller.quorum.api import CommittedBatch
from strandline.proto.errors import FatalError
from tests.controller.sim_cluster import Node, SimCluster
from tests.schedules.helpers import schedule
from tests.schedules.quorum.test_one_message import NEW

GARBAGE = {
    "a removed topic that was never there": encode_records([RemoveTopicRecord(NEW)]),
    "a record of a type nobody knows": [b"\x63\x01"],
    "a record cut short": [b""],
    "the good with the bad": [*encode_records([ConfigRecord(2, "a", "retention.ms", "1")]), b"\x63\x01"],
}


def play(scenario: Callable[[SimCluster, Node], Awaitable[None]]) -> None:
    cluster = SimCluster(1)

    async def whole(cluster: SimCluster) -> None:
        await cluster.create("a", [[1, 2, 3]])
        active, _ = cluster.active_and_other()
        await scenario(cluster, active)

    cluster.play(whole)


@schedule(61, rule="A16: replay before the append, on followers too", mutant="followers-append-what-they-cannot-replay")
@pytest.mark.parametrize("what", GARBAGE)
def test_61_a_leader_appends_what_nobody_can_replay(what: str) -> None:
    """A leader with a bug of its own appends it nevertheless. The others do not acknowledge it: they elect another
    leader, the record is truncated, and no node falls."""

    async def scenario(cluster: SimCluster, active: Node) -> None:
        epoch = active.quorum.leader_and_epoch.epoch
        high_watermark = active.quorum.high_watermark
        await append(cluster, active, GARBAGE[what])
        await cluster.until(lambda: all(node.quorum.leader_and_epoch.epoch > epoch for node in cluster.nodes.values()))
        await cluster.until(cluster.healthy)
        assert not active.controller.active
        await cluster.create("last", [[1, 2, 3]])
        assert active.quorum.high_watermark > high_watermark
        await cluster.restart_all()
        for node in cluster.nodes.values():
            assert node.publisher.image.topics.keys() == {"a", "last"}
            assert "retention.ms" not in node.publisher.image.configs.get((2, "a"), {})  # type: ignore[call-overload]

    play(scenario)


async def append(cluster: SimCluster, node: Node, records: list[bytes]) -> None:
    async def inside(node: Node) -> None:
        node.quorum.append(node.quorum.leader_and_epoch.epoch, records)

    await cluster.on(node.node, inside)


def is_new(batch: CommittedBatch) -> bool:
    return any(b"retention.ms" in record for record in batch.records)


def of_an_older_version(node: Node) -> None:
    """This node does not know a record that the others know."""
    rehearsal, publisher = node.quorum._rehearsal, node.publisher
    assert rehearsal is not None
    replay, handle = rehearsal.replay, publisher.handle_commit

    def refuses(then: Callable[[CommittedBatch], None]) -> Callable[[CommittedBatch], None]:
        def first(batch: CommittedBatch) -> None:
            if is_new(batch):
                raise FatalError("a record of a newer version: start the version that wrote it")
            then(batch)

        return first

    rehearsal.replay = refuses(replay)  # type: ignore[method-assign]
    publisher.handle_commit = refuses(handle)  # type: ignore[method-assign]


def test_61_one_node_that_cannot_replay_what_the_others_can_stops_alone() -> None:
    """The record is committed by the others. The node stops with a sentence; its log is as theirs, and started with
    the version that wrote the record, which the sentence advises, it goes on."""

    async def scenario(cluster: SimCluster, active: Node) -> None:
        old = next(node for node in cluster.nodes.values() if node is not active)
        of_an_older_version(old)
        epoch = active.quorum.leader_and_epoch.epoch
        await append(cluster, active, encode_records([ConfigRecord(2, "a", "retention.ms", "7")]))
        await cluster.until(lambda: bool(old.fatal))
        assert "start the version that wrote it" in str(old.fatal.pop())
        assert active.controller.active
        assert active.quorum.leader_and_epoch.epoch == epoch, "nobody else minds"
        cluster.kill(old.node)
        cluster.start(old.node)
        await cluster.until(lambda: old.node in cluster.nodes)
        await cluster.until(cluster.healthy)
        again = cluster.nodes[old.node]
        assert again.publisher.image.configs[2, "a"] == {"retention.ms": "7"}  # type: ignore[index]

    play(scenario)


def test_61_a_majority_of_an_older_version_commits_nothing_that_it_does_not_know() -> None:
    """Two of three cannot replay it: it is never committed, whoever leads, and all three live."""

    async def scenario(cluster: SimCluster, active: Node) -> None:
        for node in cluster.nodes.values():
            if node is not active:
                of_an_older_version(node)
        await append(cluster, active, encode_records([ConfigRecord(2, "a", "retention.ms", "7")]))
        await cluster.until(lambda: not active.controller.active)
        await cluster.until(cluster.healthy)
        await cluster.create("last", [[1, 2, 3]])
        for node in cluster.nodes.values():
            assert not node.fatal
            assert "retention.ms" not in node.publisher.image.configs.get((2, "a"), {})  # type: ignore[call-overload]

    play(scenario)
