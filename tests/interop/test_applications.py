"""Whole applications of others, killed: rows of `make interop` which that command has fetched the jars for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.fetched import Unavailable
from interop.__main__ import api_keys
from interop.clients import CLIENTS, Client
from interop.features import CONNECT, STREAMS, TRANSACTIONS, Feature
from interop.results import OK, run_feature
from interop.suite import World

from interop import install
from strandline.cluster.node.dev import DevCluster

pytestmark = pytest.mark.timeout(900)

ROWS = [("streams", each) for each in STREAMS]
ROWS += [("connect", each) for each in CONNECT if "exactly-once" in each.name]
ROWS += [("java-tools", each) for each in TRANSACTIONS]


def at_hand(name: str) -> Client:
    """This client, whose jars must have been fetched before."""
    try:
        if name == "java-tools":
            install.java(fetch=False)
        elif name == "streams":
            install.kafka_jars("kafka-streams", fetch=False, logger=install.CONSOLE)
        else:
            install.kafka_jars("connect-runtime", "connect-file", fetch=False, logger=install.CONSOLE)
    except Unavailable as reason:
        pytest.skip(f"{reason}; `make interop` fetches them")
    return next(each for each in CLIENTS if each.name == name)


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    """Its own: brokers are killed, and the coordinators' memory is deleted."""
    with DevCluster() as running:
        yield running


@pytest.mark.parametrize(("name", "feature"), ROWS, ids=[f"{name}-{feature.name}" for name, feature in ROWS])
def test_row(cluster: DevCluster, name: str, feature: Feature) -> None:
    """Kafka Streams' counts, a source of Kafka Connect, and every command of kafka-transactions."""
    client, bootstrap = at_hand(name), cluster.bootstrap
    start = client.get()
    world = World(bootstrap, api_keys(bootstrap), lambda login: start(bootstrap, login), nodes=cluster)
    try:
        result = run_feature("strandline", client, feature, world)
    finally:
        world.close()
    assert result.outcome == OK, result.reason
