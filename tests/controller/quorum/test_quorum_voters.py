"""Quorums whose voters come and go (KIP-853, KIP-1186; rules A36 to A38), on real disks over a small network."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from quorum_cluster import Cluster, Member

from strandline.controller.quorum.addresses import Addresses
from strandline.controller.quorum.quorum import Quorum
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import CorruptLogError, KafkaError
from strandline.proto.ids import Endpoint, NodeId

HOME = Endpoint("node", 1)


def in_a_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test that awaits."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class Growing(Cluster):
    """A cluster that begins with one voter, at kraft.version 1; newcomers know its address alone."""

    def newcomer(self, node_id: int, **joins: Any) -> Member:
        member = self.members[node_id] = Member(self, node_id)
        member.voters = []
        member.joins = {"bootstrap": (HOME,)} | joins
        return member

    async def begin(self) -> Quorum:
        leader = await self.elect()
        assert leader.quorum is not None
        leader.quorum.raise_kraft_version(1)
        await self.until(lambda: leader.quorum is not None and leader.quorum.voters.dynamic)
        return leader.quorum

    async def caught_up(self, leader: Quorum, member: Member) -> None:
        """The leader has seen it at the end of its log, and it will have told where it listens."""
        ends = [leader.log_end_offset]
        await self.until(
            lambda: any(
                seen.node_id == member.id and seen.log_end_offset >= ends[0] for seen in leader.describe().observers
            )
        )

    async def remove(self, leader: Quorum, node_id: int) -> None:
        """Once the change before is committed."""
        await self.until(lambda: leader.high_watermark == leader.log_end_offset)
        await leader.remove_voter(NodeId(node_id), UUID(int=node_id))

    async def add(self, leader: Quorum, member: Member) -> None:
        await self.caught_up(leader, member)
        await leader.add_voter(member.id, member.directory_id)

    def named(self) -> Callable[[], list[int]]:
        return lambda: sorted({int(key.node_id) for one in self.running() for key in voters_of(one)})


def voters_of(member: Member) -> tuple[Any, ...]:
    assert member.quorum is not None
    return member.quorum.voters.keys


def ids(quorum: Quorum) -> list[int]:
    return [int(key.node_id) for key in quorum.voters]


@in_a_loop
async def test_one_grows_to_three_and_loses_its_first(tmp_path: Path) -> None:
    """Standalone to three; then the first one, which leads and is all that the newcomers were told of, is removed and
    gone for good, and one of them starts anew."""
    async with Growing(tmp_path, voters=1) as cluster:
        leader = await cluster.begin()
        for node_id in (2, 3):
            member = cluster.newcomer(node_id)
            await member.start()
            await cluster.add(leader, member)
        assert ids(leader) == [1, 2, 3]
        await leader.remove_voter(NodeId(1), UUID(int=1))
        await cluster.until(lambda: cluster.leader() not in (None, cluster.members[1]))
        cluster.members[1].kill()
        other = cluster.leader()
        assert other is not None
        assert other.quorum is not None
        behind = cluster.members[5 - other.id]
        behind.kill()
        await behind.start()
        other = await cluster.elect()
        assert other.quorum is not None
        other.quorum.append(other.quorum.leader_and_epoch.epoch, [b"after"])
        await cluster.until(lambda: all(one.listener.values[-1:] == [b"after"] for one in cluster.running()))


@in_a_loop
async def test_an_addition_that_need_not_be_committed_is_answered_before_anybody_fetched_it(tmp_path: Path) -> None:
    """KIP-1186 (AckWhenCommitted of AddRaftVoter 1): two vote at once, and the newcomer's next fetch commits it."""
    async with Growing(tmp_path, voters=1) as cluster:
        leader = await cluster.begin()
        member = cluster.newcomer(2)
        await member.start()
        await cluster.caught_up(leader, member)
        voters = await leader.add_voter(member.id, member.directory_id, uncommitted=True)
        assert [int(node_id) for node_id in voters] == [1, 2]
        assert leader.high_watermark < leader.log_end_offset
        await cluster.until(lambda: leader.high_watermark == leader.log_end_offset)
        assert ids(leader) == [1, 2]


async def told_of_a_follower(cluster: Growing) -> tuple[Any, Any]:
    """The member that leads, and a newcomer that was told of another one alone."""
    led = cluster.leader()
    assert led is not None
    other = next(member for member in cluster.members.values() if member is not led)
    newcomer = cluster.newcomer(4, bootstrap=(other.endpoint,))
    await newcomer.start()
    return led, newcomer


