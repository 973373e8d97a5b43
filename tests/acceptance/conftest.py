"""The cluster that the rows about faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.chaos.live.cluster import LiveCluster
from tests.acceptance.faults import FaultyCluster
from tests.acceptance.helpers import QUICK


@pytest.fixture(scope="package")
def _faulty_processes() -> Iterator[FaultyCluster]:
    cluster = FaultyCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def faulty(_faulty_processes: FaultyCluster) -> FaultyCluster:
    """Three brokers and three controllers to be paused and killed; healed before each test that uses them."""
    _faulty_processes.heal()
    return _faulty_processes


@pytest.fixture(scope="module")
def split() -> Iterator[LiveCluster]:
    """Three brokers, three controllers, cables between them; each test leaves all of them running and connected."""
    with LiveCluster(nodes=3, controllers=3, settings=QUICK) as cluster:
        yield cluster
