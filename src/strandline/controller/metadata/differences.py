"""What changed between two images that share no history."""

from __future__ import annotations

from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.quotas import changed_quotas
from strandline.controller.metadata.scram import changed_credentials
from strandline.controller.metadata.tiers import changed_deletions, changed_tiers


def diff(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """What changed between two images that share no history, as after the load of a snapshot.

    The result's `base` is `old`; it describes, and must not be applied further.
    """
    delta = MetadataDelta(old)
    delta.metadata_version = new.metadata_version
    delta.features = new.features
    delta.next_producer_id = new.next_producer_id
    for topic_id, topic in old.topic_by_id.items():
        if topic_id not in new.topic_by_id:
            delta.deleted_topics[topic_id] = topic
    for topic_id, topic in new.topic_by_id.items():
        before = old.topic_by_id.get(topic_id)
        if before is None:
            delta.created_topics[topic_id] = None
        known = {} if before is None else before.partitions
        changed = {number: None for number, info in topic.partitions.items() if known.get(number) != info}
        if changed:
            delta.partitions[topic_id] = changed
    for node_id in {**old.brokers, **new.brokers}:
        if old.brokers.get(node_id) != new.brokers.get(node_id):
            delta.brokers[node_id] = new.brokers.get(node_id)
    for resource in {**old.configs, **new.configs}:
        was, now = old.config(resource), new.config(resource)
        keys = {key: None for key in {**was, **now} if was.get(key) != now.get(key)}
        if keys:
            delta.configs[resource] = keys
    delta.scram.changed = changed_credentials(old.scram, new.scram)
    delta.quotas.changed = changed_quotas(old.quotas, new.quotas)
    delta.tiers.changed = changed_tiers(old.tiering, new.tiering, new.topic_by_id)
    delta.tiers.changed_deleted = changed_deletions(old.tiering, new.tiering)
    delta.acls = dict.fromkeys((binding for binding in old.acls if binding not in new.acls), False)
    delta.acls |= dict.fromkeys((binding for binding in new.acls if binding not in old.acls), True)
    return delta