@in_a_loop
async def test_a_newcomer_that_knows_one_address_finds_a_leader_elsewhere(tmp_path: Path) -> None:
    """Rule A37: the one that it knows follows; its answer says who leads, and where."""
    async with Growing(tmp_path, voters=3) as cluster:
        leader = await cluster.begin()
        led, newcomer = await told_of_a_follower(cluster)
        await cluster.caught_up(leader, newcomer)
        assert newcomer.quorum is not None
        assert newcomer.quorum.endpoint_of(led.id) == led.endpoint


@in_a_loop
async def test_a_leader_that_was_missed_once_is_asked_where_it_is_said_to_be(tmp_path: Path) -> None:
    """Rule A37: who answers at a bootstrap address and does not lead is not taken for the leader again."""
    async with Growing(tmp_path, voters=3) as cluster:
        leader = await cluster.begin()
        led, newcomer = await told_of_a_follower(cluster)
        assert newcomer.quorum is not None
        newcomer.quorum._driver.addresses.failed(led.id)
        await cluster.caught_up(leader, newcomer)


@in_a_loop
async def test_a_newcomer_that_does_not_answer_gets_no_vote(tmp_path: Path) -> None:
    """Rule A38: the others would not reach it either."""

    async def reach(node_id: NodeId, endpoint: Endpoint) -> str:
        return f"nobody answers at {endpoint}"

    async with Growing(tmp_path, voters=1) as cluster:
        await cluster.members[1].stop()
        cluster.members[1].joins = {"reach": reach}
        await cluster.members[1].start()
        leader = await cluster.begin()
        newcomer = cluster.newcomer(2)
        await newcomer.start()
        await cluster.caught_up(leader, newcomer)
        with pytest.raises(KafkaError, match="nobody answers") as error:
            await leader.add_voter(NodeId(2), UUID(int=2))
        assert error.value.code is ErrorCode.INVALID_REQUEST
        assert ids(leader) == [1]


@in_a_loop
async def test_kafka_19850_auto_join_leaves_out_who_was_removed(tmp_path: Path) -> None:
    """KIP-1186: controllers that ask for it become voters, one after the other. KAFKA-19850: who was removed is not
    added again, nor after a restart."""
    async with Growing(tmp_path, voters=1) as cluster:
        leader = await cluster.begin()
        for node_id in (2, 3):
            await cluster.newcomer(node_id, auto_join=True).start()
        await cluster.until(lambda: ids(leader) == [1, 2, 3])
        await cluster.until(lambda: all(len(voters_of(one)) == 3 for one in cluster.running()))
        await cluster.remove(leader, 3)
        member = cluster.members[3]
        await cluster.until(lambda: len(voters_of(member)) == 2)
        await member.stop()
        await member.start()
        await cluster.caught_up(leader, member)
        newcomer = cluster.newcomer(4, auto_join=True)
        await newcomer.start()
        await cluster.until(lambda: ids(leader) == [1, 2, 4])


@in_a_loop
async def test_kafka_19021_a_broker_becomes_a_controller(tmp_path: Path) -> None:
    """KAFKA-19021: it has followed the log for long; restarted as a controller it asks for a vote, and gets it."""
    async with Growing(tmp_path, voters=1, observers=1) as cluster:
        leader = await cluster.begin()
        broker = cluster.members[101]
        await cluster.until(lambda: any(seen.node_id == broker.id for seen in leader.describe().observers))
        await cluster.until(lambda: leader.describe().observers[0].log_end_offset == leader.log_end_offset)
        await cluster.until(lambda: leader.high_watermark == leader.log_end_offset)
        with pytest.raises(KafkaError, match=r"process\.roles"):
            await leader.add_voter(broker.id, broker.directory_id, broker.endpoint)
        await broker.stop()
        broker.joins = {"auto_join": True, "bootstrap": (HOME,)}
        await broker.start()
        await cluster.until(lambda: ids(leader) == [1, 101])


@in_a_loop
async def test_auto_join_replaces_a_lost_disk_and_no_living_one(tmp_path: Path) -> None:
    """Rule A38: a node whose disk was lost asks under another directory id. It takes the place of the lost one, which
    is silent; a second process of a node that lives takes nothing from it."""
    async with Growing(tmp_path, voters=1) as cluster:
        leader = await cluster.begin()
        for node_id in (2, 3):
            await cluster.newcomer(node_id, auto_join=True).start()
        await cluster.until(lambda: ids(leader) == [1, 2, 3])
        twin = Member(cluster, 2)
        twin.voters, twin.joins = [], {"bootstrap": (HOME,), "auto_join": True}
        twin.data_dir, twin.directory_id, twin.endpoint = f"{tmp_path}/twin", UUID(int=22), Endpoint("twin", 2)
        await twin.start()
        await cluster.until(lambda: any(seen.directory_id == UUID(int=22) for seen in leader.describe().observers))
        newcomer = cluster.newcomer(4, auto_join=True)
        await newcomer.start()
        await cluster.until(lambda: ids(leader) == [1, 2, 3, 4])
        assert leader.voters.recorded(NodeId(2)) == (2, UUID(int=2))
        await twin.stop()

        member = cluster.members[3]
        member.kill()
        shutil.rmtree(member.data_dir)
        member.directory_id = UUID(int=33)
        await member.start()
        await cluster.until(lambda: leader.voters.recorded(NodeId(3)) == (3, UUID(int=33)), timeout_s=20)
        assert len(ids(leader)) == 4


