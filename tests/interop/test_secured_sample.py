"""A sample of `make interop SECURITY=...`: aiokafka at each level, over what only a secured cluster refuses.

The other clients, and the whole table again, are run by the command (docs/interop.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.clusters import wait_ready
from interop.__main__ import START_TIMEOUT_S, api_keys
from interop.clients import Client
from interop.logins import admin_login, tls_context
from interop.results import OK, run_feature
from interop.security import LEVELS, SecuredCluster
from interop.suite import World

from tests.interop.test_sample import local


@pytest.fixture(params=LEVELS[1:])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(level: str) -> Iterator[World]:
    """The client's, on a cluster of its own."""
    cluster = SecuredCluster(level)
    cluster.start()
    try:
        wait_ready(cluster.bootstrap, START_TIMEOUT_S)
        served = api_keys(cluster.bootstrap, tls_context(admin_login()))
        start = local("aiokafka").get()
        made = World(cluster.bootstrap, served, lambda login: start(cluster.bootstrap, login), cluster.authority())
        yield made
        made.close()
    finally:
        cluster.stop()


def test_access(level: str, world: World) -> None:
    """Who may not come in is told why, rights end at once, and credentials change without a lost record."""
    client: Client = local("aiokafka").at(level)
    features = [each for each in client.features if each.name.startswith("access: ") or each.name == "acks=all"]
    outcomes = {each.name: run_feature("strandline", client, each, world) for each in features}
    wrong = {name: told.reason for name, told in outcomes.items() if told.outcome != OK}
    if level == "mtls":  # it does not pass TLS's alerts on
        wrong = {name: reason for name, reason in wrong.items() if "does not say why" not in reason}
    assert wrong == {}
    assert len(outcomes) >= 8
