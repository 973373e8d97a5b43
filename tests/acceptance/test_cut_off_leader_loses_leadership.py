"""Row S50: a leader that reaches nobody, or that the controller does not reach, loses its leadership."""

from __future__ import annotations

import time

import pytest

from strandline.chaos.live.cluster import LiveCluster
from strandline.client import Admin, NewTopic, Producer
from tests.acceptance.helpers import QUICK, eventually


def make_topic(cluster: LiveCluster) -> tuple[int, int, int]:
    """The topic `cut`, which a node leads that is not the active controller; the leader, the controller, the third."""
    controller = eventually(cluster.controller)
    leader, other = (node for node in cluster.broker_ids if node != controller)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("cut", replica_assignment={0: [leader, controller, other]})])
    cluster.wait_isr("cut")
    return leader, controller, other


@pytest.mark.timeout(120)
def test_a_producer_leaves_a_leader_that_was_cut_off() -> None:
    """Nothing comes from the leader to the controller any more: the others elect. A producer whose only connection is
    to the old leader hears of it from another broker, once a request has timed out: not when the cut is mended."""
    with LiveCluster(settings=QUICK) as cluster:
        leader, controller, other = make_topic(cluster)
        # Its bootstrap list has the leader alone: there it learns of the others.
        with Producer(cluster.client(leader), linger_ms=0, request_timeout_ms=1500) as producer:
            producer.send("cut", b"before").result(20)
            cluster.partition(leader, controller, one_way=True)
            cluster.partition(leader, other, one_way=True)
            began = time.monotonic()
            producer.send("cut", b"during").result(20)
            print(f"acknowledged {time.monotonic() - began:.1f} s after the cut")
            assert cluster.held(leader, controller) > 0
        cluster.heal()
        cluster.wait_isr("cut")


@pytest.mark.timeout(120)
def test_a_leader_that_does_not_hear_the_controller_is_fenced() -> None:
    """Nothing comes from the controller to the leader any more, while its heartbeats arrive. It cannot hear of the ISR
    without the controller, so nothing is acknowledged until its connection to the controller is given up for want of
    an answer (KEEPALIVE_TIME_MS and KEEPALIVE_TIMEOUT_MS, gRPC's own bound being a minute): then the others elect."""
    with LiveCluster(settings=QUICK) as cluster:
        leader, controller, _ = make_topic(cluster)
        with Producer(cluster.client(leader), linger_ms=0, request_timeout_ms=1500) as producer:
            producer.send("cut", b"before").result(20)
            cluster.partition(controller, leader, one_way=True)
            began = time.monotonic()
            producer.send("cut", b"during").result(40)
            print(f"acknowledged {time.monotonic() - began:.1f} s after the cut")
            assert cluster.held(controller, leader) > 0
        cluster.heal()
        cluster.wait_isr("cut")
