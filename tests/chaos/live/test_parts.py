"""The parts of a live run that need no cluster: gaps, the order of faults, how clients log in."""

from __future__ import annotations

import random
import ssl
from itertools import islice
from pathlib import Path

import pytest

from strandline.chaos.checkers.history import Partition, Send, Status
from strandline.chaos.live.clients import aiokafka, confluent
from strandline.chaos.live.clients.options import ClientOptions
from strandline.chaos.live.faults import FAULTS, plan
from strandline.chaos.live.gaps import NO_FAULT, AckTimes, Window, table
from strandline.client.config import ConsumerConfig, ProducerConfig
from strandline.cluster.node.dev_login import USER, DevLogin
from tests.cluster.security.tls_case import ca

A, B = Partition("a", 0), Partition("b", 1)


def acked(partition: Partition, *times_ms: float, acks: int = -1) -> list[Send]:
    return [
        Send("p", partition, f"{at}", acks=acks, status=Status.OK, offset=number, completed_ms=at)
        for number, at in enumerate(times_ms)
    ]


def test_a_gap_is_from_the_last_ack_before_to_the_first_after() -> None:
    """Availability: the longest time without an acks=all ack that touches the fault; acks=1 do not count."""
    times = AckTimes()
    times.note(acked(A, 100, 200, 300, 4300, 4400))
    times.note(acked(A, 1000, 2000, acks=1))
    assert times.gap_ms(A, 350, 2000) == 4000
    assert times.gap_ms(A, 120, 180) == 100
    assert times.gap_ms(B, 0, 500) == 500
    assert times.quiet_gap_ms(A, 150, 400) == 100
    assert times.acked_since(A, 4400)
    assert not times.acked_since(A, 4401)


def test_the_table_has_a_row_for_each_kind() -> None:
    """Median and longest over faults and partitions; the times between faults by themselves."""
    times = AckTimes()
    times.note(acked(A, 0, 100, 200, 1200, 1300))
    times.note(acked(B, 0, 100, 400, 500, 1250))
    windows = [Window("kill", 150, 1100, 1250), Window(NO_FAULT, 0, 100, 100)]
    kill, quiet = table(windows, times, [A, B])
    assert kill == {
        "fault": "kill", "times": 1, "gap_median_ms": 875, "gap_max_ms": 1000, "whole_max_ms": 150, "acks": 5,
    }  # fmt: skip
    assert quiet["fault"] == NO_FAULT
    assert quiet["gap_max_ms"] == 100


@pytest.mark.parametrize("names", [["kill"], list(FAULTS)])
def test_each_round_has_each_fault_once_and_the_seed_decides_the_order(names: list[str]) -> None:
    """--seed: the same seed is the same order of faults."""
    faults = [fault.name for fault in islice(plan(names, random.Random(7)), 3 * len(names))]
    for begin in range(0, len(faults), len(names)):
        assert sorted(faults[begin : begin + len(names)]) == sorted(names)
    assert faults == [fault.name for fault in islice(plan(names, random.Random(7)), 3 * len(names))]


def test_every_kind_of_client_finds_its_login_in_one_file(tmp_path: Path) -> None:
    """--secure: the password stands in the file, and not among a process's arguments, which everybody sees."""
    login = DevLogin(tmp_path)
    login.make(is_new=True)
    password = (tmp_path / "password").read_text().strip()
    file = tmp_path / "client.properties"
    file.write_text(login.properties(ca().file))
    options = ClientOptions("b:1", {"t": 1}, "own", "journal", 1, 5.0, properties=str(file))
    assert password not in options.encode()
    assert ClientOptions.decode(options.encode()) == options
    for kind in (ProducerConfig, ConsumerConfig):
        assert kind(options.settings).security_protocol == "SASL_SSL"
    assert password in options.settings["sasl.jaas.config"]
    librdkafka = confluent.login_settings(options)
    assert (librdkafka["security.protocol"], librdkafka["ssl.ca.location"]) == ("SASL_SSL", str(ca().file))
    assert (librdkafka["sasl.username"], librdkafka["sasl.password"]) == (USER, password)
    others = aiokafka.login_settings(options)
    assert (others["sasl_mechanism"], others["sasl_plain_password"]) == ("SCRAM-SHA-512", password)
    assert others["ssl_context"].verify_mode is ssl.CERT_REQUIRED
    plain = ClientOptions("b:1", {"t": 1}, "own", "journal", 1, 5.0)
    assert plain.settings == confluent.login_settings(plain) == aiokafka.login_settings(plain) == {}
