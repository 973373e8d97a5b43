"""`strandline transaction`, and what it asks of the admin clients, against a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.client.conftest import eventually

from strandline.cli.main import main
from strandline.client import (
    Admin,
    ConfigError,
    KafkaError,
    ManyErrors,
    NewTopic,
    Producer,
    StrandlineError,
    TopicPartition,
    aio,
)
from strandline.cluster.node.dev import DevCluster
from strandline.proto.error_codes import ErrorCode

Run = Callable[..., Result]
LEVELS = {"metadata.version": 2, "transaction.version": 2}
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
