"""A sample of `make interop`: the Python clients of the dev extra, in this environment, over most of the features.

The other clients, and everything again beside Apache Kafka, are run by the command (docs/interop.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from interop.__main__ import api_keys
from interop.clients import Client, program
from interop.features import FEATURES, Feature
from interop.install import DRIVERS
from interop.results import NOT_SUPPORTED, OK, run_feature
from interop.suite import World

from strandline.cluster.node.dev import DevCluster

DRIVER_FILES = {"confluent": "confluent.py", "aiokafka": "aiokafka_driver.py"}
LACKING = {
    "confluent": set(),
    "aiokafka": {
        "group: cooperative rebalance",
        "group: delete",
        "group: KIP-848 protocol",
        "errors: groups",
    },
}
"""What these clients have no call for."""

ONCE = {"acks=1", "codec none"}
"""One client is enough for these."""

SAMPLE = [
    (client, feature)
    for client in DRIVER_FILES
    for feature in FEATURES
    if client == "confluent" or feature.name not in ONCE
    if 68 not in feature.needs  # the KIP-848 protocol has tests of its own
]


def local(name: str) -> Client:
    """The client as this environment has it."""
    return Client(name, lambda: program([sys.executable, str(DRIVERS / DRIVER_FILES[name])]))


@pytest.fixture(scope="module")
def worlds(cluster: DevCluster) -> Iterator[dict[str, World]]:
    """Each client's process, kept from feature to feature."""
    served = api_keys(cluster.bootstrap)
    starts = {name: local(name).get() for name in DRIVER_FILES}
    made = {
        name: World(cluster.bootstrap, served, lambda login, start=start: start(cluster.bootstrap, login))  # type: ignore[misc]
        for name, start in starts.items()
    }
    yield made
    for world in made.values():
        world.close()


@pytest.mark.parametrize(("name", "feature"), SAMPLE, ids=[f"{name}-{feature.name}" for name, feature in SAMPLE])
def test_feature(worlds: dict[str, World], name: str, feature: Feature) -> None:
    """A client that somebody already has works as it is (rows S52, S55 to S63, S68, S102)."""
    result = run_feature("strandline", local(name), feature, worlds[name])
    expected = NOT_SUPPORTED if feature.name in LACKING[name] else OK
    assert result.outcome == expected, result.reason
