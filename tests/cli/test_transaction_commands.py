"""`strandline transaction`, and what it asks of the admin clients, against a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.acceptance.helpers import QUICK
from tests.client.conftest import eventually

from strandline.cli.main import main
from strandline.client import (
    Admin,
    ConfigError,
    Consumer,
    KafkaError,
    ManyErrors,
    NewTopic,
    Producer,
    ProducerFenced,
    StrandlineError,
    TopicPartition,
    aio,
)
from strandline.cluster.node.dev import DevCluster
from strandline.controller.metadata.features import NEWEST_LEVEL
from strandline.proto.error_codes import ErrorCode

Run = Callable[..., Result]
LEVELS = {"metadata.version": NEWEST_LEVEL, "transaction.version": 2}
SETTINGS = {"transaction.state.log.num.partitions": "4"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with DevCluster(nodes=1, settings=SETTINGS) as running:
        with Admin(running.bootstrap) as admin:
            admin.update_features(LEVELS)
            admin.create_topics([NewTopic("t", 2, 1)])
            eventually(lambda: admin.list_topics() == ["t"])
        yield running.bootstrap


@pytest.fixture
def run(bootstrap: str) -> Run:
    def call(*words: str, expect: int = 0) -> Result:
        told = CliRunner().invoke(main, ["transaction", *words], env={"STRANDLINE_BOOTSTRAP": bootstrap})
        assert told.exit_code == expect, (told.output, told.stderr, told.exception)
        return told

    return call


class Open:
    """A transaction that is open, with a record in each partition."""

    def __init__(self, bootstrap: str, name: str, partitions: tuple[int, ...] = (0, 1)) -> None:
        self.producer = Producer(bootstrap, transactional_id=name, linger_ms=0)
        self.producer.begin_transaction()
        sent = [self.producer.send("t", b"v", partition=number) for number in partitions]
        self.offsets = [one.result(30).offset for one in sent]


@pytest.fixture
def opened(bootstrap: str) -> Iterator[Callable[..., Open]]:
    made: list[Open] = []

    def make(name: str, *partitions: int) -> Open:
        made.append(Open(bootstrap, name, *((partitions,) if partitions else ())))
        return made[-1]

    yield make
    for one in made:
        with suppress(StrandlineError):
            one.producer.close(0)


def test_transactions_are_listed_and_described(bootstrap: str, run: Run, opened: Callable[..., Open]) -> None:
    """By both admin clients and the commands; filters; ids that there are not."""
    pay, settle = opened("pay"), opened("settle")
    settle.producer.commit_transaction()
    with Admin(bootstrap) as admin:
        eventually(lambda: {one.state for one in admin.list_transactions()} == {"Ongoing", "CompleteCommit"})
        first, second = admin.list_transactions()
        assert (first.transactional_id, first.state, first.coordinator) == ("pay", "Ongoing", 1)
        assert (second.transactional_id, second.state) == ("settle", "CompleteCommit")
        assert admin.list_transactions(states=["Ongoing"]) == [first]
        assert admin.list_transactions(producer_ids=[second.producer_id]) == [second]
        assert admin.list_transactions(pattern="s.*e") == [second]
        assert admin.list_transactions(states=["Ongoing"], longer_than_ms=0) == [first]
        assert admin.list_transactions(longer_than_ms=60_000) == []
        with pytest.raises(ConfigError, match="Odd"):
            admin.list_transactions(states=["Odd"])
        told = admin.describe_transactions(["pay", "settle"])
        assert told["pay"].partitions == (TopicPartition("t", 0), TopicPartition("t", 1))
        assert (told["pay"].state, told["pay"].timeout_ms, told["pay"].coordinator.node_id) == ("Ongoing", 60_000, 1)
        assert told["pay"].started_ms is not None
        assert (told["settle"].state, told["settle"].partitions) == ("CompleteCommit", ())
        with pytest.raises(ManyErrors) as many:
            admin.describe_transactions(["pay", "nobody"])
        assert many.value.results.keys() == {"pay"}
        with pytest.raises(KafkaError, match="there is no such transactional id") as missing:
            admin.describe_transactions(["nobody"])
        assert missing.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    async def same() -> Any:
        async with aio.Admin(bootstrap) as twin:
            return await twin.list_transactions(), await twin.describe_transactions(["pay", "settle"])

    assert asyncio.run(same()) == ([first, second], told)

    rows = [line.split() for line in run("list").stdout.splitlines() if line.strip()]
    assert ["pay", str(first.producer_id), "Ongoing", "1"] in rows
    listed = json.loads(run("list", "--state", "CompleteCommit", "-o", "json").stdout)
    assert listed == [second._asdict()]
    assert run("list", "--pattern", "x").stdout == "no transactional id is so\n"
    shown = run("describe", "pay", "settle").stdout
    assert (
        f"pay: Ongoing, producer {first.producer_id} of epoch 0, coordinator 1, timeout 60,000 ms; open since " in shown
    )
    assert (
        f"settle: CompleteCommit, producer {second.producer_id} of epoch 1, coordinator 1, timeout 60,000 ms\n" in shown
    )
    [document] = json.loads(run("describe", "pay", "-o", "json").stdout)
    assert (document["partitions"], document["started_ms"]) == ([["t", 0], ["t", 1]], told["pay"].started_ms)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in run("describe", "nobody", expect=1).stderr
    pay.producer.abort_transaction()


def test_an_open_transaction_is_aborted_by_its_id(bootstrap: str, run: Run, opened: Callable[..., Open]) -> None:
    """By its coordinator, in every partition, and its producer is fenced; what is decided or over is left alone."""
    one = opened("refund")
    where = ("--topic", "t", "--partition", "1", "--start-offset", str(one.offsets[1]))
    assert run("find-hanging", "t", "--longer-than", "0").stdout == "no transaction hangs\n"
    refused = run("abort", *where, "--yes", expect=1).stderr
    assert "does not hang: abort it by its id: strandline transaction abort refund" in refused
    assert "say transactional ids, or all of" in run("abort", "refund", "--topic", "t", expect=2).stderr
    assert "say transactional ids, or all of" in run("abort", "--topic", "t", expect=2).stderr
    assert run("abort", "refund", "--dry-run").stdout == "would abort the transaction of refund in t-0, t-1\n"
    assert "nobody is there to ask; say --yes" in run("abort", "refund", expect=2).stderr
    with Admin(bootstrap) as admin:
        assert admin.describe_transactions(["refund"])["refund"].state == "Ongoing"
        aborted = json.loads(run("abort", "refund", "--yes", "-o", "json").stdout)
        assert (aborted["dry_run"], aborted["aborted"][0]["partitions"]) == (False, [["t", 0], ["t", 1]])
        found = admin.describe_producers([("t", 0), ("t", 1)])
        whose = aborted["aborted"][0]["producer_id"]
        ended = [each for known in found.values() for each in known if each.producer_id == whose]
        assert [(each.transaction_start_offset, each.coordinator_epoch is None) for each in ended] == [
            (None, False)
        ] * 2
        assert all(each.last_timestamp_ms > 0 for each in ended), "a marker of a new epoch counts too"
        with pytest.raises(ProducerFenced):
            one.producer.commit_transaction()
        assert "it has no open transaction" in run("abort", "refund", "--yes", expect=1).stderr
        again = admin.fence_producers(["refund"])["refund"]
        assert (again.producer_id, again.producer_epoch) > (whose, 0)


def doctor(bootstrap: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(CliRunner().invoke(main, ["doctor", "-b", bootstrap, "-o", "json"]).stdout)
    return found


def test_a_hanging_transaction_is_found_and_aborted(
    run: Run, opened: Callable[..., Open], bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator has lost all that it knew; readers of committed records go on behind it."""
    one = opened("lost", 0)
    [start] = one.offsets
    with Admin(bootstrap) as admin:
        admin.delete_topics(["__transaction_state"])
        eventually(lambda: "__transaction_state" not in admin.list_topics(include_internal=True))
        assert run("find-hanging").stdout == "no transaction hangs\n", "its producer wrote a moment ago"
        assert not [one for one in doctor(bootstrap) if "transaction" in one["setting"]]
        with monkeypatch.context() as impatient:
            impatient.setattr("strandline.cli.transactions.LATE_MS", 0)
            [told] = [one for one in doctor(bootstrap) if "transaction" in one["setting"]]
        assert told["where"] == "t-0"
        assert f"is open from offset {start} on" in told["setting"]
        assert told["remedy"] == f"strandline transaction abort --topic t --partition 0 --start-offset {start}"
        shown = run("find-hanging", "--longer-than", "0").stdout
        assert f"strandline transaction abort --topic t --partition 0 --start-offset {start}\n" in shown
        [found] = json.loads(run("find-hanging", "t", "--longer-than", "0", "-o", "json").stdout)
        assert (found["topic"], found["partition"], found["transaction_start_offset"]) == ("t", 0, start)
        where = ("--topic", "t", "--partition", "0", "--start-offset")
        wrong = run("abort", *where, str(start + 1), "--yes", expect=1).stderr
        assert f"no open transaction begins at {start + 1}; those that are open begin at: {start}" in wrong
        whose = f"producer {found['producer_id']} of epoch {found['producer_epoch']}"
        words = f"the transaction of {whose} in t-0\n"
        assert run("abort", *where, str(start), "--dry-run").stdout == f"would abort {words}"
        stale = {"producer_id": found["producer_id"], "producer_epoch": found["producer_epoch"] - 1}
        with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
            admin.abort_transaction(("t", 0), **stale)
        with Consumer(bootstrap, isolation_level="read_committed") as consumer:
            assert consumer.end_offsets([("t", 0)]) == {TopicPartition("t", 0): start}
            assert run("abort", *where, str(start), "--yes").stdout == f"aborted {words}"
            assert consumer.end_offsets([("t", 0)]) == {TopicPartition("t", 0): start + 2}
    assert run("find-hanging", "--longer-than", "0").stdout == "no transaction hangs\n"


