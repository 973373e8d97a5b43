"""Brokers and leaders as the clients of one listener see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from strandline.cluster.broker.request import RequestContext
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord, RegisterBrokerRecord
from strandline.controller.quorum.api import QuorumView
from strandline.proto.ids import NO_NODE, Endpoint, NodeId
from strandline.proto.kafka.fields import INT32, NO_TAGS, array_head, nullable_string, string, tag_section, tagged_field
from strandline.proto.ports import Clock
from strandline.replica.manager import ReplicaManager

FORGET_FENCED_MS = 60_000
"""How long after its fencing a broker is still named to clients."""

DOUBT_MS = 1000
"""A leader whose stream broke is doubted for so long: it is fenced by then, or lives behind a broken link of ours."""

LOOK_MS = 20.0
"""How often is looked whether a leader in doubt has been replaced. A client that has just lost its leader asks at once
where the partitions are now, some milliseconds before this broker knows: answered with the old leader, librdkafka looks
again only a second later. So the answer waits for a look, and while the leader is in doubt for the new one."""

SETTLE_MS_MAX = 500.0
"""A leader that vanished just now is replaced, or fenced, or lives after all, within this time."""

NODE_ENDPOINTS_TAG = 0


class DescribedBroker(NamedTuple):
    """A broker with its endpoint on the asker's listener."""

    node_id: NodeId
    endpoint: Endpoint
    rack: str | None
    fenced: bool


class Brokers:
    """Brokers as the image has them, and what this broker has seen of leaders since."""

    def __init__(
        self,
        node_id: NodeId,
        image: Callable[[], MetadataImage],
        quorum: QuorumView,
        replicas: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._quorum = quorum
        self._replicas = replicas
        self._clock = clock
        self._fenced_since: dict[NodeId, float] = {}

    def endpoint_of(self, node_id: int, listener: str) -> Endpoint | None:
        """Endpoint at which clients of a listener reach a live broker; None: there is none."""
        broker = self._image().brokers.get(NodeId(node_id))
        return None if broker is None or broker.fenced else broker.listeners.get(listener)

    def live_brokers(self, context: RequestContext, *, with_fenced: bool = False) -> list[DescribedBroker]:
        """The brokers that clients of the asker's listener can reach, by node id."""
        image = self._image()
        described = []
        for node_id in sorted(image.brokers):
            broker = image.brokers[node_id]
            endpoint = broker.listeners.get(context.peer.listener)
            if endpoint is not None and (with_fenced or not broker.fenced):
                described.append(DescribedBroker(node_id, endpoint, broker.rack, broker.fenced))
        return described

    def known_brokers(self, context: RequestContext) -> list[DescribedBroker]:
        """The live brokers, and those that were fenced a moment ago: a client drops a broker that is not named any
        more, and librdkafka (2.16) then holds back that broker's partitions for a second before it looks where they
        have gone."""
        now_ms = self._clock.monotonic_ms()
        known = []
        for broker in self.live_brokers(context, with_fenced=True):
            if not broker.fenced:
                self._fenced_since.pop(broker.node_id, None)
            elif now_ms - self._fenced_since.setdefault(broker.node_id, now_ms) > FORGET_FENCED_MS:
                continue
            known.append(broker)
        return known

    def doubtful_leaders(self) -> list[NodeId]:
        """Leaders that may have died in the last moments, though the metadata do not say so yet."""
        return self._replicas.lost_leaders(DOUBT_MS)

    def controller_id(self, context: RequestContext) -> NodeId:
        """Node id of the broker to which clients should send admin requests.

        Every broker passes them on, so any live one will do (as with Kafka's KRaft); the quorum's leader saves a hop
        where it is a broker too. While all are fenced, during a start, it is this one, which answers after all:
        librdkafka (2.16) that was named nobody waits for a controller until its request has timed out.
        """
        leader = self._quorum.leader_and_epoch.leader_id
        live = [broker.node_id for broker in self.live_brokers(context)]
        if leader is not None and leader in live:
            return leader
        if live:
            return live[0]
        own = self._image().brokers.get(self._node_id)
        return self._node_id if own is not None and context.peer.listener in own.listeners else NO_NODE

    def node_endpoints(self, context: RequestContext, leaders: Iterable[int]) -> bytes:
        """KIP-951, the tagged fields that end an answer: the endpoints of `leaders` (below 0: none), if there are
        any."""
        entries = []
        for leader in sorted({leader for leader in leaders if leader >= 0}):
            endpoint = self.endpoint_of(leader, context.peer.listener)
            if endpoint is not None:
                rack = self._image().brokers[NodeId(leader)].rack
                entries.append(
                    INT32.pack(leader)
                    + string(endpoint.host, True)
                    + INT32.pack(endpoint.port)
                    + nullable_string(rack, True)
                    + NO_TAGS
                )
        if not entries:
            return NO_TAGS
        return tag_section([tagged_field(NODE_ENDPOINTS_TAG, array_head(len(entries), True) + b"".join(entries))])


def reachable(broker: RegisterBrokerRecord | None, listener: str) -> bool:
    """The broker lives and has the listener."""
    return broker is not None and not broker.fenced and listener in broker.listeners


def offline_replicas(image: MetadataImage, partition: PartitionRecord, listener: str) -> list[NodeId]:
    """The replicas on brokers that cannot be reached."""
    return [node for node in partition.replicas if not reachable(image.brokers.get(node), listener)]
