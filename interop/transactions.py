"""Transactions, as each client makes and reads them: rows of the table (features.py)."""

from __future__ import annotations

from typing import Any

from interop.driver import Driver
from interop.suite import OWN_CHECK, Record, World, b64, eventually, refused, same

KEYS = frozenset({22, 26})
"""InitProducerId, EndTxn."""

OFFSET_KEYS = KEYS | {28}
"""TxnOffsetCommit."""

_FENCED = (47, 90)
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED: which of them a client shows is its own affair."""


def _records(tag: str, partitions: int = 1) -> list[Record]:
    return [
        {"value": b64(f"{tag}-{number}-{partition}".encode()), "partition": partition}
        for partition in range(partitions)
        for number in range(3)
    ]


def transact(driver: Driver, identity: str, topic: str, records: list[Record], end: str, **offsets: Any) -> None:
    """One transaction of the producer that this process has under the transactional id. `end`: commit, abort, or none:
    it stays open. `offsets` of a group go with it: group, source, partition, offset."""
    driver.call("transact", id=identity, topic=topic, records=records, end=end, **offsets)


def _read(world: World, topic: str, count: int, *, committed: bool, partition: int = 0) -> list[str | None]:
    told = world.client.call(
        "fetch", topic=topic, partition=partition, offset=0, count=count, timeout_ms=15_000, committed=committed
    )
    return [each["value"] for each in told["records"]]


def committed_and_aborted(world: World) -> None:
    """A reader of committed data sees what was committed, in every partition, and nothing of what was aborted."""
    topic, identity = world.topic(partitions=2), world.name("id")
    for tag, end in (("first", "commit"), ("second", "abort"), ("third", "commit")):
        transact(world.client, identity, topic, _records(tag, 2), end)
    every = [each for tag in ("first", "second", "third") for each in _records(tag, 2)]
    for partition in (0, 1):
        mine = [each["value"] for each in every if each["partition"] == partition]
        same(_read(world, topic, 6, committed=True, partition=partition), [*mine[:3], *mine[6:]], "committed values")
        same(_read(world, topic, 9, committed=False, partition=partition), mine, "all values")


def fenced(world: World) -> None:
    """A producer that begins under an id ends the open transaction of the one before, and fences all of them."""
    topic, identity = world.topic(), world.name("id")
    transact(world.client, identity, topic, _records("first"), "commit")
    transact(world.another(), identity, topic, _records("left open"), "none")
    transact(world.another(), identity, topic, _records("third"), "commit")
    with refused(*_FENCED, OWN_CHECK):
        transact(world.client, identity, topic, _records("late"), "commit")
    expected = [each["value"] for tag in ("first", "third") for each in _records(tag)]
    same(_read(world, topic, 6, committed=True), expected, "committed values")


def offsets_in_transactions(world: World) -> None:
    """Offsets count when the transaction is committed, and not when it is aborted."""
    source, topic = world.topic(), world.topic()
    group, identity = world.name("group"), world.name("id")
    given = {"group": group, "source": source, "partition": 0}
    world.produce(source, _records("read"))
    transact(world.client, identity, topic, _records("aborted"), "abort", **given, offset=2)
    transact(world.client, identity, topic, _records("made"), "commit", **given, offset=3)
    eventually(lambda: _committed(world, group, source) == 3)
    transact(world.client, identity, topic, _records("aborted too"), "abort", **given, offset=1)
    eventually(lambda: _committed(world, group, source) == 3)
    same(_read(world, topic, 3, committed=True), [each["value"] for each in _records("made")], "committed values")


def _committed(world: World, group: str, topic: str) -> int:
    offsets = world.client.call("committed", group=group, topic=topic, partitions=[0])["offsets"]
    return int(offsets.get("0", -1))
