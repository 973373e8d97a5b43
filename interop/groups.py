"""The features of consumer groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from interop.driver import Driver
from interop.suite import Record, World, eventually, refused, same, values

JOIN_S = 25.0
STATIC_S = 12.0
"""A static member that comes back within its session (30 s and more) takes its place at once."""


def join(
    driver: Driver,
    group: str,
    topic: str,
    *,
    assignor: str = "range",
    instance: str | None = None,
    protocol: str = "classic",
) -> None:
    driver.call("join", group=group, topics=[topic], assignor=assignor, instance=instance, protocol=protocol)


def read(driver: Driver, count: int, timeout_s: float = JOIN_S) -> list[Record]:
    """At least `count` records, as a member of the group."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline:
        records += driver.call("poll", timeout_ms=500, count=count - len(records))["records"]
    assert len(records) >= count, f"{len(records)} of {count} records within {timeout_s:.0f} s"
    return records


def wait_shares(drivers: Sequence[Driver], sizes: list[int], timeout_s: float = JOIN_S) -> None:
    """Every member polls until the partitions are shared out like this, none to two members."""
    shares: list[list[tuple[str, int]]] = []

    def shared() -> bool:
        for driver in drivers:
            driver.begin("poll", timeout_ms=300, count=1)
        shares[:] = [[tuple(each) for each in driver.finish()["assigned"]] for driver in drivers]
        owned = [each for share in shares for each in share]
        return sorted(map(len, shares)) == sizes and len(set(owned)) == len(owned)

    try:
        eventually(shared, timeout_s)
    except AssertionError as error:
        raise AssertionError(f"assigned {shares} instead of {sizes}") from error


def resume(world: World) -> None:
    topic, group = world.topic(), world.name("group")
    world.produce(topic, values(10))
    join(world.client, group, topic)
    same([each["value"] for each in read(world.client, 10)], [each["value"] for each in values(10)], "values")
    world.client.call("commit")
    world.client.call("close")
    world.produce(topic, values(5, "more"))
    join(world.client, group, topic)
    found = [each["value"] for each in read(world.client, 5)]
    same(found, [each["value"] for each in values(5, "more")], "values after the restart")
    world.client.call("close")


def rebalance_with(assignor: str, protocol: str = "classic") -> Callable[[World], None]:
    def check(world: World) -> None:
        topic, group = world.topic(4), world.name("group")
        second = world.another()
        join(world.client, group, topic, assignor=assignor, protocol=protocol)
        wait_shares([world.client], [4])
        join(second, group, topic, assignor=assignor, protocol=protocol)
        wait_shares([world.client, second], [2, 2])
        world.client.call("close")
        wait_shares([second], [4])
        second.call("close")

    return check


def consumer_protocol(world: World) -> None:
    rebalance_with("", "consumer")(world)


def static_member(world: World) -> None:
    topic, group = world.topic(4), world.name("group")
    second = world.another()
    join(world.client, group, topic, instance="one")
    join(second, group, topic, instance="two")
    wait_shares([world.client, second], [2, 2])
    had = second.call("poll", timeout_ms=100, count=1)["assigned"]
    second.kill()
    again = world.another()
    join(again, group, topic, instance="two")
    wait_shares([world.client, again], [2, 2], STATIC_S)
    same(sorted(again.call("poll", timeout_ms=100, count=1)["assigned"]), sorted(had), "partitions after the restart")
    again.call("close")
    world.client.call("close")


def member_of(world: World, count: int = 5) -> tuple[str, str]:
    """A topic of so many records, and a group whose one member, the client, has read and committed them."""
    topic, group = world.topic(), world.name("group")
    world.produce(topic, values(count))
    join(world.client, group, topic)
    read(world.client, count)
    world.client.call("commit")
    return topic, group


def list_and_describe(world: World) -> None:
    _, group = member_of(world)
    assert group in world.client.call("list_groups")["groups"], "the group is not listed"
    told = world.client.call("describe_group", group=group)
    same((told["state"].upper(), told["members"]), ("STABLE", 1), "state and members")
    world.client.call("close")
    eventually(lambda: world.client.call("describe_group", group=group)["state"].upper() == "EMPTY")


def reset(world: World) -> None:
    topic, group = member_of(world)
    world.client.call("close")
    same(world.client.call("committed", group=group, topic=topic, partitions=[0])["offsets"], {"0": 5}, "committed")
    world.client.call("reset_group", group=group, topic=topic, offsets={"0": 2})
    same(world.client.call("committed", group=group, topic=topic, partitions=[0])["offsets"], {"0": 2}, "reset")
    join(world.client, group, topic)
    same([each["offset"] for each in read(world.client, 3)], [2, 3, 4], "offsets after the reset")
    world.client.call("close")


def delete(world: World) -> None:
    _, group = member_of(world)
    world.client.call("close")
    world.client.call("delete_group", group=group)
    assert group not in world.client.call("list_groups")["groups"], "the group is still listed"


def errors(world: World) -> None:
    with refused(69):
        world.client.call("delete_group", group=world.name("nobody"))
    _, group = member_of(world)
    with refused(68):
        world.client.call("delete_group", group=group)
    world.client.call("close")
