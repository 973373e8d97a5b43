"""Brokers and controllers as processes of their own, a proxy before each broker: what rows break things on."""

from __future__ import annotations

import re
from functools import partial

from strandline.client import Admin
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually
from tests.acceptance.proxy import PRODUCE, KafkaProxy, TcpProxy

_SETTINGS = {
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
    "leader.imbalance.check.interval.seconds": "1",
}


class FaultyCluster:
    """Brokers 1 to 3, controllers 101 to 103; clients come through `proxies`, whose addresses the brokers advertise.

    The other brokers reach broker 1 through `cable`.
    """

    def __init__(self) -> None:
        self.proxies = {node: KafkaProxy() for node in (1, 2, 3)}
        self.cable = TcpProxy()
        advertised = {
            node: {"advertised.listeners": f"PLAINTEXT://{proxy.address}"} for node, proxy in self.proxies.items()
        }
        advertised[1]["advertised.listeners"] += f",INTERNAL://{self.cable.address}"
        self.nodes = DevCluster(nodes=3, controllers=3, settings=_SETTINGS, node_settings=advertised)

    def start(self) -> None:
        """Start the processes, aim the proxies."""
        self.nodes.start(wait=False)
        for node, proxy in self.proxies.items():
            proxy.target = _host_and_port(self.nodes.client(node))
        settings = (self.nodes.root / "node-1.properties").read_text()
        [internal] = re.findall(r"^listeners=.*INTERNAL://([^,\s]+)", settings, re.MULTILINE)
        self.cable.target = _host_and_port(internal)
        self.nodes.wait_ready()

    def close(self) -> None:
        """Stop everything; brokers first, which ask the controllers to let them go."""
        for node in self.nodes.broker_ids:
            self.nodes.resume(node)
            self.nodes.stop_node(node)
        self.nodes.stop()
        for proxy in (*self.proxies.values(), self.cable):
            proxy.close()

    @property
    def bootstrap(self) -> str:
        """The proxies' addresses."""
        return ",".join(proxy.address for proxy in self.proxies.values())

    def address_of(self, *nodes: int) -> str:
        """Where clients reach these brokers: the proxies, but for those that were added later and have none."""
        return ",".join(
            self.proxies[node].address if node in self.proxies else self.nodes.client(node) for node in nodes
        )

    def produce_requests(self) -> int:
        """Produce requests that came through the proxies since `heal`."""
        return sum(proxy.requests[PRODUCE] for proxy in self.proxies.values())

    def heal(self) -> None:
        """Undo pauses, kills and the proxies' faults; returns when every broker serves and every replica is in sync."""
        for proxy in (*self.proxies.values(), self.cable):
            proxy.reset()
        for node in self.nodes.node_ids:
            self.nodes.resume(node)
        dead = [node for node in self.nodes.node_ids if node not in self.nodes.pids()]
        for node in dead:
            self.nodes.start_node(node, wait=False)
        self.nodes.wait_ready(dead)
        # Each for itself: one that stood still goes on telling for a moment what was before.
        for proxy in self.proxies.values():
            with Admin(proxy.address) as admin:
                eventually(partial(_all_in_sync, admin))


def _all_in_sync(admin: Admin) -> bool:
    for topic in admin.describe_topics(admin.list_topics()):
        for part in topic.partitions:
            assert len(part.isr) == len(part.replicas), f"{topic.name}-{part.partition}: {part}"
            assert part.leader == part.replicas[0], f"{topic.name}-{part.partition}: {part}"
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
