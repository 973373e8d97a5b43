"""Transactions, as each client makes and reads them: rows of the table (features.py)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from bench.clusters import admin_client
from bench.secured import librdkafka_settings

from interop.driver import ClientError, Driver
from interop.suite import OWN_CHECK, Record, World, b64, eventually, refused, same

if TYPE_CHECKING:
    from confluent_kafka import Producer

KEYS = frozenset({22, 26})
"""InitProducerId, EndTxn."""

OFFSET_KEYS = KEYS | {28}
"""TxnOffsetCommit."""

TOOL_KEYS = KEYS | {61, 65, 66}
"""DescribeProducers, DescribeTransactions, ListTransactions."""

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


def _begun(world: World, identity: str, topic: str, partitions: int) -> Producer:
    """A transaction of librdkafka with acknowledged records in each partition, which stays open."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": world.bootstrap, "log_level": 0, "transactional.id": identity}
    producer = Producer(settings | librdkafka_settings())
    producer.init_transactions(60)
    producer.begin_transaction()
    for each in _records("open", partitions):
        producer.produce(topic, each["value"], partition=each["partition"])
    assert producer.flush(30) == 0, "records of the transaction are not acknowledged"
    return producer


def _ask(world: World, command: str, *options: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = world.client.call("transactions", command=command, options=list(options))["rows"]
    return rows


def _open_at(world: World, topic: str, partition: int) -> list[str]:
    """Where transactions that are open in a partition begin, as each of its replicas tells."""
    where = ("--topic", topic, "--partition", str(partition))
    told = [_ask(world, "describe-producers", *where, "--broker-id", str(node)) for node in (1, 2, 3)]
    told.append(_ask(world, "describe-producers", *where))
    found = [[row["CurrentTransactionStartOffset"] for row in rows] for rows in told]
    assert all(each == found[-1] for each in found), f"replicas tell different things: {found}"
    return [start for start in found[-1] if start != "None"]


def shown_and_terminated(world: World) -> None:
    """An open transaction is listed, described and found in each of its partitions; none hangs; terminated by its id,
    it is aborted everywhere and its producer is fenced."""
    from confluent_kafka import KafkaException

    topic, identity = world.topic(2), world.name("id")
    producer = _begun(world, identity, topic, 2)
    whose = ("--transactional-id", identity)
    [listed] = [row for row in _ask(world, "list") if row["TransactionalId"] == identity]
    same((listed["TransactionState"], listed["Coordinator"] in {"1", "2", "3"}), ("Ongoing", True), "listed")
    same(_ask(world, "list", "--transactional-id-pattern", f"{identity}|nobody"), [listed], "listed by a pattern")
    old = _ask(world, "list", "--duration-filter", "3600000")
    assert identity not in [row["TransactionalId"] for row in old], "a new transaction is listed as an old one"
    [shown] = _ask(world, "describe", *whose)
    same((shown["ProducerId"], shown["CoordinatorId"]), (listed["ProducerId"], listed["Coordinator"]), "described")
    same(shown["TransactionState"], "Ongoing", "state")
    same(sorted(shown["TopicPartitions"].split(",")), [f"{topic}-0", f"{topic}-1"], "partitions")
    for partition in (0, 1):
        eventually(lambda partition=partition: _open_at(world, topic, partition) == ["0"])  # type: ignore[misc]
    with refused(105):
        _ask(world, "describe", "--transactional-id", world.name("nobody"))
    for scope in (("--topic", topic), ("--topic", topic, "--partition", "1"), ("--broker-id", "2")):
        same(_ask(world, "find-hanging", *scope, "--max-transaction-timeout", "0"), [], "hanging transactions")
    with refused(OWN_CHECK):
        _ask(world, "abort", "--topic", topic, "--partition", "0", "--start-offset", "1")
    _ask(world, "forceTerminateTransaction", "--transactionalId", identity)
    eventually(lambda: _ask(world, "describe", *whose)[0]["TransactionState"] in {"CompleteAbort", "Empty"})
    for partition in (0, 1):
        eventually(lambda partition=partition: _open_at(world, topic, partition) == [])  # type: ignore[misc]
        same(_stable_end(world, topic, partition), 4, "end for committed readers")
    try:
        producer.commit_transaction(30)
    except KafkaException as error:
        assert error.args[0].fatal(), f"the terminated producer was told {error}"
    else:
        raise AssertionError("a terminated producer committed")


def hanging_and_aborted(world: World) -> None:
    """A transaction whose coordinator has lost all that it knew holds committed readers back; it is found, and
    aborted where it begins; then they go on, and transactions work as before."""
    topic = world.topic()
    lost = _begun(world, world.name("id"), topic, 1)
    admin = admin_client(world.bootstrap)
    [deleted] = admin.delete_topics(["__transaction_state"]).values()
    deleted.result(30)
    where = ("--topic", topic, "--partition", "0")

    def hanging() -> list[tuple[str, str]]:
        with contextlib.suppress(ClientError):  # coordinators are being found again
            found = _ask(world, "find-hanging", *where, "--max-transaction-timeout", "0")
            return [(row["Topic"], row["StartOffset"]) for row in found]
        return []

    eventually(lambda: hanging() == [(topic, "0")], 60)
    same(_stable_end(world, topic, 0), 0, "end for committed readers")
    _ask(world, "abort", *where, "--start-offset", "0")
    eventually(lambda: _stable_end(world, topic, 0) == 4)
    same(hanging(), [], "hanging transactions")
    del lost
    again = _begun(world, world.name("id"), topic, 1)
    again.commit_transaction(60)
    eventually(lambda: _stable_end(world, topic, 0) == 8)


def _stable_end(world: World, topic: str, partition: int) -> int:
    """Where readers of committed data end."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    place = TopicPartition(topic, partition)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = admin_client(world.bootstrap)
    told = admin.list_offsets({place: latest}, isolation_level=IsolationLevel.READ_COMMITTED)
    end: int = told[place].result(30).offset
    return end
