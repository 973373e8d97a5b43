"""Settings: Kafka's names and defaults, and sentences for what cannot stand (the table of rows.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from strandline import client
from strandline.client import aio
from strandline.client import settings as typed_settings
from strandline.client.config import (
    AdminConfig,
    CommonConfig,
    ConsumerConfig,
    ProducerConfig,
    duration_ms,
    parse_bootstrap,
)
from strandline.client.consumer import Consumer
from strandline.client.producer import Producer
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint

DEFAULTS: dict[type[Any], dict[str, object]] = {
    ProducerConfig: {
        "acks": "all", "batch.size": 16384, "batch.size.max": None, "linger.ms": 5.0,
        "buffer.memory": 33554432, "max.block.ms": 60000, "max.in.flight.requests.per.connection": 5,
        "delivery.timeout.ms": 120000, "request.timeout.ms": 30000,
        "retry.backoff.ms": 100, "retry.backoff.max.ms": 1000, "compression.type": "none", "max.request.size": 1048576,
        "metadata.max.age.ms": 300000, "retries": 2147483647, "partitioner": None,
    },
    ConsumerConfig: {
        "auto.offset.reset": "latest", "max.poll.records": 500, "fetch.min.bytes": 1, "fetch.max.wait.ms": 500,
        "fetch.max.bytes": 52428800, "max.partition.fetch.bytes": 1048576, "check.crcs": True,
        "isolation.level": "read_uncommitted", "metadata.max.age.ms": 300000,
    },
    AdminConfig: {"request.timeout.ms": 30000, "default.api.timeout.ms": 60000},
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_kafkas(kind: type[Any]) -> None:
    """Kafka 4.0's defaults under Kafka's names (linger.ms 5: KIP-1030)."""
    config = kind({})
    assert {name: getattr(config, name.replace(".", "_")) for name in DEFAULTS[kind]} == DEFAULTS[kind]


def test_both_spellings_and_text_are_taken() -> None:
    """Values from a command line are text; names may be Kafka's or Python's."""
    config = ProducerConfig({"linger.ms": "2.5", "batch_size": "100", "enable.idempotence": "false", "acks": 1})
    assert (config.linger_ms, config.batch_size, config.idempotent, config.acks_number) == (2.5, 100, False, 1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"linger.m": 1}, "did you mean linger.ms"),
        ({"transactional.id": ""}, "at least one character"),
        ({"transactional.id": "t", "acks": "1"}, "needs acks=all"),
        ({"transactional.id": "t", "enable.idempotence": "false"}, "transactional.id needs it"),
        ({"linger.ms": -1}, "a number from 0"),
        ({"linger.ms": "soon"}, "a number"),
        ({"linger.ms": float("nan")}, "a number"),
        ({"batch.size": 1.5}, "a whole number"),
        ({"batch.size": True}, "a whole number from 0"),
        ({"batch.size": 9_000, "batch.size.max": 8_999}, "batch.size.max"),
        ({"batch.size.max": 1}, "at least batch.size = 16384"),
        ({"batch.size.max": "many"}, "a whole number"),
        ({"acks": "2"}, "one of all, -1, 0, 1"),
        ({"compression.type": "brotli"}, "one of none, gzip, snappy, lz4, zstd"),
        ({"enable.idempotence": "maybe"}, "true or false"),
        ({"enable.idempotence": True, "acks": "1"}, "needs acks=all"),
        ({"delivery.timeout.ms": 100}, "at least linger.ms + request.timeout.ms"),
        ({"partitioner": "murmur2"}, "a function"),
        ({"linger.ms": 1, "linger_ms": 2}, "given twice"),
        ({"security.protocol": "TLS"}, "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_what_cannot_stand_is_refused_with_a_sentence(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        ProducerConfig(settings)


def test_six_in_flight_with_idempotence_are_refused_at_construction() -> None:
    """Row S31: brokers remember five batches; never silently without idempotence either."""
    for settings in ({}, {"enable_idempotence": True}):
        with pytest.raises(ConfigError, match=r"at most 5 with enable\.idempotence"):
            Producer("127.0.0.1:1", max_in_flight_requests_per_connection=6, **settings)
    assert not ProducerConfig({"max.in.flight.requests.per.connection": 6, "enable.idempotence": False}).idempotent


@pytest.mark.parametrize(("acks", "on"), [("all", True), ("-1", True), ("1", False), ("0", False)])
def test_idempotence_follows_acks(acks: str, on: bool) -> None:
    """Kafka's rule since 3.0: on by default, off where acks rules it out and nobody asked for it."""
    assert ProducerConfig({"acks": acks}).idempotent is on


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"group_id": ""}, "a name of at least one character"),
        ({"group_id": "g", "heartbeat_interval_ms": 4_000, "session_timeout_ms": 6_000}, "at most half of session"),
        ({"partition_assignment_strategy": "range,best"}, "some of range, roundrobin, sticky, cooperative-sticky"),
    ],
)
def test_what_a_group_cannot_be(settings: dict[str, object], says: str) -> None:
    """Settings that would make a member fail later are refused at once."""
    with pytest.raises(ConfigError, match=says):
        Consumer("127.0.0.1:1", **settings)


