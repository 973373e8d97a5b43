"""What the clients log, under `strandline.client`: nothing shows by itself, and everything that a program should know
is there for whoever configures logging; on real brokers."""

from __future__ import annotations

import itertools
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from strandline.client import Admin, Consumer, KafkaError, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from tests.client.conftest import eventually

_numbers = itertools.count(1)

Logged = Callable[[str], list[logging.LogRecord]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """The records of the client whose text matches."""
    caplog.set_level(logging.DEBUG, logger="strandline.client")

    def find(pattern: str) -> list[logging.LogRecord]:
        return [
            record
            for record in caplog.records
            if record.name.startswith("strandline.client") and re.search(pattern, record.getMessage())
        ]

    return find


@pytest.fixture
def topic(cluster: DevCluster) -> Iterator[str]:
    name = f"logged-{next(_numbers)}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1)])
        yield name
        admin.delete_topics([name])


def levels(records: list[logging.LogRecord]) -> set[int]:
    return {record.levelno for record in records}


def test_nothing_shows_by_itself() -> None:
    """A library must not configure logging, nor write where a program did not ask for it."""
    code = "from strandline.client import Producer; Producer('127.0.0.1:1', max_block_ms=300).partitions_for('t')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ClientTimeout" in done.stderr
    assert "cannot connect" not in done.stderr.split("Traceback")[0]


def test_a_broker_that_cannot_be_reached_is_told_once(logged: Logged) -> None:
    """A warning with the reason; further attempts are for those who debug."""
    with Producer("127.0.0.1:1", max_block_ms=1_500) as producer, pytest.raises(Exception, match="no metadata"):
        producer.partitions_for("t")
    attempts = logged("cannot connect to 127.0.0.1:1: .*refused")
    assert len(attempts) > 2
    assert [record.levelno for record in attempts][:2] == [logging.WARNING, logging.DEBUG]
    assert len([record for record in attempts if record.levelno == logging.WARNING]) == 1


def test_a_failover_is_told(logged: Logged) -> None:
    """The lost connection, who leads now, what is sent again, and the connection that is back."""
    with DevCluster() as running, Admin(running.bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, 3)])
        with Producer(running.bootstrap, linger_ms=0) as producer:
            producer.send("t", b"before").result()
            [described] = admin.describe_topics(["t"])
            leader = described.partitions[0].leader
            assert leader is not None
            address = re.escape(running.client(leader))
            running.kill(leader)
            producer.send("t", b"after").result()
            eventually(lambda: logged(rf"the connection to {address} was lost"))
            moved = logged(r"t-0 is led by broker \d in epoch \d+, and was led by broker")
            assert levels(moved) == {logging.INFO}
            running.start_node(leader)

            def led_again() -> bool:
                producer.send("t", b"again").result()
                return bool(logged(rf"connected to {address} again, after \d+ failed attempts?"))

            eventually(led_again)


def test_records_that_were_not_written_are_told(cluster: DevCluster, topic: str, logged: Logged) -> None:
    """Who looks at no future hears of it here."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(f"{topic}.small", 1, configs={"max.message.bytes": "100"})])
        with Producer(cluster.bootstrap) as producer, pytest.raises(KafkaError):
            producer.send(f"{topic}.small", b"x" * 1000).result()
        admin.delete_topics([f"{topic}.small"])
    [failed] = logged(rf"1 record of {topic}.small-0 was not written: MESSAGE_TOO_LARGE")
    assert failed.levelno == logging.ERROR


def test_a_groups_life_is_told(cluster: DevCluster, topic: str, logged: Logged) -> None:
    """What a member reads, what it gives up, and why it is none any more."""
    with Consumer(cluster.bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        eventually(lambda: consumer.poll(0.1) or consumer.state.name == "stable")
        [given] = logged(rf"group {topic}: .* reads {topic}-0 from now on \(generation 1\)")
        assert given.levelno == logging.INFO
    assert logged(rf"group {topic}: {topic}-0 is given up")
    with Consumer(cluster.bootstrap, group_id=f"{topic}-idle", max_poll_interval_ms=300) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: consumer.poll(0.1) or consumer.state.name == "stable")
        eventually(lambda: logged("no poll for max.poll.interval.ms=300"))
    assert levels(logged("no poll for max.poll.interval.ms=300")) == {logging.WARNING}


def test_a_fenced_member_is_told(cluster: DevCluster, topic: str, logged: Logged) -> None:
    """The end of a consumer is an error."""
    settings = {"group_id": f"{topic}-static", "group_instance_id": "one"}
    with Consumer(cluster.bootstrap, **settings) as first, Consumer(cluster.bootstrap, **settings) as second:
        first.subscribe(topic)
        eventually(lambda: first.poll(0.1) or first.state.name == "stable")
        second.subscribe(topic)
        eventually(lambda: second.poll(0.1) or second.state.name == "stable")
        eventually(lambda: logged(rf"group {topic}-static: .*FENCED_INSTANCE_ID"))
    assert levels(logged(rf"group {topic}-static: .*FENCED_INSTANCE_ID")) == {logging.ERROR}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_subscribed_topic_that_does_not_exist_is_told_once(
    cluster: DevCluster, logged: Logged, protocol: str
) -> None:
    """It was silence for ever. The log says it once, `state` as long as it is so; the topic is found when it comes."""
    name = f"absent-{protocol}"
    with (
        Consumer(cluster.bootstrap, group_id=name, group_protocol=protocol, auto_offset_reset="earliest") as consumer,
        Admin(cluster.bootstrap) as admin,
    ):
        consumer.subscribe([name, f"{name}.other"])
        eventually(lambda: consumer.poll(0.1) or len(logged(rf"group {name}: .*does not exist")) == 2)
        assert name in consumer.state.waits_for
        assert f"strandline topic create {name}" in logged(rf"topic '{name}' ")[0].getMessage()
        for _ in range(20):
            consumer.poll(0.1)
        assert len(logged("does not exist")) == 2
        assert levels(logged("does not exist")) == {logging.WARNING}
        admin.create_topics([NewTopic(name, 1), NewTopic(f"{name}.other", 1)])
        eventually(lambda: consumer.poll(0.1) or len(consumer.assignment()) == 2)
        assert consumer.state.waits_for == ""
        admin.delete_topics([name, f"{name}.other"])


def test_a_position_that_is_reset_is_told(cluster: DevCluster, topic: str, logged: Logged) -> None:
    """Records were passed over, or come again: nobody could know."""
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"x").result()
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1000)
        eventually(lambda: consumer.poll(0.1))
    [reset] = logged(rf"{topic}-0: offset 1000 is out of range, the log holds 0 to 1: .*auto.offset.reset=earliest")
    assert reset.levelno == logging.WARNING
