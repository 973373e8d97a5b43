"""Quotas of a real node: commands, our clients and others obey them; a restart and a snapshot keep them (rule A21)."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Producer as Librdkafka
from tests.cluster.node.secure_node import at, run

from strandline.cli.quotas import quota
from strandline.client import Admin, Consumer, NewTopic, Producer, QuotaEntity, TopicPartition
from strandline.cluster.node.node import Node

ALICE_APP = QuotaEntity("alice", "app")
US = QuotaEntity(None, "us")


def commands(bootstrap: str) -> None:
    """`strandline quota`: what it says it did is what is there."""

    def said(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(quota, [*words, *([] if code == 2 else ["--bootstrap", bootstrap])])
        assert result.exit_code == code, result.output
        return result.output

    assert "there are no quotas" in said("list")
    rates = ("producer_byte_rate=1048576", "request_percentage=12.5")
    whom = ("--user", "alice", "--client-id", "app")
    assert "would be 1048576" in said("set", *rates, *whom, "--dry-run")
    assert "there are no quotas" in said("list")
    assert said("set", *rates, *whom).splitlines() == [
        "producer_byte_rate of user alice, client-id app is 1048576",
        "request_percentage of user alice, client-id app is 12.5",
    ]
    said("set", "consumer_byte_rate=5", "--user-defaults", "--client-defaults")
    table = said("list")
    assert "alice" in table
    assert "(default)" in table
    one, two, three = json.loads(said("list", "--output", "json"))
    assert one == {"user": "(default)", "client_id": "(default)", "quota": "consumer_byte_rate", "value": 5.0}
    assert (two["value"], three["value"]) == (1048576.0, 12.5)
    assert "removed" in said("remove", "--user-defaults", "--client-defaults")
    assert "has no such quota" in said("remove", "--user-defaults")
    assert "whom is it for?" in said("set", "consumer_byte_rate=5", code=2)
    assert "nothing would enforce it" in said("set", "controller_mutation_rate=5", "--user", "a", code=2)
    assert "a number is wanted" in said("set", "producer_byte_rate", "--user", "a", code=2)


def we_wait(bootstrap: str) -> None:
    """Our producer and consumer are above their quota at once, wait as they are told, and lose nothing."""
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
        admin.alter_client_quotas({US: {"producer_byte_rate": 100_000, "consumer_byte_rate": 100_000}})
    began = time.monotonic()
    with Producer(bootstrap, client_id="us", compression_type="none", linger_ms=0) as producer:
        for number in range(3):  # 10 s of the quota, and a fiftieth of a second's more
            producer.send("t", bytes([number]) * 340_000)
            producer.flush()
        producer.send("t", b"last").result(30)
    assert time.monotonic() - began >= 0.2, "1,020,000 bytes are 200 ms above what 10 s of windows take"
    with Consumer(bootstrap, client_id="us", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        got: list[int] = []
        while len(got) < 4:
            got += [len(record.value or b"") for record in consumer.poll(1000)]
    assert got == [340_000] * 3 + [4]


def librdkafka_is_told(bootstrap: str) -> None:
    events: list[Any] = []
    settings = {"bootstrap.servers": bootstrap, "client.id": "us", "throttle_cb": events.append}
    producer = Librdkafka({**settings, "linger.ms": 0})
    for _ in range(4):
        producer.produce("t", bytes(300_000))
        producer.flush(0)
    deadline = time.monotonic() + 30
    while not events and time.monotonic() < deadline:
        producer.poll(0.05)
    assert events
    assert events[0].throttle_time > 0
    producer.purge()
    producer.flush(10)


def scraped(node: Node) -> str:
    with urllib.request.urlopen(f"http://{at(node, 'HTTP')}/metrics") as answer:
        return str(answer.read().decode())


async def in_thread(work: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def test_quotas_from_end_to_end(tmp_path: Path) -> None:
    async def first(node: Node) -> None:
        bootstrap = at(node, "PLAINTEXT")
        await in_thread(partial(commands, bootstrap))
        await in_thread(partial(we_wait, bootstrap))
        await in_thread(partial(librdkafka_is_told, bootstrap))
        page = await in_thread(partial(scraped, node))
        assert 'kafka_server_produce_byte_rate{client_id="us",user=""}' in page
        assert 'kafka_server_produce_throttle_time{client_id="us",user=""}' in page
        assert 'strandline_throttles_total{quota="produce"}' in page

    async def again(node: Node) -> None:
        def described() -> Any:
            with Admin(at(node, "PLAINTEXT")) as admin:
                return admin.describe_client_quotas()

        assert await in_thread(described) == {
            ALICE_APP: {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
            US: {"producer_byte_rate": 100_000.0, "consumer_byte_rate": 100_000.0},
        }
        assert node.broker is not None
        quotas = node.broker.kafka.quotas
        assert quotas is not None, "what was set before the start counts after it"
        assert all(rate.limits for rate in quotas.rates.values())

    run(tmp_path, first)
    run(tmp_path, again)