@in_a_loop
async def test_the_first_of_three_that_loses_its_log_comes_back(tmp_path: Path) -> None:
    """Rules A14, A38: it was formatted as the only voter. As such it would refuse to start without its log; it knows
    that others voted beside it, and asks them."""
    async with Growing(tmp_path, voters=1) as cluster:
        leader = await cluster.begin()
        for node_id in (2, 3):
            await cluster.newcomer(node_id, auto_join=True).start()
        await cluster.until(lambda: ids(leader) == [1, 2, 3])
        first = cluster.members[1]
        await cluster.until(lambda: all(len(voters_of(one)) == 3 for one in cluster.running()))
        first.kill()
        shutil.rmtree(f"{first.data_dir}/__cluster_metadata-0")
        first.joins = {"bootstrap": (Endpoint("node", 2), Endpoint("node", 3)), "auto_join": True}
        await first.start()
        first.kill()  # and once more, before it has its vote again
        shutil.rmtree(f"{first.data_dir}/__cluster_metadata-0")
        await first.start()
        await cluster.until(lambda: len(cluster.named()()) == 3 and first.quorum is not None and votes(first))
        assert first.directory_id not in [key.directory_id for key in voters_of(first)]


def votes(member: Member) -> bool:
    assert member.quorum is not None
    return member.quorum.key in member.quorum.voters.keys


@in_a_loop
async def test_a_lone_voter_of_a_quorum_that_shrank_refuses_without_its_log(tmp_path: Path) -> None:
    """Rule A14: nobody else has the metadata."""
    async with Growing(tmp_path, voters=1) as cluster:
        leader = await cluster.begin()
        newcomer = cluster.newcomer(2)
        await newcomer.start()
        await cluster.add(leader, newcomer)
        await leader.remove_voter(NodeId(2), UUID(int=2))
        await newcomer.stop()
        first = cluster.members[1]
        first.kill()
        shutil.rmtree(f"{first.data_dir}/__cluster_metadata-0")
        with pytest.raises(CorruptLogError, match="only controller"):
            await first.start()
        first.quorum = None


@in_a_loop
async def test_what_the_log_says_outdoes_what_was_told(tmp_path: Path) -> None:
    """Rule A37: a peer told of a leader where it once was; the voter set that is read then says where it is now."""
    async with Growing(tmp_path, voters=1) as cluster:
        leader = await cluster.begin()
        newcomer = cluster.newcomer(2)
        await newcomer.start()
        await cluster.add(leader, newcomer)
        third = cluster.newcomer(3)
        await third.start()
        await cluster.caught_up(leader, third)
        assert leader._driver is not None
        addresses: Addresses = leader._driver.addresses
        addresses.hear(NodeId(2), Endpoint("elsewhere", 9))
        assert addresses.of(NodeId(2)) == Endpoint("elsewhere", 9)
        leader._driver.core.add_voter(third.id, third.directory_id, leader._driver.now_ms())  # before anybody speaks
        assert addresses.of(NodeId(2)) == newcomer.endpoint
        assert addresses.of(NodeId(9)) is None


@in_a_loop
async def test_voters_that_have_all_moved_find_each_other(tmp_path: Path) -> None:
    """Rule A37: none is where the log says. They look for each other at the bootstrap addresses, the first of which is
    that of a controller without a vote; who leads then records where they are."""
    async with Growing(tmp_path, voters=3) as cluster:
        leader = await cluster.begin()
        newcomer = cluster.newcomer(4, bootstrap=(leader_endpoint(cluster),))
        await newcomer.start()
        await cluster.caught_up(leader, newcomer)
        members = list(cluster.members.values())
        for member in members:
            member.kill()
        for member in members:
            member.endpoint = Endpoint("elsewhere", int(member.id))
        moved = tuple(member.endpoint for member in reversed(members))
        for member in members:
            member.joins = {"bootstrap": moved}
            await member.start()
        led = await cluster.elect()
        assert led.quorum is not None
        quorum = led.quorum
        wanted = {member.id: member.endpoint for member in members if member is not newcomer}
        await cluster.until(lambda: dict(quorum.voters.endpoints) == wanted)


def leader_endpoint(cluster: Cluster) -> Endpoint:
    """Where the leader listens."""
    leader = cluster.leader()
    assert leader is not None
    return leader.endpoint
