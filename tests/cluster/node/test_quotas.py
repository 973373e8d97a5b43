"""Quotas of a real node: commands, our clients and others obey them; a restart and a snapshot keep them (rule A21)."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Producer as Librdkafka
from tests.cluster.node.secure_node import at, run

from strandline.cli.quotas import quota
from strandline.client import Admin, Consumer, NewTopic, Producer, QuotaEntity, TopicPartition
from strandline.cluster.node.node import Node
from strandline.proto.quotas import QuotaKey

ALICE_APP = QuotaEntity("alice", "app")
US = QuotaEntity(None, "us")
IPS = {"connection_creation_rate": 1000.0}


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
    whom = {"user": "(default)", "client_id": "(default)", "ip": ""}
    assert one == {**whom, "quota": "consumer_byte_rate", "value": 5.0}
    assert (two["value"], three["value"]) == (1048576.0, 12.5)
    assert "removed" in said("remove", "--user-defaults", "--client-defaults")
    assert "has no such quota" in said("remove", "--user-defaults")
    assert "whom is it for?" in said("set", "consumer_byte_rate=5", code=2)
    of_ips(said)
    assert "a number is wanted" in said("set", "producer_byte_rate", "--user", "a", code=2)


def of_ips(said: Callable[..., str]) -> None:
    """Addresses have one key, and it is theirs alone."""
    rate = "connection_creation_rate=20"
    assert said("set", rate, "--ip", "2001:DB8::7").splitlines() == [
        "connection_creation_rate of ip 2001:db8::7 is 20",
    ]
    said("set", "connection_creation_rate=100000", "--ip-defaults")
    table = said("list")
    assert "2001:db8::7" in table
    listed = {(one["ip"], one["quota"], one["value"]) for one in json.loads(said("list", "--output", "json"))}
    assert ("(default)", "connection_creation_rate", 100000.0) in listed
    assert "removed" in said("remove", "--ip", "2001:db8:0::7")
    assert "removed" in said("remove", "--ip-defaults", "connection_creation_rate")
    assert "is not a valid IP" in said("set", rate, "--ip", "localhost", code=2)
    assert "should not be used with user" in said("set", rate, "--ip-defaults", "--user", "a", code=2)
    assert "--ip or the defaults" in said("set", rate, "--ip-defaults", "--ip", "10.0.0.1", code=2)
    assert "possible for a user or a client-id" in said("set", rate, "--user", "a", code=2)
    assert "possible for an ip" in said("set", "controller_mutation_rate=5", "--ip-defaults", code=2)


def our_admin_waits(bootstrap: str) -> None:
    """A topic above the quota is made when there is room for it; so is a connection, of whoever is next."""
    with Admin(bootstrap, client_id="us") as admin:
        admin.alter_client_quotas({US: {"controller_mutation_rate": 5}, QuotaEntity(ip=""): IPS})
        admin.create_topics([NewTopic("large", 5 * 11 + 10, 1)])
        began = time.monotonic()
        admin.create_topics([NewTopic("small", 1, 1)])
        assert time.monotonic() - began >= 0.5, "ten partitions are owed: 2 s, from the moment at which they were asked"
        admin.alter_client_quotas({US: {"controller_mutation_rate": None}})


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
    """It hears how long to wait, and loses nothing; once the quota is gone it waits no longer than it was told."""
    events: list[Any] = []
    settings = {"bootstrap.servers": bootstrap, "client.id": "rdk", "throttle_cb": events.append, "linger.ms": 0}
    producer = Librdkafka(settings)
    with Admin(bootstrap) as admin:
        admin.alter_client_quotas({QuotaEntity(None, "rdk"): {"producer_byte_rate": 100_000}})
        for _ in range(2):
            producer.produce("t", bytes(510_000))
            assert producer.flush(30) == 0
        deadline = time.monotonic() + 30
        while not events and time.monotonic() < deadline:
            producer.poll(0.05)
        admin.alter_client_quotas({QuotaEntity(None, "rdk"): {"producer_byte_rate": None}})
    assert events
    assert events[0].throttle_time > 0
    producer.produce("t", b"last")
    assert producer.flush(30) == 0


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
        await in_thread(partial(our_admin_waits, bootstrap))
        page = await in_thread(partial(scraped, node))
        assert 'kafka_server_controllermutation_mutation_rate{client_id="us",user=""}' in page
        assert 'kafka_server_controllermutation_throttle_time{client_id="us",user=""}' in page
        assert 'strandline_throttles_total{quota="controllermutation"} 1' in page
        assert 'kafka_server_connection_accept_rate{ip="127.0.0.1"}' in page
        assert "strandline_connections_waiting 0" in page
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
            QuotaEntity(ip=""): IPS,
        }
        assert node.broker is not None
        quotas = node.broker.kafka.quotas
        assert quotas is not None, "what was set before the start counts after it"
        assert quotas.rates[QuotaKey.PRODUCER_BYTE_RATE].most_at_once("bob", "us") == 1_000_000

    run(tmp_path, first)
    run(tmp_path, again)
