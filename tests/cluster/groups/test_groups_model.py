"""Any order of commands: invariants of groups, and what a failover finds, whatever clients do (hypothesis)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st
from shard_case import RANGE, STICKY, Driver

from strandline.cluster.groups.classic.group import GroupState
from strandline.cluster.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    Leaver,
    ListGroups,
    OffsetToCommit,
    SyncGroup,
)
from strandline.proto.kafka.keyed_record import Record

KINDS = (
    *("join", "rejoin", "static", "sync", "beat", "leave", "commit", "outside", "delete", "forget", "look"),
    *("time", "hold", "release", "lose", "refuse", "accept"),
)
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 3))


def step(driver: Driver, kind: str, who: int, how: int) -> None:
    """One thing that a client, or the world, does."""
    known = [*driver.shard.groups.get("g", _NOBODY).members, *driver.shard.groups.get("g", _NOBODY).pending, "x"]
    member_id = known[who % len(known)]
    group = driver.shard.groups.get("g")
    generation = 0 if group is None else group.generation - (how == 3)
    instance = group.members[member_id].instance_id if group is not None and member_id in group.members else None
    protocols = ((RANGE,), (STICKY, RANGE), (("range", b"\xff" * 5),), (RANGE,))[how]
    join = JoinGroup("g", "", None, "c", "/h", 6_000, 8_000, "consumer", protocols, how != 1, how != 2)
    if kind == "join":
        driver.ask(join)
    elif kind == "rejoin":
        driver.ask(join._replace(member_id=member_id, instance_id=instance))
    elif kind == "static":
        driver.ask(join._replace(instance_id=f"i{who % 2}"))
    elif kind == "sync":
        given = tuple((one, b"for " + one.encode()) for one in known)
        driver.ask(SyncGroup("g", generation, member_id, instance, None, None, given))
    elif kind == "beat":
        driver.ask(Heartbeat("g", generation, member_id, instance))
    elif kind == "leave":
        driver.ask(LeaveGroup("g", (Leaver(member_id, instance), Leaver("", f"i{how}"))))
    elif kind == "commit":
        driver.ask(CommitOffsets("g", generation, member_id, instance, (OffsetToCommit("t", how, who, 0, ""),)))
    elif kind == "outside":
        driver.ask(CommitOffsets("g", -1, "", None, (OffsetToCommit("t", how, who, 0, ""),)))
    elif kind == "time":
        driver.pass_ms((100, 3_000, 9_000, 700_000)[how])
    elif kind in ("hold", "release", "lose", "refuse", "accept"):
        driver.change_writes(kind)
    elif kind == "delete":
        driver.ask(DeleteGroup("g"))
    elif kind == "forget":
        driver.ask(DeleteOffsets("g", (("t", how),)))
    else:
        for command in (DescribeGroup("g"), ListGroups(("Empty",)), FetchOffsets("g", (("t", (-5, 2**31 - 1)),))):
            driver.ask(command)


class _Nobody:
    members: dict[str, None] = {}  # noqa: RUF012
    pending: dict[str, None] = {}  # noqa: RUF012


_NOBODY = _Nobody()


def check(driver: Driver) -> None:
    for group in driver.shard.groups.values():
        members = group.members
        assert (group.leader in members) if members else group.leader is None
        assert group.joined == sum(member.join_to is not None for member in members.values())
        assert {name: one for one, m in members.items() if (name := m.instance_id) is not None} == group.instances
        assert not set(group.pending) & set(members)
        assert set(group.pending_sync) <= set(members)
        if group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE):
            assert not group.pending_sync
        if group.state is GroupState.EMPTY:
            assert not members
        if group.state is GroupState.STABLE:
            assert members
            assert not any(member.waits for member in members.values())
    assert len(driver.shard._context.timers) <= 3 + sum(2 + group.size for group in driver.shard.groups.values())


def compact(log: Sequence[Record]) -> list[Record]:
    """The last record of each key, as loading takes them, and as a cleaner leaves them."""
    last = {record.key: number for number, record in enumerate(log)}
    return [record for number, record in enumerate(log) if last[record.key] == number]


def described(driver: Driver) -> list[tuple[str, str, int, list[str]]]:
    groups = sorted(driver.shard.groups.values(), key=lambda group: group.group_id)
    return [(group.group_id, group.state.value, group.generation, list(group.members)) for group in groups]


@given(st.lists(STEPS, max_size=40))
@example([("outside", 0, 0), ("forget", 0, 0)])
@settings(max_examples=120, deadline=None)
def test_whatever_clients_do(steps: Sequence[tuple[str, int, int]]) -> None:
    """No step breaks an invariant, nobody is answered twice (the driver says so), nobody waits for ever, and a new
    coordinator has the same offsets."""
    driver = Driver()
    for kind, who, how in steps:
        step(driver, kind, who, how)
        check(driver)
    driver.refuse, driver.hold = None, False
    driver.commit_held()
    other = driver.failover()
    assert other.offsets() == driver.offsets()
    compacted = Driver(driver.config, compact(driver.log), driver.now_ms)
    assert compacted.offsets() == other.offsets()
    assert described(compacted) == described(other)
    driver.pass_ms(700_000)
    check(driver)
    assert len(driver.answers) == driver.asked, "every question has its answer"
    assert all(group.is_empty for group in driver.shard.groups.values()), "silent members are gone"
    check(driver.failover())
