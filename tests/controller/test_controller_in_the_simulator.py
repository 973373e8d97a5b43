"""The controller's shell on a real quorum, in the simulator: liveness, failovers, commits (rule A13, rows S82, S84)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api, broker_api, methods
from strandline.controller.broker_api import DescribeReplicasRequest, ReplicaOffsets
from strandline.controller.operations import (
    ALTER_PARTITION,
    CREATE_TOPICS,
    DESCRIBE_REPLICAS,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_BROKER_EPOCH
from strandline.proto.isr import AlterPartitionItem, IsrMember
from strandline.proto.ports import RpcRejected
from tests.controller.sim_cluster import SimCluster, endpoint

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_kill_of_a_combined_node_has_a_new_leader_well_under_a_second(seed: int) -> None:
    """kill -9 of the active controller, which leads the partition too: a new leader well under a second."""

    async def scenario(cluster: SimCluster) -> float:
        active, _ = cluster.active_and_other()
        victim = active.node
        others = [node for node in cluster.nodes if node != victim]
        await cluster.create("t", [[victim, *others]])
        cluster.kill(victim)
        took = await cluster.until(lambda: all(node.partition("t").leader in others for node in cluster.nodes.values()))
        for node in cluster.nodes.values():
            assert node.partition("t").isr == tuple(others)
        return took

    assert SimCluster(seed).play(scenario) < 900


@pytest.mark.parametrize("seed", SEEDS)
def test_kill_of_another_broker_is_fenced_in_a_fraction_of_a_second(seed: int) -> None:
    """Its stream breaks, its port refuses: no session timeout is waited for."""

    async def scenario(cluster: SimCluster) -> float:
        active, other = cluster.active_and_other()
        victim = other.node
        await cluster.create("t", [[victim, active.node]])
        cluster.kill(victim)
        return await cluster.until(
            lambda: all(node.partition("t").leader == active.node for node in cluster.nodes.values())
        )

    assert SimCluster(seed).play(scenario) < 400


@pytest.mark.parametrize("seed", SEEDS)
def test_failover_of_the_controller_alone_fences_nobody(seed: int) -> None:
    """The active controller resigns: the new one grants full sessions; no broker, no leader, no epoch changes."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        for _ in range(3):
            active, _ = cluster.active_and_other()
            before = active.publisher.image
            await cluster.on(active.node, resign)
            await asyncio.sleep(15)
            assert cluster.active is not None
            assert cluster.active is not active
            after = cluster.nodes[1].publisher.image
            assert after.topics == before.topics
            assert after.brokers == before.brokers

    async def resign(node: Any) -> None:
        node.quorum.resign()

    SimCluster(seed).play(scenario)


def test_fast_restart_is_registered_without_waiting_for_the_session() -> None:
    """The new process answers the probe of the old one's session: that one is dead, and the new one may register."""

    async def scenario(cluster: SimCluster) -> float:
        _, other = cluster.active_and_other()
        victim = other.node
        before = cluster.epochs()[victim]
        cluster.kill(victim)
        cluster.start(victim)
        took = await cluster.until(lambda: victim in cluster.nodes and not cluster.nodes[victim].session.fenced)
        assert cluster.epochs()[victim] > before
        return took

    assert SimCluster(3).play(scenario) < 1000


