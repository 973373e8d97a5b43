"""A topic whose cluster is gone, made again of what tiered storage has of it, each record under the offset that it had.

The topic gets the id that it had. Its objects are taken as they are where they lie under the new cluster's own id, and
copied there otherwise: no cluster ever touches what lies under the id of another. The cluster then creates the topic
with all of it in one step. What was cut short before that goes on when it is repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.client.admin import Admin
from strandline.client.errors import ClientError, UnknownTopic
from strandline.client.types import EARLIEST, LATEST, NewTopic
from strandline.log.tier.chains import Chain
from strandline.log.tier.restoring import ALLOW_LOSS, TOPIC_ID, StoredTopic
from strandline.proto.ids import TopicId

MEANWHILE = {"remote.storage.enable": "true", "retention.ms": "-1"}
"""Settings that the topic gets unless others are given. The settings that it had are in no store, and the default of
retention.ms would delete what was restored because it is old."""

LOOK_S = 0.2
"""Seconds between two checks whether the leaders have begun."""


class TierRestoreRefused(ClientError):
    """The contents of the store, or of the cluster, do not allow the restore. Nothing was created."""


class TierRestoreFailed(ClientError):
    """The topic was created, and does not hold what was in the store."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Topic to create.

    Attributes:
        replication: replicas of each partition; -1: as the brokers have it.
        configs: its own settings.
        allow_loss: what cannot be restored is left out.
    """

    partitions: int
    replication: int
    configs: Mapping[str, str]
    allow_loss: bool


def choose(
    found: Sequence[StoredTopic], own_cluster: str, *, topic_id: TopicId | None, cluster_id: str | None
) -> StoredTopic:
    """The one that is meant. What an earlier attempt has copied for the own cluster is not another topic.

    Raises TierRestoreRefused: there is none, or more than one.
    """
    meant = [one for one in found if topic_id in (None, one.topic_id) and cluster_id in (None, one.cluster_id)]
    if not meant:
        there = f" (only {_listed(found)})" if found else ""
        raise TierRestoreRefused(f"nothing of the topic is in the store{there}: `strandline tier list` shows what is")
    others = [one for one in meant if not _is_begun_copy(one, meant, own_cluster)]
    if len(others) > 1:
        raise TierRestoreRefused(
            f"several topics of this name are in the store: {_listed(others)}. Say --topic-id, and where two clusters "
            "have the same, --cluster-id"
        )
    return others[0]


def _is_begun_copy(one: StoredTopic, among: Sequence[StoredTopic], own_cluster: str) -> bool:
    return one.cluster_id == own_cluster and any(
        one is not other and one.topic_id == other.topic_id and one.segment_ids <= other.segment_ids for other in among
    )


def _listed(topics: Sequence[StoredTopic]) -> str:
    return "; ".join(
        f"topic id {one.topic_id} of cluster {one.cluster_id}, {len(one.chains)} partition(s), "
        f"{sum(chain.end_offset - chain.start_offset for chain in one.chains.values())} offsets"
        for one in topics
    )


def partitions_of(stored: StoredTopic, given: int | None) -> int:
    """Number of partitions of the new topic: the store knows only those of which something was copied.

    Raises TierRestoreRefused: some in between have nothing and nobody has said how many there are; or fewer are given.
    """
    least = max(stored.chains) + 1
    if given is not None:
        if given < least:
            raise TierRestoreRefused(
                f"partition {least - 1} is in the store: the topic has {least} partitions at least"
            )
        return given
    missing = [str(number) for number in range(least) if number not in stored.chains]
    if missing:
        raise TierRestoreRefused(
            f"partition(s) {', '.join(missing)} have nothing in the store. If that is right, for nothing of them was "
            f"ever copied, say how many partitions the topic has, as --partitions {least}"
        )
    return least


def is_there(admin: Admin, stored: StoredTopic) -> bool:
    """Whether the very topic is there already. Raises TierRestoreRefused: another one of its name is."""
    try:
        [told] = admin.describe_topics([stored.topic])
    except UnknownTopic:
        return False
    if told.topic_id != stored.topic_id:
        raise TierRestoreRefused(
            f"topic {stored.topic} is there already, with the id {told.topic_id}: what is in the store, of the topic "
            f"{stored.topic_id}, cannot be joined to it. Delete it first, if nobody needs it"
        )
    return True


def check(admin: Admin, stored: StoredTopic, wanted: Wanted) -> None:
    """Check that the topic can be restored. Raises TierRestoreRefused if a part cannot be and that is not allowed, or
    KafkaError if the cluster would not create the topic."""
    refusal = stored.refusal()
    if refusal and not wanted.allow_loss:
        raise TierRestoreRefused(f"{refusal}. --allow-loss restores the rest; --dry-run with it shows all")
    _create(admin, stored, wanted, dry_run=True)


def create(admin: Admin, stored: StoredTopic, wanted: Wanted) -> None:
    """Create the topic from what lies in the cluster's store under its own id. Raises KafkaError."""
    _create(admin, stored, wanted, dry_run=False)


def _create(admin: Admin, stored: StoredTopic, wanted: Wanted, *, dry_run: bool) -> None:
    asked = {TOPIC_ID: str(stored.topic_id), **({ALLOW_LOSS: "true"} if wanted.allow_loss else {})}
    new = NewTopic(stored.topic, wanted.partitions, wanted.replication, {**wanted.configs, **asked})
    admin.create_topics([new], validate_only=dry_run)


def wait_until_served(admin: Admin, stored: StoredTopic, timeout_s: float) -> None:
    """Return once every partition begins and ends where it did in the store.

    Raises TierRestoreFailed: one does not, after so long.
    """
    idle = threading.Event()
    for _ in range(int(timeout_s / LOOK_S)):
        if not (differing := _differing(admin, stored)):
            return
        idle.wait(LOOK_S)
    raise TierRestoreFailed(f"the topic was created, and after {timeout_s:g} s {differing}")


def _differing(admin: Admin, stored: StoredTopic) -> str:
    places = {(stored.topic, number): chain for number, chain in stored.chains.items()}
    try:
        first = admin.list_offsets(dict.fromkeys(places, EARLIEST))
        last = admin.list_offsets(dict.fromkeys(places, LATEST))
    except UnknownTopic as error:
        return str(error)
    for place, found in first.items():
        chain: Chain = stored.chains[place.partition]
        if found.offset != chain.start_offset or last[place].offset < chain.end_offset:
            return (
                f"{place} holds offsets {found.offset} to {last[place].offset} instead of {chain.start_offset} to "
                f"{chain.end_offset}"
            )
    return ""
