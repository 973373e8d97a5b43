"""Examination of a live cluster for `strandline doctor`, within a bounded time; what did not answer is reported as
unchecked.

It is needed most during outages. So all brokers are asked at the same time, each over its own connection, and a dead,
silent or fenced broker does not prevent findings on others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from strandline.client.aio.admin import Admin
from strandline.client.errors import BrokerUnreachable, ClientTimeout, ManyErrors
from strandline.client.types import ConfigEntry, ConfigResource, NodeInfo, TopicDescription
from strandline.cluster.node.doctor import (
    UNCHECKED,
    Finding,
    judge_crowds,
    judge_effects,
    judge_quorum,
    judge_settings,
    judge_topic,
)
from strandline.proto.errors import StrandlineError

REQUEST_MS = 3_000
"""Timeout in ms of one request to one broker; then the next broker is asked."""

QUESTION_MS = 10_000
"""Timeout in ms of one question, over all brokers that may answer it."""


async def examine(bootstrap: str, settings: Mapping[str, Any]) -> list[Finding]:
    """Return all findings on the cluster, including those on what could not be checked.

    Args:
        settings: settings of the admin clients, with timeouts such as those above.

    Raises:
        StrandlineError: no broker answers.
    """
    async with Admin(bootstrap, clock=None, rng=None, **settings) as admin:
        described = await admin.describe_cluster()
        found = await asyncio.gather(
            _quorum(admin),
            _topics(admin, len(described.nodes)),
            *(_broker(node, settings, len(described.nodes)) for node in described.nodes),
        )
    of_quorum, of_topics, *of_brokers = found
    return [*of_quorum, *(finding for one in of_brokers for finding in one), *of_topics]


async def _topics(admin: Admin, brokers: int) -> list[Finding]:
    try:
        topics = await admin.describe_topics(None, include_internal=True)
        configs = await _configs_of(admin, topics)
    except StrandlineError as error:
        return [_unchecked("topics", error, "whether they have leaders, replicas in sync and safe settings")]
    replicas = Counter(node for topic in topics for part in topic.partitions for node in part.replicas)
    found = list(judge_crowds(brokers, replicas))
    for topic in topics:
        entries = configs.get(topic.name, [])  # none for one that was deleted a moment ago
        found += judge_topic(topic, _values(entries))
        if not topic.is_internal:
            own = [entry for entry in entries if entry.source == "DYNAMIC_TOPIC_CONFIG"]
            found += judge_effects(f"topic {topic.name}", _values(own), topic=True)
    return found


async def _quorum(admin: Admin) -> list[Finding]:
    try:
        quorum = await admin.describe_quorum()
    except StrandlineError as error:
        return [_unchecked("quorum", error, "how many controllers there are, and who of them leads")]
    return list(judge_quorum(len(quorum.voters)))


async def _broker(node: NodeInfo, settings: Mapping[str, Any], brokers: int) -> list[Finding]:
    """Return the findings on a broker's settings, asked of that broker over a separate connection."""
    where, resource = f"broker {node.node_id}", ConfigResource("broker", str(node.node_id))
    once = {**settings, "default_api_timeout_ms": settings["request_timeout_ms"]}
    try:
        async with Admin(f"{node.host}:{node.port}", clock=None, rng=None, **once) as admin:
            entries = (await admin.describe_configs([resource]))[resource]
    except StrandlineError as error:
        return [_unchecked(where, error, "whether its settings are safe", f"{node.host}:{node.port}", node.fenced)]
    found = list(judge_settings(where, _values(entries), brokers=brokers))
    return found + list(judge_effects(where, _values(entry for entry in entries if not entry.is_default), topic=False))


async def _configs_of(admin: Admin, topics: list[TopicDescription]) -> dict[str, list[ConfigEntry]]:
    resources = [ConfigResource("topic", topic.name) for topic in topics]
    try:
        found = await admin.describe_configs(resources)
    except ManyErrors as error:
        found = error.results
    return {resource.name: entries for resource, entries in found.items()}


def _values(entries: Iterable[ConfigEntry]) -> dict[str, str]:
    return {entry.name: entry.value for entry in entries if entry.value is not None}


def _unchecked(
    where: str, error: StrandlineError, what: str, address: str | None = None, fenced: bool = False
) -> Finding:
    cause = error.last_error or error if isinstance(error, ClientTimeout) else error
    reason = cause.reason if isinstance(cause, BrokerUnreachable) else str(cause)
    state = "not reached" if address is None else f"not reached at {address}"
    if fenced:
        state += ", and fenced"
    remedy = "strandline cluster describe and strandline quorum describe say more; run doctor again when it is back"
    return Finding(where, f"{state}: {reason}", what, remedy, UNCHECKED)
