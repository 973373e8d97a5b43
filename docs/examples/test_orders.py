"""A service that survives the crash of a leader: on real processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from orders import TOPIC, OrderService, orders_placed


@pytest.fixture
def service(strandline_cluster: Any) -> Iterator[OrderService]:
    strandline_cluster.create_topic(TOPIC, configs={"min.insync.replicas": "2"})
    service = OrderService(strandline_cluster.bootstrap)
    yield service
    service.close()


def test_orders_survive_the_crash_of_the_leader(strandline_cluster: Any, service: OrderService) -> None:
    cluster = strandline_cluster
    placed = [service.place(f"order {number}") for number in range(10)]

    crashed = cluster.leader(TOPIC)
    cluster.kill(crashed)  # SIGKILL
    placed += [service.place(f"order {number}") for number in range(10, 20)]
    assert orders_placed(cluster.bootstrap) == placed  # none lost, none twice

    cluster.start(crashed)
    cluster.wait_isr(TOPIC)  # it has caught up: all three replicas are in sync


def test_an_order_is_placed_although_replicas_are_missing_for_a_moment(
    strandline_cluster: Any, service: OrderService
) -> None:
    cluster = strandline_cluster
    fault = cluster.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=2, node=cluster.leader(TOPIC))
    service.place("soup")
    cluster.assert_fault_met(fault, times=2)
    assert orders_placed(cluster.bootstrap) == ["soup"]
