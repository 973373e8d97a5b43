"""Survey of the feature levels that the builds of all brokers and voters support, by asking the nodes themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from strandline.controller import methods
from strandline.controller.broker_api import PingRequest, heard
from strandline.controller.metadata.features import KRAFT_FEATURE, NO_LEVELS, Supported
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.messages.method import call
from strandline.proto.ports import Rpc, RpcError

TIMEOUT_MS = 1_000.0
"""Milliseconds to wait for an answer."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node said.

    Attributes:
        incarnation_id: the process that answered.
        release: empty where the build is from before there were levels.
    """

    incarnation_id: UUID
    supported: Supported
    release: str


Survey = Mapping[NodeId, NodeAnswer | str]
"""Node id -> its answer, or the reason why there is none."""


async def survey(rpc: Rpc, nodes: Mapping[NodeId, Endpoint]) -> Survey:
    """Ask all of these nodes at once."""
    answers = await asyncio.gather(*(_ask(rpc, node_id, endpoint) for node_id, endpoint in nodes.items()))
    return dict(zip(nodes, answers, strict=True))


async def why_no_voter(rpc: Rpc, node_id: NodeId, endpoint: Endpoint) -> str:
    """Reason, by the node's own answer, that it cannot become a voter at run time, or ""."""
    answer = await _ask(rpc, node_id, endpoint)
    if isinstance(answer, str):
        return answer
    return "" if 1 in answer.supported.get(KRAFT_FEATURE, NO_LEVELS) else f"its build does not know {KRAFT_FEATURE} 1"


async def _ask(rpc: Rpc, node_id: NodeId, endpoint: Endpoint) -> NodeAnswer | str:
    try:
        reply = await call(rpc, endpoint, methods.PING, PingRequest(), timeout_ms=TIMEOUT_MS)
    except (RpcError, ProtocolError) as error:
        return f"it does not answer at {endpoint}: {error}"
    if reply.node_id != node_id:
        return f"node {reply.node_id} answers at {endpoint}"
    return NodeAnswer(reply.incarnation_id, heard(reply.features), reply.release)
