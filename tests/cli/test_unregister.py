"""`strandline cluster unregister` (UnregisterBroker): a broker that does not come back blocks no upgrade."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from tests.acceptance.helpers import QUICK, eventually, make_topic, read_all, send_all, wait_isr

from strandline.cli.main import main
from strandline.client import Admin, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.controller.metadata.features import NEWEST_LEVEL
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

METADATA = "metadata.version"


@pytest.fixture
def running() -> Iterator[DevCluster]:
    with DevCluster(nodes=2, controllers=1, settings=QUICK) as cluster:
        yield cluster


def run(cluster: DevCluster, *words: str, expect: int = 0) -> Result:
    told = CliRunner().invoke(main, words, env={"STRANDLINE_BOOTSTRAP": cluster.client(1)})
    assert told.exit_code == expect, (told.output, told.stderr, told.exception)
    return told


def test_a_dead_broker_blocks_an_upgrade_until_it_is_taken_out(running: DevCluster) -> None:
    """It is refused while it serves, and while it has the last copy of anything. Back again it is a broker as before,
    which fetches all anew."""
    run(running, "upgrade", "downgrade", "--unsafe", "transaction.version=0", f"{METADATA}=1")
    make_topic(running, "t", min_insync_replicas="1")
    wait_isr(running, "t", {1, 2})
    send_all(running, "t", [b"1"])
    assert "serves: stop it first" in run(running, "cluster", "unregister", "2", expect=2).stderr
    with Admin(running.client(1)) as admin:
        admin.create_topics([NewTopic("alone", 8, 1)])
    with Producer(running.client(1)) as producer:
        for partition in range(8):
            producer.send("alone", b"x", partition=partition).result(30)
    running.kill(2)
    wait_isr(running, "t", {1})
    assert "strandline cluster unregister NODE" in run(running, "upgrade", "check", expect=1).stdout
    told = run(running, "cluster", "unregister", "2", expect=2).stderr
    assert "the last complete copy of 4 partitions is on broker 2: alone-" in told
    run(running, "topic", "delete", "alone", "--yes")
    dry = run(running, "cluster", "unregister", "2", "--dry-run").stdout
    assert "Broker 2 would be taken out" in dry
    assert "stay assigned to it" in dry
    described = json.loads(run(running, "cluster", "describe", "--output", "json").stdout)
    assert [one["node_id"] for one in described["brokers"]] == [1, 2]
    assert json.loads(run(running, "cluster", "unregister", "2", "--output", "json").stdout)["changed"] is True
    eventually(lambda: "is not registered" in run(running, "cluster", "unregister", "2", expect=2).stderr)
    with Admin(running.client(1)) as admin, pytest.raises(KafkaError) as refused:
        admin.unregister_broker(2)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    run(running, "upgrade", "finalize")
    with Admin(running.client(1)) as admin:
        eventually(lambda: admin.describe_features(1).finalized.get(METADATA) == NEWEST_LEVEL)
    send_all(running, "t", [b"2"])
    running.start_node(2)
    wait_isr(running, "t", {1, 2})
    assert read_all(running, "t") == [b"1", b"2"]