def test_stopped_process_is_fenced_by_its_silence_and_back_with_its_epoch() -> None:
    """Row S84: SIGSTOP for longer than silence is borne; SIGCONT: unfenced again, the broker epoch as before."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        victim = other.node
        epoch = cluster.epochs()[victim]
        await asyncio.sleep(0.1)
        cluster.world.pause(f"n{victim}")
        took = await cluster.until(lambda: active.publisher.image.brokers[victim].fenced)
        assert 1_500 < took < 2_600
        cluster.world.resume(f"n{victim}")
        await cluster.until(lambda: not active.publisher.image.brokers[victim].fenced, within_ms=5_000)
        assert cluster.epochs()[victim] == epoch

    SimCluster(1).play(scenario)


def test_all_killed_and_started_again_are_all_back() -> None:
    """SIGKILL of every node at once: the sessions of the dead end by probes, and the topic has its leader again."""

    async def scenario(cluster: SimCluster) -> float:
        await cluster.create("t", [[1, 2, 3]])
        for node in (1, 2, 3):
            cluster.kill(node)
        for node in (1, 2, 3):
            cluster.start(node)
        return await cluster.until(
            lambda: (
                len(cluster.nodes) == 3
                and all(not node.session.fenced and node.partition("t").has_leader for node in cluster.nodes.values())
            )
        )

    assert SimCluster(2).play(scenario) < 6_000


def test_rolling_restart_by_controlled_shutdown() -> None:
    """Row S18: each node is let go soon, though heartbeats are two seconds apart, its leaderships moved before it
    stops."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        for number in (1, 2, 3):
            began = cluster.world.now_ms
            assert await cluster.on(number, lambda node: node.session.controlled_shutdown(10_000))
            assert cluster.world.now_ms - began < 500
            witness = cluster.nodes[1 + number % 3]
            partitions = [info for _, info in witness.publisher.image.partitions()]
            assert all(info.leader != number and number not in info.isr for info in partitions)
            assert all(info.has_leader for info in partitions)
            cluster.kill(number)
            cluster.start(number)
            await cluster.until(cluster.healthy)
            for partition in range(3):
                await cluster.join_isr("t", partition)
        leaders = [info.leader for _, info in cluster.nodes[1].publisher.image.partitions()]
        assert leaders != [1, 2, 3]
        await cluster.until(
            lambda: [info.leader for _, info in cluster.nodes[1].publisher.image.partitions()] == [1, 2, 3]
        )

    SimCluster(4).play(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_creation_survives_the_death_of_the_controller(seed: int) -> None:
    """Row S82: kill -9 of the active controller while topics are created: each request succeeds, none is made twice."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        asker = other.node

        async def create(node: Any) -> list[Any]:
            calls = []
            for number in range(20):
                topic = api.CreatableTopic(f"t{number}", 2, 2)
                calls.append(asyncio.ensure_future(node.channel.ask(CREATE_TOPICS, api.CreateTopicsRequest((topic,)))))
                await asyncio.sleep(0.002)
            return [await call for call in calls]

        creating = asyncio.ensure_future(cluster.on(asker, create))
        await asyncio.sleep(0.02)
        cluster.kill(active.node)
        replies = await creating
        assert [reply.topics[0].error for reply in replies] == [ErrorCode.NONE] * 20
        # What is committed may be answered before the node that asked has heard so by its own fetch.
        await cluster.until(lambda: len(cluster.nodes[asker].publisher.image.topics) == 20, within_ms=100)
        image = cluster.nodes[asker].publisher.image
        for number, reply in enumerate(replies):
            assert image.topics[f"t{number}"].topic_id == reply.topics[0].topic_id

    SimCluster(seed).play(scenario)


def test_cut_off_controller_answers_nothing_and_nothing_half_made_remains() -> None:
    """Rule A13, row S45: no majority, no answer; when it hears of the other leader its working image is gone."""

    async def scenario(cluster: SimCluster) -> None:
        old, _ = cluster.active_and_other()
        cluster.world.isolate(f"n{old.node}")
        request = api.CreateTopicsRequest((api.CreatableTopic("lost", 1, 1),))
        asking = asyncio.ensure_future(
            cluster.on(old.node, lambda node: node.controller.carry_out(CREATE_TOPICS, request))
        )
        await asyncio.sleep(0.5)
        assert not asking.done()
        working = old.controller.working_image
        assert working is not None
        assert "lost" in working.topics
        assert "lost" not in old.publisher.image.topics
        with pytest.raises(KafkaError) as caught:
            await asking
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        await cluster.until(lambda: any(node.controller.active for node in cluster.nodes.values() if node is not old))
        cluster.world.heal()
        await cluster.create("kept", [[1, 2, 3]])
        assert all("lost" not in node.publisher.image.topics for node in cluster.nodes.values())

    SimCluster(6).play(scenario)


def test_many_commands_of_one_turn_share_one_append() -> None:
    """Coalescing: a hundred requests that arrive together become one batch of the metadata log."""

    async def scenario(cluster: SimCluster) -> None:
        active, _ = cluster.active_and_other()
        batches = []
        active.publisher.subscribe(lambda delta, image: batches.append(len(delta.created_topics)))

        async def many(node: Any) -> list[Any]:
            requests = [api.CreateTopicsRequest((api.CreatableTopic(f"t{number}", 1, 1),)) for number in range(100)]
            return await asyncio.gather(*(node.controller.carry_out(CREATE_TOPICS, request) for request in requests))

        replies = await cluster.on(active.node, many)
        assert all(reply.topics[0].error is ErrorCode.NONE for reply in replies)
        assert max(batches) == 100

    SimCluster(7).play(scenario)


def test_offsets_reach_the_controller_and_its_successor() -> None:
    """Soft state: deltas to the one, all of it to a new one."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create("t", [[1, 2, 3]])
        topic_id = cluster.nodes[1].publisher.image.topics["t"].topic_id
        for number, node in cluster.nodes.items():
            node.offsets = [ReplicaOffsets(topic_id, 0, 5, 5 + number, 0)]

        async def reported(node: Any) -> dict[int, int]:
            reply = await node.channel.ask(DESCRIBE_REPLICAS, DescribeReplicasRequest())
            return {one.node_id: one.log_end_offset for one in reply.replicas}

        await asyncio.sleep(2.5)
        expected = {1: 6, 2: 7, 3: 8}
        assert await cluster.on(1, reported) == expected
        active, _ = cluster.active_and_other()

        async def resign(node: Any) -> None:
            node.quorum.resign()

        await cluster.on(active.node, resign)
        await asyncio.sleep(1.5)
        assert await cluster.on(1, reported) == expected

    SimCluster(8).play(scenario)


def test_broker_that_is_not_ready_stays_fenced() -> None:
    """It has registered and keeps its session; unfenced once it says so."""

    async def scenario(cluster: SimCluster) -> None:
        node = cluster.nodes[2]
        active, _ = cluster.active_and_other()
        node.ready = False
        node.session.wake()
        await cluster.until(lambda: active.publisher.image.brokers[2].fenced)
        await asyncio.sleep(10)
        assert active.publisher.image.brokers[2].fenced
        node.ready = True
        node.session.wake()
        assert await cluster.until(lambda: not active.publisher.image.brokers[2].fenced) < 100

    SimCluster(9).play(scenario)


def test_one_seed_one_trace() -> None:
    """Nothing in here asks the world for time or chance behind the simulator's back."""

    def trace() -> int:
        cluster = SimCluster(11)

        async def scenario(cluster: SimCluster) -> None:
            await cluster.create("t", [[1, 2, 3]])
            cluster.kill(1)
            await asyncio.sleep(3)

        cluster.play(scenario)
        return cluster.world.trace

    assert trace() == trace()


def test_unregistered_broker_stops_with_a_sentence() -> None:
    """Its next heartbeat is of a life that is on record no more."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        request = broker_api.UnregisterBrokerRequest(other.node)
        await cluster.on(active.node, lambda node: node.channel.ask(UNREGISTER_BROKER, request))
        await cluster.until(lambda: bool(other.fatal))
        assert "not registered any more" in str(other.fatal.pop())
        assert other.node not in active.publisher.image.brokers

    SimCluster(12).play(scenario)


def test_a_late_registration_of_an_earlier_life_takes_nobodys_place() -> None:
    """The request of a process that died comes, or comes again, when the next one has registered and is still fenced:
    it names another incarnation than is registered, and changes nothing (seed 5373)."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        victim = other.node
        earlier = cluster.nodes[victim].incarnation
        cluster.kill(victim)
        cluster.start(victim, ready=False)
        await cluster.until(lambda: cluster.registered(victim) not in (None, earlier))
        node = cluster.nodes[victim]
        late = replace(cluster.registration(victim, earlier), replaces=None)
        reply = await cluster.on(active.node, lambda one: one.channel.ask(REGISTER_BROKER, late))
        assert (reply.broker_epoch, reply.registered) == (NO_BROKER_EPOCH, node.incarnation)
        assert cluster.registered(victim) == node.incarnation
        node.ready = True
        node.session.wake()
        await cluster.until(lambda: not node.session.fenced)
        assert not node.fatal

    SimCluster(13).play(scenario)


def test_a_process_that_knows_less_than_the_controller_asks_again() -> None:
    """Its predecessor was registered and never learned of it: the reply names it, and the request is made anew."""

    async def scenario(cluster: SimCluster) -> None:
        _, other = cluster.active_and_other()
        victim = other.node
        unheard = cluster.nodes[victim].incarnation
        cluster.kill(victim)
        cluster.lives[victim] += [UUID(int=1), UUID(int=2)]  # two more that never reached a controller
        assert unheard in cluster.lives[victim]
        cluster.start(victim)
        await cluster.until(cluster.healthy)

    SimCluster(14).play(scenario)


def test_a_fenced_broker_that_is_unregistered_registers_once_more() -> None:
    """An operator took its id out while it started: it has served nothing yet, and need not stop."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()
        victim = other.node
        cluster.kill(victim)
        cluster.start(victim, ready=False)
        await cluster.until(lambda: victim in cluster.nodes and cluster.nodes[victim].session.broker_epoch >= 0)
        node = cluster.nodes[victim]
        await cluster.until(lambda: cluster.registered(victim) == node.incarnation)
        epoch = node.session.broker_epoch
        request = broker_api.UnregisterBrokerRequest(victim)
        await cluster.on(active.node, lambda one: one.channel.ask(UNREGISTER_BROKER, request))
        await cluster.until(lambda: node.session.broker_epoch > epoch)
        node.ready = True
        node.session.wake()
        await cluster.until(lambda: not node.session.fenced)
        assert not node.fatal

    SimCluster(15).play(scenario)


def test_channel_gives_up_at_its_deadline() -> None:
    """Row S45: without a majority there is no controller: REQUEST_TIMED_OUT, in time, with the reason."""

    async def scenario(cluster: SimCluster) -> None:
        _, other = cluster.active_and_other()
        for node in list(cluster.nodes):
            if node != other.node:
                cluster.kill(node)
        request = api.CreateTopicsRequest((api.CreatableTopic("t", 1, 1),))
        began = cluster.world.now_ms
        with pytest.raises(KafkaError) as caught:
            await cluster.on(other.node, lambda node: node.channel.ask(CREATE_TOPICS, request, timeout_ms=3_000))
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert 2_900 < cluster.world.now_ms - began < 5_500
        assert "t" not in other.publisher.image.topics

    SimCluster(13).play(scenario)


def test_isr_proposal_goes_to_the_new_controller_when_the_old_one_is_cut_off() -> None:
    """Schedule 13 (KAFKA-14154): a proposal that reached a zombie controller is made again and judged by the real
    one."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create("t", [[1, 2, 3]])
        old, other = cluster.active_and_other()
        leader = other.partition("t").leader
        if leader == old.node:
            await cluster.on(old.node, lambda node: node.session.controlled_shutdown(5_000))
            leader = other.partition("t").leader
        proposer = cluster.nodes[leader]
        third = next(node for node in cluster.nodes.values() if node not in (old, proposer))
        cluster.world.partition(f"n{old.node}", f"n{third.node}")
        cluster.world.partition(f"n{old.node}", f"n{proposer.node}")
        info = proposer.partition("t")
        item = AlterPartitionItem(
            proposer.publisher.image.topics["t"].topic_id,
            0,
            info.leader_epoch,
            info.partition_epoch,
            (IsrMember(leader, -1),),
        )
        request = broker_api.AlterPartitionRequest(leader, proposer.session.broker_epoch, (item,))
        reply = await cluster.on(leader, lambda node: node.channel.ask(ALTER_PARTITION, request))
        assert reply.outcomes[0].error in (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION)
        assert cluster.active is not old
        cluster.world.heal()

    SimCluster(14).play(scenario)


def test_commands_fail_on_a_standby_at_once() -> None:
    """NOT_CONTROLLER, so that the channel looks elsewhere."""

    async def scenario(cluster: SimCluster) -> None:
        _, other = cluster.active_and_other()
        with pytest.raises(KafkaError) as caught:
            await cluster.on(
                other.node,
                lambda node: node.controller.carry_out(DESCRIBE_REPLICAS, DescribeReplicasRequest()),
            )
        assert caught.value.code is ErrorCode.NOT_CONTROLLER

    SimCluster(15).play(scenario)


def test_bytes_that_are_no_request_reject_the_call_and_harm_nobody() -> None:
    """A handler raises ProtocolError (the caller sees RpcRejected); a session that sends nonsense is ended."""

    async def scenario(cluster: SimCluster) -> None:
        active, other = cluster.active_and_other()

        async def nonsense(node: Any) -> None:
            target = endpoint(active.node)
            with pytest.raises(RpcRejected):
                await node.ports.rpc.call(target, REGISTER_BROKER.method.path, b"\xff\xff", timeout_ms=1000)
            stream = await node.ports.rpc.open_stream(target, methods.SESSION.path, timeout_ms=1000)
            await stream.write(b"\xff\xff")
            assert await stream.read() is None

        await cluster.on(other.node, nonsense)
        await asyncio.sleep(10)
        assert cluster.active is active
        assert all(not info.fenced for info in active.publisher.image.brokers.values())

    SimCluster(16).play(scenario)


def test_controller_that_slept_fences_nobody_on_waking() -> None:
    """SIGSTOP of a cluster of one for a minute: the broker is as alive as the controller that judges it."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create("t", [[1]])
        before = cluster.nodes[1].publisher.image
        cluster.world.pause("n1")
        await asyncio.sleep(60)
        cluster.world.resume("n1")
        await asyncio.sleep(12)
        assert cluster.active is not None
        assert cluster.nodes[1].publisher.image.brokers == before.brokers
        assert cluster.nodes[1].partition("t") == before.partition("t", 0)

    SimCluster(17, nodes=1).play(scenario)