def test_what_needs_a_group_says_so() -> None:
    """subscribe and commit without a group.id name the setting that is missing."""
    with Consumer("127.0.0.1:1") as consumer:
        with pytest.raises(ConfigError, match=r"group\.id"):
            consumer.subscribe(["t"])
        with pytest.raises(ConfigError, match=r"group\.id"):
            consumer.commit()
        assert consumer.state.name == "unassigned"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("by_duration:PT1H", 3_600_000), ("by_duration:P1DT2H3M4.5S", 93_784_500), ("BY_DURATION:pt5m", 300_000)],
)
def test_durations(text: str, milliseconds: int) -> None:
    """KIP-1106: ISO 8601 durations."""
    assert duration_ms(text) == milliseconds
    assert ConsumerConfig({"auto.offset.reset": text}).auto_offset_reset == text


@pytest.mark.parametrize("text", ["by_duration:P", "by_duration:1h", "smallest", "by_duration:PT"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ConfigError, match="one of earliest, latest, none, or by_duration"):
        ConsumerConfig({"auto.offset.reset": text})


def test_bootstrap_lists() -> None:
    """Host and port, comma separated or a sequence; 9092 when left out; IPv6 in brackets."""
    assert parse_bootstrap(" a:1, [::1]:2 ,b") == (Endpoint("a", 1), Endpoint("::1", 2), Endpoint("b", 9092))
    assert parse_bootstrap(["h-1.x:65535"]) == (Endpoint("h-1.x", 65535),)


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:65536", "a:1:2", "http://a:1", []])
def test_no_bootstrap_lists(text: Any) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_bootstrap(text)


@pytest.mark.parametrize("kind", [CommonConfig, ProducerConfig, ConsumerConfig, AdminConfig])
def test_a_type_checker_knows_every_setting(kind: type[CommonConfig]) -> None:
    """The generated file has the same names, and each default is what its annotation says."""
    typed = getattr(typed_settings, kind.__name__.replace("Config", "Settings"))
    assert typed.__optional_keys__ == set(kind.attributes)
    hints, defaults = typing.get_type_hints(typed), kind({})
    for attribute in kind.attributes:
        value = getattr(defaults, attribute)
        assert value is None or isinstance(value, hints[attribute]), attribute
        assert (type(None) in typing.get_args(hints[attribute])) == (value is None), attribute


TYPED = """
from strandline.client import Admin, Consumer, Producer
from strandline.client import aio
from strandline.client.config import ConsumerConfig, ProducerConfig

Producer("a", linger_ms=5, acks=1)
Consumer("a", group_id="kitchen")
Producer("a", linger_mz=5)
Consumer("a", auto_offset_rest="earliest")
aio.Consumer("a", enable_auto_commit="no")
Admin("a", acks="all")
ProducerConfig({}).linger_ms.upper()
ConsumerConfig({}).group_id.upper()
"""


def test_a_misspelt_setting_is_an_error_of_mypy(tmp_path: Path) -> None:
    """`**settings: object` let every typo pass."""
    program = tmp_path / "program.py"
    program.write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    environment = {**os.environ, "MYPYPATH": str(Path(typed_settings.__file__).parents[2])}
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout
    lines = [int(line.split(":")[1]) for line in told.splitlines() if ": error:" in line]
    assert lines == [8, 9, 10, 11, 12, 13], told
    assert 'Unexpected keyword argument "linger_mz"' in told


def test_dir_shows_what_there_is() -> None:
    """Lazily loaded or not: TAB in an interpreter offers the names."""
    assert {"Admin", "Consumer", "Producer", "KafkaError", "ProducerSettings"} <= set(dir(client))
    assert {"Admin", "Consumer", "Producer"} <= set(dir(aio))
    for name in client.__all__:
        assert getattr(client, name) is not None
