"""Quotas over a real socket: what is above a share waits, is told so, and takes nothing of the others (rule A21)."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from acl_requests import REQUESTS, Things
from kafka_case import run
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect, response_class
from quota_case import EVERY_CLIENT, EVERY_USER, fetched, produced, set_quota, waits_ms
from test_kafka_fetch import append, committed
from test_kafka_produce import batch, produce, stored

from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.table import APIS
from strandline.proto.kafka.apis import Api
from strandline.proto.quotas import QuotaEntity, QuotaKey

ME = QuotaEntity("ANONYMOUS")


def muted(node: KafkaNode) -> int:
    quotas = node.broker.quotas
    return 0 if quotas is None else len(quotas.mutes)


def test_without_a_quota_nothing_is_measured(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        assert waits_ms(await produced(client, 50_000)) == 0
        assert node.listener.quotas is None
        set_quota(node, EVERY_USER, producer_byte_rate=1e9)
        assert node.listener.quotas is not None
        assert waits_ms(await produced(client, 50_000)) == 0
        set_quota(node, EVERY_USER, producer_byte_rate=None)
        assert node.listener.quotas is None

    run(tmp_path, main)


def test_a_produce_above_the_quota_is_answered_at_once_and_mutes_its_connection(tmp_path: Path) -> None:
    """10 s of windows and 1,000 bytes a second: 20 kB are 10 s too many. The record is there; nothing more is read."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        set_quota(node, ME, producer_byte_rate=1000)
        answer = await produced(client, 20_000)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert 8_000 < waits_ms(answer) < 12_000
        assert len(stored(node, "t")) > 20_000
        assert muted(node) == 1
        asked = client.send("api_versions", 3, client_software_name="a", client_software_version="1")
        async with connect(node.listener.endpoint) as other:
            assert (await other.ask("api_versions", 0)).error_code == 0, "another connection goes on"
        waiting = asyncio.ensure_future(client.receive(asked))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        set_quota(node, ME, producer_byte_rate=None)  # no quota, no wait
        assert (await waiting).error_code == 0
        assert muted(node) == 0

    run(tmp_path, main)


