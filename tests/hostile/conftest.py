"""The node that is attacked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.cluster.dev import DevCluster
from tests.rows.helpers import make_topic


@pytest.fixture(scope="package")
def victim() -> Iterator[DevCluster]:
    """One node, of its own process, with a topic `t` of four partitions."""
    with DevCluster(nodes=1) as cluster:
        make_topic(cluster, "t", partitions=4)
        yield cluster
