"""Any order of heartbeats, lost answers, failovers and deadlines: no partition has two readers, nothing that a
member was told is taken back, and every group settles (hypothesis; KIP-848, "Reconciliation")."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_protocol_case import ConsumerMember, described, settle
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_case import Driver

from strandline.cluster.groups.commands import LeaveGroup, Leaver
from strandline.cluster.groups.consumer_protocol.commands import ConsumerAnswer, TopicsChanged
from strandline.cluster.groups.consumer_protocol.group import AWAY, ConsumerGroup
from strandline.cluster.groups.consumer_protocol.reconcile import pairs
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.keyed_record import Record

KINDS = (
    *("beat", "beat", "beat", "lost", "join", "leave", "away", "fence", "subscribe", "grow", "hold", "stubborn"),
    *("time", "release", "lose", "refuse", "accept", "failover", "remove"),
)
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.integers(0, 3))
MOVING = st.tuples(
    st.sampled_from(("beat", "beat", "beat", "lost", "stubborn", "mute", "grow", "leave")),
    st.integers(0, 2),
    st.integers(1, 3),
)
SESSION_MS = 45_000


class Clients:
    """Five of them, the last two with one instance id.

    Attributes:
        heard_ms: when each sent its last heartbeat that was answered: after a session without one it stops reading, as
            clients do.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.members = [
            ConsumerMember(driver, f"m{number}", **({"instance_id": "i"} if number > 2 else {})) for number in range(5)
        ]
        self.asked: dict[int, int] = {}

    def step(self, kind: str, who: int, how: int) -> None:
        """One thing that a client, or the world, does."""
        driver, member = self.driver, self.members[who]
        if kind == "mute":
            if member.epoch > 0:
                self._beat(who, owned=None)
        elif kind in ("beat", "lost", "join"):
            if kind == "join":
                member.epoch, member.owned = 0, {}
            self._beat(who, heard=kind != "lost")
        elif kind in ("leave", "away"):
            epoch = AWAY if kind == "away" and who > 2 else -1
            driver.ask(member.command(epoch=epoch))
            member.epoch, member.owned = 0, {}
        elif kind == "fence":
            driver.ask(member.command(epoch=member.epoch + how - 1))
        elif kind == "stubborn":
            member.stubborn = not member.stubborn
        elif kind == "subscribe":
            member.topics = (("t",), ("t", "u"), ("u",), ("gone",))[how]
            if member.epoch > 0:
                self._beat(who, topics=member.topics)
        elif kind == "grow":
            driver.topics = {"t": 6, "u": 3, **({"u": driver.topics.get("u", 0) + 1} if how else {"t": 7})}
            driver.ask(TopicsChanged())
        elif kind == "remove":
            driver.ask(LeaveGroup("g", (Leaver("", "i"), Leaver(f"m{how}"))))
        elif kind == "failover":
            driver.commit_held()
            self._use(driver.failover())
        else:
            self._world(kind, how)

    def _world(self, kind: str, how: int) -> None:
        driver = self.driver
        if kind == "time":
            driver.pass_ms((100, 20_000, 46_000, 61_000)[how])
        else:
            driver.change_writes(kind)

    def _use(self, driver: Driver) -> None:
        self.driver = driver
        for member in self.members:
            member.driver = driver

    def _beat(self, who: int, *, heard: bool = True, **values: object) -> None:
        member, driver = self.members[who], self.driver
        number = driver.ask(member.command(**values))
        answer = driver.answers.get(number)
        if isinstance(answer, KafkaError):
            fenced = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
            if answer.code in fenced:
                member.epoch, member.owned = 0, {}
        elif isinstance(answer, ConsumerAnswer) and heard:
            member.take(answer)

    def drop_the_dead(self) -> None:
        """A client whose session is over, or that was removed, reads nothing: it was told, or has a clock."""
        group = self.driver.shard.consumer_groups.get("g")
        for member in self.members:
            if group is None or member.member_id not in group.members:
                member.owned = {}


def check(clients: Clients) -> None:
    clients.drop_the_dead()
    group = clients.driver.shard.consumer_groups.get("g")
    if group is not None:
        check_group(group)
    owned = [one for member in clients.members for one in pairs(member.owned)]
    assert len(owned) == len(set(owned)), "two clients read one partition"


def check_group(group: ConsumerGroup) -> None:
    held = [one for current in group.current.values() for one in (*pairs(current.assigned), *pairs(current.revoking))]
    assert len(held) == len(set(held)) == len(group.owners)
    assert group.target_epoch <= group.epoch
    assert group.current.keys() == group.members.keys()
    assert group.targets.keys() <= group.members.keys()
    assert all(current.epoch <= group.target_epoch for current in group.current.values())
    statics = {info.instance_id: one for one, info in group.members.items() if info.instance_id is not None}
    assert statics == group.instances


def compact(log: Sequence[Record]) -> list[Record]:
    last = {record.key: number for number, record in enumerate(log)}
    return [record for number, record in enumerate(log) if last[record.key] == number]


@given(st.lists(STEPS, max_size=50))
@settings(max_examples=150, deadline=None)
def test_whatever_clients_do(steps: Sequence[tuple[str, int, int]]) -> None:
    clients = Clients(Driver(topics={"t": 6, "u": 3}))
    for kind, who, how in steps:
        clients.step(kind, who, how)
        check(clients)
    driver = clients.driver
    driver.refuse, driver.hold = None, False
    driver.commit_held()
    assert len(driver.answers) == driver.asked, "every question has its answer"
    for log in (driver.log, compact(driver.log)):
        other = Driver(driver.config, log, driver.now_ms, driver.topics)
        assert ("g" in other.shard.consumer_groups) == ("g" in driver.shard.consumer_groups)
        if "g" in driver.shard.consumer_groups:
            assert _sorted(described(other)) == _sorted(described(driver))
            check_group(other.shard.consumer_groups["g"])
    _settles(clients)


@given(st.lists(MOVING, min_size=10, max_size=40))
@settings(max_examples=150, deadline=None)
def test_partitions_move_from_hand_to_hand(steps: Sequence[tuple[str, int, int]]) -> None:
    """The same with three members who do little but reconcile; some give nothing back for a while, or say nothing of
    what they own."""
    clients = Clients(Driver(topics={"t": 6, "u": 3}))
    for kind, who, how in steps:
        clients.step(kind, who, how)
        check(clients)
    _settles(clients)


def _settles(clients: Clients) -> None:
    """Whatever came before: when three of them go on, all partitions are read, evenly, by one each."""
    driver = clients.driver
    driver.pass_ms(SESSION_MS + 61_000)
    driver.pass_ms(1_000)
    fresh = [ConsumerMember(driver, f"n{number}") for number in range(3)]
    settle(*fresh, rounds=8)
    loads = [len(pairs(member.owned)) for member in fresh]
    assert sum(loads) == driver.topics["t"]
    assert max(loads) - min(loads) <= 1
    assert described(driver).state == "Stable"
    check_group(driver.shard.consumer_groups["g"])


def _sorted(description: object) -> object:
    """Members in any order: a new coordinator finds them in another one."""
    found = description._asdict()  # type: ignore[attr-defined]
    return {**found, "members": sorted(found["members"])}