def test_a_mute_ends_by_itself(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        set_quota(node, ME, producer_byte_rate=1_000_000)
        answer = await produced(client, 10_100_000)
        assert waits_ms(answer) > 0
        assert muted(node) == 1
        assert (await client.ask("api_versions", 0)).error_code == 0
        assert muted(node) == 0

    run(tmp_path, main)


@pytest.mark.parametrize("acks", [0, 1])
def test_requests_that_are_on_their_way_do_not_slip_through(tmp_path: Path, acks: int) -> None:
    """The first of them mutes: it counts when it has come, not when it is committed. With acks=0 too."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        set_quota(node, ME, producer_byte_rate=1000)
        for _ in range(30):
            produce(client, 9, "t", {0: batch(bytes(20_000))}, acks=acks)
        await until(lambda: muted(node) == 1)
        await until(lambda: len(stored(node, "t")) > 20_000)
        await asyncio.sleep(0.05)
        assert len(stored(node, "t")) < 2 * 20_000

    run(tmp_path, main)


async def filled(node: KafkaNode) -> None:
    """Topic t with 40 batches of a kilobyte."""
    node.create_topic("t")
    append(node, "t", 0, *[batch(bytes(950)) for _ in range(40)])
    await committed(node, "t", 0, 40)


def test_a_fetch_above_the_quota_is_answered_with_nothing(tmp_path: Path) -> None:
    """And what it takes at once is no more than the windows have room for; nothing is lost by it."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        await filled(node)
        set_quota(node, ME, consumer_byte_rate=1000)
        first = await fetched(client)
        assert waits_ms(first) == 0
        got = len(first.responses[0].partitions[0].records)
        assert 5_000 < got <= 10_000
        second = await fetched(client, 9)
        assert second.responses == ()
        assert second.error_code == 0
        assert waits_ms(second) > 0
        assert muted(node) == 1
        set_quota(node, ME, consumer_byte_rate=None)
        third = await fetched(client, 9)
        assert len(third.responses[0].partitions[0].records) > 20_000

    run(tmp_path, main)


def test_a_session_goes_on_after_a_fetch_above_the_quota(tmp_path: Path) -> None:
    """An incremental fetch that gets nothing gets all of it next; a session that would begin does not."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        await filled(node)
        opened = await fetched(client, 0, session_id=0, session_epoch=0)
        assert opened.session_id > 0
        quotas = {"consumer_byte_rate": 100.0}
        set_quota(node, ME, **quotas)
        rates = node.broker.quotas
        assert rates is not None
        fetches = rates.rates[QuotaKey.CONSUMER_BYTE_RATE]
        fetches.note("ANONYMOUS", "test", 2000, rates.clock.monotonic_ms())
        nothing = await fetched(client, 5, session_id=opened.session_id, session_epoch=1)
        assert (nothing.responses, nothing.session_id) == ((), opened.session_id)
        assert waits_ms(nothing) > 0
        async with connect(node.listener.endpoint) as other:
            begun = await fetched(other, 0, session_id=0, session_epoch=0)
            assert (begun.responses, begun.session_id) == ((), 0)
            assert node.fetch_sessions == 1
        set_quota(node, ME, consumer_byte_rate=None)
        more = await fetched(client, 5, session_id=opened.session_id, session_epoch=2)
        assert len(more.responses[0].partitions[0].records) > 20_000

    run(tmp_path, main)


def test_a_batch_that_is_larger_than_the_quota_can_be_read(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        append(node, "t", 0, batch(bytes(50_000)))
        await committed(node, "t", 0, 1)
        set_quota(node, ME, consumer_byte_rate=1000)
        answer = await fetched(client)
        assert len(answer.responses[0].partitions[0].records) > 50_000
        assert waits_ms(answer) > 30_000
        assert muted(node) == 1

    run(tmp_path, main)


def test_every_answer_that_has_the_field_says_how_long_to_wait(tmp_path: Path) -> None:
    """A request_percentage that everything is above, and waits of a millisecond: no answer says 0 but those of SASL."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        things = Things("t", node.create_topic("t"), "g")
        set_quota(node, EVERY_USER, request_percentage=1e-6)
        silent = set()
        for ask in REQUESTS:
            served = APIS[ask.api]
            name = ask.api.name.lower()
            if ask.api in (
                *(Api.ADD_RAFT_VOTER, Api.REMOVE_RAFT_VOTER, Api.UPDATE_RAFT_VOTER),
                *(Api.DESCRIBE_LOG_DIRS, Api.DESCRIBE_QUORUM),
            ):
                continue  # they need more of a node than this one has
            for version in {max(served.first, ask.since), served.last}:
                if "throttle_time" not in response_class(name, version).__dataclass_fields__:
                    continue
                answer = await client.ask(name, version, **ask.values(things))
                if not waits_ms(answer) > 0:
                    silent.add(f"{ask.api.title} v{version}")
        assert silent == set()

    run(tmp_path, main, service=BrokerConfig(quota_window_s=0.001))


def test_a_share_waits_on_all_of_its_connections(tmp_path: Path) -> None:
    """Ten connections of one user, above its request_percentage: one request is answered, and the others wait as long
    as that one was told, however many there are. A change of the quota lets all go, and each is answered."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        set_quota(node, EVERY_USER, request_percentage=1e-6)
        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(connect(node.listener.endpoint)) for _ in range(10)]
            assert waits_ms(await client.ask("api_versions", 2)) in (60_000, 60_001)  # a part of one is rounded up
            asked = [asyncio.ensure_future(other.ask("api_versions", 2)) for other in others]
            await until(lambda: muted(node) == 11)
            assert not any(one.done() for one in asked)
            assert node.listener.stats.apis["ApiVersions", 2].answers == 1
            set_quota(node, EVERY_USER, request_percentage=None)
            for one in asked:
                assert waits_ms(await one) == 0

    run(tmp_path, main, service=BrokerConfig(quota_window_s=60))


def test_the_time_of_a_request_that_is_answered_later_counts(tmp_path: Path) -> None:
    """A coroutine holds the loop in steps; what it awaits is not its time."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        async def slowly() -> None:
            time.sleep(0.03)
            await asyncio.sleep(0.2)
            time.sleep(0.03)

        node.controller.gate = slowly
        set_quota(node, EVERY_USER, request_percentage=100)
        began = time.monotonic()
        await client.ask("create_topics", 5, topics=[{"name": "a", "num_partitions": 1, "replication_factor": 1}])
        elapsed_ms = (time.monotonic() - began) * 1000
        quotas = node.broker.quotas
        assert quotas is not None
        taken = quotas.rates[QuotaKey.REQUEST_PERCENTAGE]
        busy_ms = next(taken.measured(quotas.clock.monotonic_ms())).rate / 100 * 10_000
        assert busy_ms >= 55
        assert busy_ms <= elapsed_ms - 195, "it slept for 200 ms: that is nobody's time"

    run(tmp_path, main)


def test_a_greedy_tenant_takes_its_share_and_a_modest_one_feels_nothing(tmp_path: Path) -> None:
    """Four connections at full speed beside one of another client.id: the share holds over all of them together."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            set_quota(node, EVERY_CLIENT, producer_byte_rate=20_000)
            taken = 0
            began = time.monotonic()

            async def greed() -> None:
                nonlocal taken
                async with connect(node.listener.endpoint) as client:
                    client.client_id = "greedy"
                    while True:
                        await produced(client, 10_000)
                        taken += 10_000

            greedy = [asyncio.ensure_future(greed()) for _ in range(4)]
            async with connect(node.listener.endpoint) as modest:
                modest.client_id = "modest"
                waits = [waits_ms(await produced(modest, 100)) for _ in range(200)]
            await until(lambda: muted(node) == 4)
            elapsed_s = time.monotonic() - began
            for task in greedy:
                task.cancel()
            await asyncio.gather(*greedy, return_exceptions=True)
            assert set(waits) == {0.0}
            assert taken <= 20_000 * (2 * elapsed_s + 11) + 4 * 10_000

    asyncio.run(main())


def test_of_a_long_client_id_little_is_remembered(tmp_path: Path) -> None:
    """Thousands of them are remembered for ten seconds, and each may have 32,767 bytes."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        set_quota(node, EVERY_CLIENT, producer_byte_rate=1e9)
        client.client_id = "x" * 30_000
        await produced(client, 100)
        quotas = node.broker.quotas
        assert quotas is not None
        [one] = quotas.rates[QuotaKey.PRODUCER_BYTE_RATE].measured(quotas.clock.monotonic_ms())
        assert one.of == QuotaEntity(None, "x" * 255)

    run(tmp_path, main)


def test_a_muted_client_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async def main(node: KafkaNode, _: KafkaClient) -> None:
        node.create_topic("t")
        set_quota(node, ME, producer_byte_rate=1)
        async with connect(node.listener.endpoint) as client:
            await produced(client, 1000)
            assert muted(node) == 1
            node.listener.connections[-1].abort()
            await until(lambda: muted(node) == 0)

    run(tmp_path, main)


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_altered_and_described(tmp_path: Path, version: int) -> None:
    async def main(_: KafkaNode, client: KafkaClient) -> None:
        def op(key: str, value: float | None) -> dict[str, object]:
            return {"key": key, "value": value or 0.0, "remove": value is None}

        def entity(**parts: str | None) -> list[dict[str, object]]:
            return [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in parts.items()]

        async def alter(*entries: tuple[list[dict[str, object]], dict[str, object]], check: bool = False) -> list[int]:
            values = [{"entity": whom, "ops": [change]} for whom, change in entries]
            answer = await client.ask("alter_client_quotas", version, entries=values, validate_only=check)
            return [int(entry.error_code) for entry in answer.entries]

        async def described(strict: bool = False, **components: tuple[int, str | None]) -> object:
            asked = [
                {"entity_type": kind.replace("_", "-"), "match_type": how, "match": name}
                for kind, (how, name) in components.items()
            ]
            answer = await client.ask("describe_client_quotas", version, components=asked, strict=strict)
            if answer.error_code:
                assert answer.entries is None
                return int(answer.error_code)
            return {
                tuple((one.entity_type, one.entity_name) for one in entry.entity): {
                    one.key: float(one.value) for one in entry.values
                }
                for entry in answer.entries
            }

        rate = op("producer_byte_rate", 5e6)
        assert await alter((entity(user="alice"), rate), check=True) == [0]
        assert await described() == {}
        assert await alter(
            (entity(user="alice"), rate),
            (entity(user="alice", client_id=None), op("request_percentage", 12.5)),
            (entity(client_id="app"), rate),
            (entity(ip="::ffff:10.0.0.1"), op("connection_creation_rate", 20.0)),
            (entity(ip=None), op("connection_creation_rate", 30.0)),
            (entity(ip="10.0.0.2"), rate),
            (entity(ip="localhost"), op("connection_creation_rate", 20.0)),
            (entity(user="bob"), op("connection_creation_rate", 20.0)),
            (entity(user=None), op("producer_byte_rate", -1.0)),
        ) == [0, 0, 0, 0, 0, 42, 42, 42, 42]
        alice, pair, app = (("user", "alice"),), (("user", "alice"), ("client-id", None)), (("client-id", "app"),)
        whole = {alice: {"producer_byte_rate": 5e6}, pair: {"request_percentage": 12.5}}
        here, everywhere = (("ip", "10.0.0.1"),), (("ip", None),)
        of_here, of_all = {here: {"connection_creation_rate": 20.0}}, {everywhere: {"connection_creation_rate": 30.0}}
        assert await described() == whole | {app: {"producer_byte_rate": 5e6}} | of_here | of_all
        assert await described(ip=(2, None)) == of_here | of_all
        assert await described(ip=(1, None)) == of_all
        for written in ("10.0.0.1", "::ffff:10.0.0.1"):
            assert await described(strict=True, ip=(0, written)) == of_here
        assert await described(ip=(0, "10.0.0.2")) == {}
        assert await described(user=(0, "alice")) == whole
        assert await described(strict=True, user=(0, "alice")) == {alice: whole[alice]}
        assert await described(user=(2, None), client_id=(1, None)) == {pair: whole[pair]}
        assert await described(user=(1, None)) == {}
        assert await described(user=(0, None)) == 42
        assert await described(user=(1, "alice")) == 42
        assert await described(user=(7, None)) == 42
        assert await described(group=(2, None)) == 35
        assert await described(ip=(2, None), user=(2, None)) == 42
        assert await alter((entity(user="alice"), op("producer_byte_rate", None))) == [0]
        assert await described(strict=True, user=(2, None)) == {}

    run(tmp_path, main)
