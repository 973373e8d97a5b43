"""The node that is attacked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import make_topic

BUDGET_MIB = 64
"""For all that clients can make the node hold: less than a node has by default, so that little is enough to fill it."""


@pytest.fixture(scope="package")
def victim() -> Iterator[DevCluster]:
    """One node, of its own process, with a topic `t` of four partitions."""
    with DevCluster(nodes=1, settings={"queued.max.request.bytes": str(BUDGET_MIB << 20)}) as cluster:
        make_topic(cluster, "t", partitions=4)
        yield cluster
