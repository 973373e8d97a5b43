"""The cluster that the rows about faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rows.faults import FaultyCluster


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
