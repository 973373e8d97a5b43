"""Any order of what clients of both protocols do, lost answers, failovers and deadlines: whichever way the group moves,
no partition has two readers, every question has its answer, and all partitions are read in the end (hypothesis)."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_protocol_case import ConsumerMember
from hypothesis import given, settings
from hypothesis import strategies as st
from migration_case import ClassicClient, Client, check, partitions_of, turn
from shard_case import Driver
from test_consumer_protocol_model import check_group, compact

from strandline.cluster.groups.consumer_protocol.commands import ConsumerAnswer
from strandline.cluster.groups.machine import COMMITTED, WriteOutcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

CLASSIC, CONSUMER = 4, 3
KINDS = (
    *("classic", "classic", "classic", "classic", "consumer", "consumer", "consumer"),
    *("forget", "lost", "leave", "stop"),
    *("time", "hold", "release", "lose", "refuse", "accept", "failover"),
)
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 6), st.integers(0, 3))


class Clients:
    """Eager and cooperative classic ones, and some of the consumer protocol; one instance id in each protocol."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.classic = [
            ClassicClient(driver, f"c{number}", cooperative=number % 2 == 1, instance_id="i" if number == 3 else None)
            for number in range(CLASSIC)
        ]
        self.consumer = [
            ConsumerMember(driver, f"m{number}", **({"instance_id": "j"} if number == 2 else {}))
            for number in range(CONSUMER)
        ]
        self.all: list[Client] = [*self.classic, *self.consumer]

    def step(self, kind: str, who: int, how: int) -> None:
        driver, classic, consumer = self.driver, self.classic[who % CLASSIC], self.consumer[who % CONSUMER]
        if kind == "classic":
            classic.step()
        elif kind == "forget":
            classic.forget()
        elif kind in ("consumer", "lost"):
            self._beat(consumer, heard=kind == "consumer")
        elif kind == "leave" and who < CLASSIC:
            classic.leave()
        elif kind == "leave":
            driver.ask(consumer.command(epoch=-2 if how and "instance_id" in consumer.values else -1))
            consumer.epoch, consumer.owned = 0, {}
        elif kind == "stop":
            classic.stop()
        elif kind == "failover":
            driver.commit_held()
            self._use(driver.failover())
        elif kind == "time":
            driver.pass_ms((100, 5_000, 46_000, 61_000)[how])
        elif kind == "hold":
            driver.hold = True
        elif kind in ("release", "lose"):
            driver.hold = False
            driver.commit_held(COMMITTED if kind == "release" else WriteOutcome(ErrorCode.REQUEST_TIMED_OUT, True))
        else:
            driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS if kind == "refuse" else None

    def _use(self, driver: Driver) -> None:
        self.driver = driver
        for client in self.all:
            client.driver = driver
        for client in self.classic:
            client.forget()

    def _beat(self, member: ConsumerMember, *, heard: bool) -> None:
        answer = self.driver.answers.get(self.driver.ask(member.command()))
        fenced = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
        if isinstance(answer, KafkaError) and answer.code in fenced:
            member.epoch, member.owned = 0, {}
        elif isinstance(answer, ConsumerAnswer) and heard:
            member.take(answer)

    def check(self) -> None:
        """Who is no member any more reads nothing: it was told, or has a clock."""
        consumer, classic = self.driver.shard.consumer_groups.get("g"), self.driver.shard.groups.get("g")
        known = {**({} if consumer is None else consumer.members), **({} if classic is None else classic.members)}
        assert consumer is None or classic is None
        if consumer is not None:
            check_group(consumer)
            assert set(consumer.classic) == {one for one, info in consumer.members.items() if info.classic is not None}
        for client in self.all:
            if client.member_id not in known:
                client.owned = () if isinstance(client, ClassicClient) else {}  # type: ignore[assignment]
        check(self.all)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=200, deadline=None)
def test_whatever_clients_of_both_protocols_do(steps: Sequence[tuple[str, int, int]]) -> None:
    clients = Clients(Driver())
    for kind, who, how in steps:
        clients.step(kind, who, how)
        clients.check()
    driver = clients.driver
    driver.refuse, driver.hold = None, False
    driver.commit_held()
    for log in (driver.log, compact(driver.log)):
        other = Driver(driver.config, log, driver.now_ms, driver.topics)
        assert {*other.shard.consumer_groups, *other.shard.groups} >= set(driver.shard.consumer_groups)
        if "g" in other.shard.consumer_groups:
            check_group(other.shard.consumer_groups["g"])
    _settles(clients)


def _settles(clients: Clients) -> None:
    """When some of both go on, all partitions are read; and when those of one protocol have gone, by the others."""
    driver = clients.driver
    driver.pass_ms(110_000)
    driver.pass_ms(110_000)
    assert len(driver.answers) == driver.asked, "every question has its answer"
    classic = [ClassicClient(driver, f"d{number}", cooperative=bool(number)) for number in range(2)]
    consumer = ConsumerMember(driver, "n")
    turn(*classic, rounds=12)
    turn(*classic, consumer, rounds=12)
    assert sorted(len(partitions_of(client)) for client in (*classic, consumer)) == [2, 2, 2]
    consumer.leave()
    turn(*classic, rounds=12)
    assert sorted(len(partitions_of(client)) for client in classic) == [3, 3]
    assert "g" in driver.shard.groups
    consumer.beat()
    for client in classic:
        client.leave()
    turn(consumer)
    assert len(partitions_of(consumer)) == 6
    check_group(driver.shard.consumer_groups["g"])