def test_nothing_hangs_for_all_that_is_known_while_a_coordinator_is_gone() -> None:
    """Its transactions may be its own to end, committed even: they are not called hanging, and not aborted here."""
    one_copy = {f"transaction.state.log.{name}": "1" for name in ("replication.factor", "min.isr")}
    with DevCluster(nodes=2, controllers=1, settings=QUICK | SETTINGS | one_copy) as running:
        bootstrap = running.client(1)

        def run(*words: str) -> str:
            words = ("transaction", *words, "--bootstrap", bootstrap)
            return CliRunner().invoke(main, words, env={}).stderr

        with Admin(bootstrap) as admin:
            admin.update_features(LEVELS)
            admin.create_topics([NewTopic("t", replica_assignment={0: [1]})])
            made = [Open(bootstrap, f"of-{number}", (0,)) for number in range(8)]
            coordinators = {one.coordinator for one in admin.list_transactions()}
            assert coordinators == {1, 2}
            assert run("find-hanging", "t", "--longer-than", "0") == ""
            running.kill(2)
            where = ("--topic", "t", "--partition", "0", "--start-offset", str(made[0].offsets[0]))
            words = "has no leader: whether its coordinator will end a transaction is not known"
            eventually(lambda: words in run("find-hanging", "t", "--longer-than", "0"))
            assert words in run("abort", *where, "--yes")
            [known] = admin.describe_producers([("t", 0)]).values()
            assert sum(one.transaction_start_offset is not None for one in known) == 8
        for one in made:
            with suppress(StrandlineError):
                one.producer.close(0)
