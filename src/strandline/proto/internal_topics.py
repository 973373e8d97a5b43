"""The topics that the cluster itself makes and writes: Kafka's `Topic.INTERNAL_TOPICS`, and the audit."""

from __future__ import annotations

from strandline.proto.audit import AUDIT_TOPIC

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state", AUDIT_TOPIC)
"""Their names. Consumers that subscribe by a pattern leave them out."""


def how_to_make(topic: str) -> str:
    """Advice for a topic that does not exist, as the second half of a sentence: the command that creates it."""
    if topic in INTERNAL_TOPICS:
        return "the cluster makes this topic of its own with the first record that belongs there: do not create it"
    return f"create it with: strandline topic create {topic} --partitions 3"
