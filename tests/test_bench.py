"""Peers of the benchmarks: left out with the reason where they cannot be had, and ended with all they started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from bench.__main__ import PEERS, contenders_of, main
from bench.clusters import KafkaCluster, StrandlineCluster, end
from bench.driven import driver
from bench.fetched import Unavailable
from bench.nats import nats_server
from bench.rabbitmq import unpacked
from bench.secured import PROPERTIES, SecuredKafka, librdkafka_settings, own_settings, reached_by
from bench.turns import in_turns, read_variant
from bench.turns import main as turns
from click.testing import CliRunner

from strandline.client.config import ProducerConfig
from strandline.cluster.security.dev_certificates import client_properties


@pytest.mark.parametrize(("get", "lacks"), [(driver, "go"), (nats_server, "go"), (unpacked, "apt-get")])
def test_a_peer_that_cannot_be_had_is_left_out_with_the_reason(
    get: Callable[[], object], lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is fetched and nothing fails: the message names the program that is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{lacks}.*is not installed"):
        get()
    assert not list(tmp_path.iterdir())


def test_a_peer_nobody_knows() -> None:
    """Before anything is started."""
    refused = CliRunner().invoke(main, ["--peers", "kafka,pulsar"])
    assert refused.exit_code == 2
    assert "pulsar is none of kafka, nats, rabbitmq" in refused.output


def test_a_secured_run_leaves_out_what_is_measured_in_plaintext_alone() -> None:
    said: list[str] = []
    found = contenders_of(["kafka", "nats"], "sasl", {"start"}, said.append)
    assert list(found) == [StrandlineCluster.name, KafkaCluster.name]
    assert list(contenders_of(["kafka"], "tls", {"start"}, said.append)) == [StrandlineCluster.name]
    assert said == [
        "nats: left out: it is measured with --security none alone",
        "kafka: left out: it is measured with --security none or sasl",
    ]
    refused = CliRunner().invoke(main, ["--security", "tls", "--only", "spark"])
    assert refused.exit_code == 2
    assert "Spark is measured without it alone" in refused.output


def test_clients_of_a_secured_cluster_find_their_settings_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In our names and in librdkafka's, as Apache Kafka's user has them; nothing without one."""
    assert own_settings() == librdkafka_settings() == {}
    monkeypatch.setenv(PROPERTIES, "")
    kafka = SecuredKafka(tmp_path, {1: 19092})
    assert "CLIENTS:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL" in kafka.settings(1, 1, 2).values()
    reached_by(kafka.client_properties)
    assert ProducerConfig(own_settings()).security_protocol == "SASL_SSL"
    theirs = librdkafka_settings()
    assert theirs["security.protocol"] == "SASL_SSL"
    assert kafka.format_options()[1] == f"SCRAM-SHA-512=[name=dev,password={theirs['sasl.password']}]"
    own = tmp_path / "tls.properties"
    own.write_text(client_properties(tmp_path / "ca.pem", tmp_path / "client.pem"))
    reached_by(own)
    assert librdkafka_settings() == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.key.location": str(tmp_path / "client.pem"),
        "ssl.certificate.location": str(tmp_path / "client.pem"),
    }


def test_no_column_stands_twice() -> None:
    assert len({column for columns in PEERS.values() for column in columns}) == sum(map(len, PEERS.values()))


def test_a_peer_ends_with_all_that_it_started() -> None:
    """Erlang starts helpers in process groups of their own."""
    code = (
        "import subprocess, sys\n"
        "below = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(below.pid, flush=True)\n"
        "below.wait()\n"
    )
    script = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert script.stdout is not None
    below = int(script.stdout.readline())
    end([script])
    script.stdout.close()
    assert script.returncode == -9
    assert not psutil.pid_exists(below) or psutil.Process(below).status() == psutil.STATUS_ZOMBIE


def test_ratios_of_variants_that_take_turns() -> None:
    """Each burst is compared with the first variant's of the same round; who begins changes from round to round."""
    called: list[str] = []
    slow = iter([1.0, 10.0, 1.0])

    def base(_load: str) -> dict[str, float]:
        called.append("base")
        return {"p50 ms": 2 * speed}

    def other(_load: str) -> dict[str, float]:
        called.append("other")
        return {"p50 ms": 3 * speed}

    def next_round(_line: str) -> None:
        nonlocal speed
        speed = next(slow)

    speed = 0.0
    [of_base, of_other] = in_turns({"base": base, "other": other}, ("lone",), 3, next_round)
    assert called == ["base", "other", "other", "base", "base", "other"]
    assert (of_base.ratio, of_base.value) == (1.0, 2.0)
    assert (of_other.ratio, of_other.lower, of_other.upper) == (1.5, 1.5, 1.5)


def test_variants_that_take_turns_are_read() -> None:
    variant = read_variant("new:python=/usr/bin/python3,flush.policy=replicate")
    assert (variant.name, variant.python, variant.source) == ("new", "/usr/bin/python3", "")
    assert variant.settings == {"flush.policy": "replicate"}
    for arguments, told in [
        (["now:python"], "'python' of variant 'now': KEY=VALUE"),
        (["now", "now"], "two variants of one name"),
        (["now", "--load", "full-7"], "lone, full-100, full-1000 or records a second"),
    ]:
        refused = CliRunner().invoke(turns, arguments)
        assert refused.exit_code == 2
        assert told in refused.output
