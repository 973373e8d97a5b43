"""What tests of several folders share: a cluster of real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.cluster.dev import DevCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    """Three combined nodes for tests that break nothing; each test uses topics of its own."""
    with DevCluster() as running:
        yield running
