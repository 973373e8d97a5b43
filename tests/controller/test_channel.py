"""How a broker asks the active controller."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

import pytest

from strandline.controller import api
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.operations import CREATE_TOPICS, DELETE_TOPICS, ELECT_LEADERS
from strandline.controller.quorum.api import LeaderAndEpoch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.ports import RpcTimeout, RpcUnavailable
from tests.controller.sim_cluster import Node, SimCluster


class Silent:
    """A clock, and controllers of which none answers; the second one leads from the third attempt on."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.asked: list[tuple[int, float]] = []
        self.refuses = False

    def monotonic_ms(self) -> float:
        return self.now_ms

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        self.asked.append((endpoint.port, timeout_ms))
        if self.refuses:
            self.now_ms += 1_000
            raise RpcUnavailable("nobody listens")
        self.now_ms += timeout_ms
        raise RpcTimeout("no answer")

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        return LeaderAndEpoch(NodeId(1 if len(self.asked) < 3 else 2), 1)

    def endpoint_of(self, node: int) -> Endpoint:
        return Endpoint("node", node)


class Leaderless(Silent):
    """No voter that could be reached."""

    unreached: ClassVar = {NodeId(2): "two:19092: [Errno 111] Connect call failed ('::1', 19092, 0, 0)"}
    leader_and_epoch = LeaderAndEpoch(None, 1)

    def monotonic_ms(self) -> float:
        self.now_ms += 10_000
        return self.now_ms


def ask(world: Any) -> KafkaError:
    channel = ControllerChannel(world, ImagePublisher("c"), world, world, random.Random(1))
    with pytest.raises(KafkaError) as told:
        asyncio.run(channel.ask(ELECT_LEADERS, api.ElectLeadersRequest(api.ElectionKind.PREFERRED, ()), 30_000))
    assert told.value.code is ErrorCode.REQUEST_TIMED_OUT
    return told.value


def test_a_controller_that_is_slow_is_given_more_time_at_each_attempt() -> None:
    """Asked anew every two seconds, it would do the same work fifteen times and never be done; another one starts
    with the short attempt, which finds a leader that leads no more."""
    world = Silent()
    assert "no answer" in str(ask(world))
    assert world.asked == [(1, 2_000), (1, 4_000), (1, 8_000), (2, 2_000), (2, 4_000), (2, 8_000), (2, 2_000)]


def test_who_finds_no_controller_says_which_could_not_be_reached() -> None:
    """A name that has an address of the other family here than where it listens: the node ended after a minute with
    nothing that hinted at it."""
    sentence = str(ask(Leaderless()))
    assert "controller 2 at two:19092: [Errno 111] Connect call failed ('::1', 19092, 0, 0)" in sentence
    assert "IPv4 or IPv6" in sentence
    assert "controller.quorum.voters" in sentence


def test_a_controller_that_refuses_is_asked_with_the_short_attempt() -> None:
    world = Silent()
    world.refuses = True
    ask(world)
    assert {timeout_ms for _, timeout_ms in world.asked[:-2]} == {2_000}


@pytest.mark.parametrize("seed", range(5))
def test_a_broker_knows_what_was_changed_through_it(seed: int) -> None:
    """Whoever has made a topic, asks the same broker for it and is told that there is none does not trust either."""

    async def scenario(cluster: SimCluster) -> None:
        async def make(node: Node) -> bool:
            await node.channel.ask(CREATE_TOPICS, api.CreateTopicsRequest((api.CreatableTopic("orders"),)))
            return "orders" in node.publisher.image.topics

        async def delete(node: Node) -> bool:
            await node.channel.ask(DELETE_TOPICS, api.DeleteTopicsRequest((api.TopicRef("orders"),)))
            return "orders" not in node.publisher.image.topics

        for number in list(cluster.nodes):
            assert await cluster.on(number, make)
            assert await cluster.on(number, delete)

    SimCluster(seed).play(scenario)


def test_a_broker_that_hears_of_no_change_answers_all_the_same() -> None:
    publisher = ImagePublisher("c")
    assert not asyncio.run(publisher.reached(publisher.image.offset + 1, 1))
