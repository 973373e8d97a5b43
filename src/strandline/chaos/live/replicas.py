"""Check after a run: what every replica holds below the high watermark is the same bytes (rule E2)."""

from __future__ import annotations

from strandline.chaos.checkers.history import Partition
from strandline.chaos.demo.checks import CheckFailed
from strandline.chaos.live.target import ChaosTarget, client_settings, pause
from strandline.client import Admin
from strandline.client.types import LATEST
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import TopicPartition

TRIES = 20
PAUSE_S = 0.25


def compare(target: ChaosTarget, partitions: list[Partition]) -> list[str]:
    """The partitions whose replicas differ, a sentence each. Nothing is being written any more.

    Asked again for a few seconds while they differ: a follower may be writing the last batch, and a leader that was
    replaced may not have heard of it yet and name an older end.
    """
    for attempt in range(TRIES):
        if attempt:
            pause(PAUSE_S)
        found = _compare(target, partitions)
        if not found:
            break
    return found


def _compare(target: ChaosTarget, partitions: list[Partition]) -> list[str]:
    with Admin(target.bootstrap, **client_settings(target.client_properties)) as admin:
        places: dict[TopicPartition | tuple[str, int], int] = {
            TopicPartition(where.topic, where.number): LATEST for where in partitions
        }
        ends = {place: listed.offset for place, listed in admin.list_offsets(places).items()}
        replicas = {
            TopicPartition(topic.name, part.partition): part.replicas
            for topic in admin.describe_topics({where.topic: None for where in partitions})
            for part in topic.partitions
        }
    found = []
    for place, end in ends.items():
        digests = {node: _digest(target, node, place, end) for node in replicas[place]}
        if len(set(digests.values())) != 1:
            found.append(f"IdenticalReplicas: {place.topic}-{place.partition} differs below offset {end}: {digests}")
    return found


def _digest(target: ChaosTarget, node: int, place: TopicPartition, end: int) -> str:
    """Digest of what a replica holds, or why it cannot be told."""
    try:
        digest, length = target.digest(node, place.topic, place.partition, end)
    except (CheckFailed, StrandlineError) as failed:
        return str(failed)
    return f"{digest[:16]} ({length} bytes)"
