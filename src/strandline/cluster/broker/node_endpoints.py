"""KIP-951: where the leaders are that an answer points to."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.cluster.broker.service.context import RequestContext
from strandline.proto.ids import NodeId
from strandline.proto.kafka.fields import INT32, NO_TAGS, array_head, nullable_string, string, tag_section, tagged_field

NODE_ENDPOINTS_TAG = 0


def node_endpoints(service: BrokerService, context: RequestContext, leaders: Iterable[int]) -> bytes:
    """The tagged-field section that ends an answer: the endpoints of `leaders` (below 0: none), if there are any."""
    entries = []
    for leader in sorted({leader for leader in leaders if leader >= 0}):
        endpoint = service.endpoint_of(leader, context.peer.listener)
        if endpoint is not None:
            rack = service.image().brokers[NodeId(leader)].rack
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
