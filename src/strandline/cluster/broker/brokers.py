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
"""Milliseconds after its fencing for which a broker is still named to clients."""

DOUBT_MS = 1000
"""Milliseconds for which a leader is in doubt after its replication stream broke. By then it has been fenced, or it
lives and only our link to it is broken."""

LOOK_MS = 20.0
"""Milliseconds between checks whether a leader in doubt has been replaced. A client that has just lost its leader asks
for metadata at once, some milliseconds before this broker knows of the loss; librdkafka that gets the old leader asks
again only a second later. So the answer waits for one check, and while the leader is in doubt for the new leader."""

SETTLE_MS_MAX = 500.0
"""Milliseconds within which a leader that has just vanished is replaced or fenced, or turns out to live."""

NODE_ENDPOINTS_TAG = 0


class DescribedBroker(NamedTuple):
    """A broker with its endpoint on the listener that the request came through."""

    node_id: NodeId
    endpoint: Endpoint
    rack: str | None
    fenced: bool


class Brokers:
    """Brokers as the metadata image has them, and leaders that this broker has lost contact with since."""

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
        """Endpoint of a broker on a listener; None: the broker is unknown or fenced, or does not have the listener."""
        broker = self._image().brokers.get(NodeId(node_id))
        return None if broker is None or broker.fenced else broker.listeners.get(listener)

    def live_brokers(self, context: RequestContext, *, with_fenced: bool = False) -> list[DescribedBroker]:
        """Return the brokers that have the request's listener, sorted by node id; `with_fenced`: fenced ones too."""
        image = self._image()
        described = []
        for node_id in sorted(image.brokers):
            broker = image.brokers[node_id]
            endpoint = broker.listeners.get(context.peer.listener)
            if endpoint is not None and (with_fenced or not broker.fenced):
                described.append(DescribedBroker(node_id, endpoint, broker.rack, broker.fenced))
        return described

    def known_brokers(self, context: RequestContext) -> list[DescribedBroker]:
        """Return the live brokers and those fenced for at most `FORGET_FENCED_MS`. Clients drop a broker that metadata
        do not list any more, and librdkafka (2.16) then waits a second before it looks for new leaders of that broker's
        partitions."""
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
        """Return leaders whose stream to this broker broke in the last `DOUBT_MS`: they may have died."""
        return self._replicas.lost_leaders(DOUBT_MS)

    def controller_id(self, context: RequestContext) -> NodeId:
        """Node id of the broker to which clients should send admin requests.

        Every broker forwards them to the controller, so any live one will do (as in Kafka's KRaft); the quorum's leader
        saves a hop if it is a broker too. If all are fenced, as during a start, this broker is named, because
        librdkafka (2.16) that gets no controller waits for one until its request times out.
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
        """Return the tagged fields at the end of a response with the endpoints of `leaders` (KIP-951). Ids below 0 and
        leaders that cannot be reached are left out."""
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
    """Return whether the broker is registered, not fenced, and has the listener."""
    return broker is not None and not broker.fenced and listener in broker.listeners


def offline_replicas(image: MetadataImage, partition: PartitionRecord, listener: str) -> list[NodeId]:
    """Return the replicas of a partition on brokers that are not `reachable`."""
    return [node for node in partition.replicas if not reachable(image.brokers.get(node), listener)]
