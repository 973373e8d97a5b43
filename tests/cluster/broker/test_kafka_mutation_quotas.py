"""controller_mutation_rate over a real socket: topics above it are refused or waited for (rule A21, KIP-599)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run, versions
from kafka_node import KafkaNode, until
from kafka_wire import KafkaClient, connect
from quota_case import EVERY_CLIENT, set_quota, waits_ms

from strandline.cluster.broker.audit import Audit
from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.table import APIS
from strandline.controller import api as asked
from strandline.controller.machine import topics as machine_topics
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.quotas import QuotaEntity

ME = QuotaEntity("ANONYMOUS")
STRICT_SINCE = {row.api.title: row.strict_since for row in APIS.values() if row.strict_since is not None}
BURST = 11
"""Partitions at once, with a rate of one a second."""


def limited(node: KafkaNode, entity: QuotaEntity = ME) -> None:
    set_quota(node, entity, controller_mutation_rate=1)


def owed(node: KafkaNode) -> float:
    """How many partitions the client owes, after whole seconds that a slow machine may take."""
    quotas = node.broker.quotas
    assert quotas is not None
    share = quotas.mutation_limits.share("ANONYMOUS", "test")
    assert share is not None
    return quotas.mutations.wait_ms(share, quotas.clock.monotonic_ms()) / 1000


def muted(node: KafkaNode) -> int:
    quotas = node.broker.quotas
    return 0 if quotas is None else len(quotas.mutes)


def wanted(*counts: int, prefix: str = "t") -> list[dict[str, Any]]:
    """Topics t0, t1 and so on, of so many partitions."""
    return [
        {"name": f"{prefix}{number}", "num_partitions": count, "replication_factor": 1}
        for number, count in enumerate(counts)
    ]


async def create(client: KafkaClient, topics: list[dict[str, Any]], version: int = 7, **values: Any) -> Any:
    return await client.ask("create_topics", version, topics=topics, timeout=5000, **values)


def codes(answer: Any) -> list[int]:
    parts = getattr(answer, "topics", None) or getattr(answer, "responses", None) or answer.results
    return [int(one.error_code) for one in parts]


async def delete(client: KafkaClient, names: list[str], version: int = 6) -> Any:
    topics = [{"name": name} for name in names]
    return await client.ask("delete_topics", version, topics=topics, topic_names=names, timeout=5000)


async def add(client: KafkaClient, name: str, count: int, version: int = 3, **values: Any) -> Any:
    topics = [{"name": name, "count": count, "assignments": None}]
    return await client.ask("create_partitions", version, topics=topics, timeout=5000, **values)


def test_a_topic_above_the_quota_is_refused_and_is_not_made(tmp_path: Path) -> None:
    """The one that is larger than what is left is made; those behind it are told how long to wait."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        limited(node)
        first = await create(client, wanted(5, BURST + 10, 1, 1))
        assert codes(first) == [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert first.topics[2].error_message == "The throttling quota has been exceeded."
        assert 10_000 < waits_ms(first) <= 15_000
        assert sorted(node.controller.image.topics) == ["t0", "t1"]
        assert muted(node) == 1
        async with connect(node.listener.endpoint) as other:
            again = await create(other, wanted(1, prefix="u"))
            assert codes(again) == [89], "the share is the user's, on whatever connection"
        set_quota(node, ME, controller_mutation_rate=None)
        assert codes(await create(client, wanted(1, 1, prefix="v"))) == [0, 0]

    run(tmp_path, main)


def test_a_client_that_waited_is_served_and_others_never_wait(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        set_quota(node, EVERY_CLIENT, controller_mutation_rate=20)
        assert codes(await create(client, wanted(20 + 20))) == [0]
        refused = await create(client, wanted(1, prefix="u"))
        assert codes(refused) == [89]
        async with connect(node.listener.endpoint) as other:
            other.client_id = "modest"
            answer = await create(other, wanted(1, prefix="v"))
            assert (codes(answer), waits_ms(answer)) == ([0], 0)
        await asyncio.sleep(waits_ms(refused) / 1000)
        assert codes(await create(client, wanted(1, prefix="u"))) == [0]

    run(tmp_path, main, service=BrokerConfig(quota_windows=1))


@pytest.mark.parametrize("api", list(STRICT_SINCE))
def test_each_version_is_told_as_it_understands(tmp_path: Path, api: str) -> None:
    """The error since KIP-599. Before it all is done, and the connection waits."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        for version in versions(api):
            async with connect(node.listener.endpoint) as one:
                await each(node, one, version)
                set_quota(node, ME, controller_mutation_rate=None)
                node.controller.run(_all_gone(node))

    async def each(node: KafkaNode, client: KafkaClient, version: int) -> None:
        node.create_topic("old", 1)
        limited(node)
        assert codes(await create(client, wanted(BURST + 20))) == [0]
        if api == "CreateTopics":
            answer = await create(client, wanted(2, prefix="more"), version)
        elif api == "DeleteTopics":
            answer = await delete(client, ["old"], version)
        else:
            answer = await add(client, "old", 3, version)
        strict = version >= STRICT_SINCE[api]
        assert codes(answer) == [89 if strict else 0]
        topics = node.controller.image.topics
        made = {
            "CreateTopics": "more0" in topics,
            "DeleteTopics": "old" not in topics,
            "CreatePartitions": "old" in topics and len(topics["old"].partitions) == 3,
        }
        assert made[api] is not strict
        if hasattr(answer, "throttle_time"):
            assert 15_000 < waits_ms(answer) <= 22_000
        assert muted(node) == 1

    def _all_gone(node: KafkaNode) -> Any:
        refs = tuple(asked.TopicRef(name) for name in node.controller.image.topics)
        return machine_topics.delete_topics(node.controller.state, asked.DeleteTopicsRequest(refs))

    run(tmp_path, main)


def test_requests_of_an_older_version_on_their_way_do_not_slip_through(tmp_path: Path) -> None:
    """Nothing of the connection is taken while one is done, however long the controller takes."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        limited(node)
        gate = asyncio.Event()

        async def slowly() -> None:
            await gate.wait()

        node.controller.gate = slowly
        for number in range(5):
            client.send("create_topics", 4, topics=wanted(20, prefix=f"n{number}-"), timeout=5000, validate_only=False)
        await until(lambda: owed(node) > 0)
        gate.set()
        await until(lambda: muted(node) == 1)
        await asyncio.sleep(0.05)
        assert list(node.controller.image.topics) == ["n0-0"]

    run(tmp_path, main)


def test_what_is_not_done_costs_nothing(tmp_path: Path) -> None:
    """A rehearsal, a topic that is there already or is not there, a name that cannot be, more than one request may."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t0", 3)
        limited(node)
        for version in (4, 7):
            assert codes(await create(client, wanted(0, 500, prefix="u"), version, validate_only=True)) == [37, 0]
            await create(client, wanted(500), version)
            await create(client, [{**wanted(500)[0], "name": "a/b"}], version)
            await create(client, [{**wanted(500)[0], "name": "w", "replication_factor": 3}], version)
            await create(client, wanted(2**31 - 1, -7, 0, prefix="v"), version)
        for name in ("nobody", "t0"):
            assert codes(await add(client, name, 2)) != [0]
            assert codes(await add(client, name, 2**31 - 1)) != [0]
        assert codes(await add(client, "t0", 500, validate_only=True)) == [0]
        assert codes(await delete(client, ["nobody"])) == [3]
        assert owed(node) == 0
        assert muted(node) == 0
        exact = await create(client, wanted(BURST, 1, prefix="w"))
        assert codes(exact) == [0, 0], "nothing was missing of the burst"

    run(tmp_path, main)


def test_the_default_number_of_partitions_counts(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        limited(node)
        topics = [{"name": "t", "num_partitions": -1, "replication_factor": 1}]
        assert codes(await create(client, [*topics, *wanted(1, prefix="u")])) == [0, 89]
        assert len(node.controller.image.topics["t"].partitions) == 20

    run(tmp_path, main, static={"num.partitions": "20"})


def test_what_timed_out_is_paid_for(tmp_path: Path) -> None:
    """It may have been done: else a client with short timeouts has no quota."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        limited(node)
        errors = [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT]

        async def fails() -> None:
            raise KafkaError(errors.pop(0))

        node.controller.gate = fails
        assert codes(await create(client, wanted(30))) == [-1]
        assert owed(node) == 0
        assert codes(await create(client, wanted(30))) == [7]
        assert owed(node) > 10

    run(tmp_path, main)


def test_topics_that_are_made_by_their_first_use_count(tmp_path: Path) -> None:
    """Their client waits, in each version of Metadata; one that cannot be made costs nothing."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        limited(node)

        async def use(version: int, *names: str) -> Any:
            topics = [{"name": name, "topic_id": None} for name in names]
            return await client.ask("metadata", version, topics=topics, allow_auto_topic_creation=True)

        node.controller.gate = _no_replicas
        await use(9, "a")
        await until(lambda: owed(node) == 0)
        node.controller.gate = None
        set_quota(node, ME, controller_mutation_rate=None)  # nobody waits any more
        limited(node)
        assert waits_ms(await use(9, "b")) > 5_000
        assert muted(node) == 1
        await until(lambda: "b" in node.controller.image.topics)
        assert owed(node) > 5

    async def _no_replicas() -> None:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR)

    static = {"num.partitions": "20", "default.replication.factor": "1", "auto.create.topics.enable": "true"}
    run(tmp_path, main, static=static)


@pytest.mark.parametrize("version", [5, 7])
def test_the_audit_makes_nothing_free(tmp_path: Path, version: int) -> None:
    """A request that is watched for the audit pays as any other: an authorizer switches no quota off."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.listener.apis = Audit(None).intercept(node.listener.apis)
        limited(node)
        assert codes(await create(client, wanted(BURST + 4, prefix="a"), version)) == [0]
        if version >= STRICT_SINCE["CreateTopics"]:
            assert codes(await create(client, wanted(1), version)) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        else:
            assert muted(node)

    run(tmp_path, main)
