"""Which stored topic is meant, and how many partitions it has, where the store leaves that open (rule B25)."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.log.tier.chains import chain_of
from strandline.log.tier.restoring import StoredTopic
from strandline.tools.tier_restore import TierRestoreRefused, choose, partitions_of
from tests.log.tier.test_chains import stored

ID, OTHER_ID = UUID(int=1), UUID(int=2)


def topic(cluster_id: str, topic_id: UUID = ID, *bases: int, partitions: tuple[int, ...] = (0,)) -> StoredTopic:
    chain = chain_of([stored(base, base + 10) for base in bases or (0, 10)], [])
    return StoredTopic(cluster_id, "t", topic_id, dict.fromkeys(partitions, chain))


def chosen(*found: StoredTopic, topic_id: UUID | None = None, cluster_id: str | None = None) -> StoredTopic:
    return choose(found, "new", topic_id=topic_id, cluster_id=cluster_id)


def test_the_only_one_is_meant() -> None:
    for cluster_id in ("old", "new"):
        only = topic(cluster_id)
        assert chosen(only) is only


def test_several_are_listed() -> None:
    """A topic that was deleted and made again, and two clusters with the same one."""
    first, second, elsewhere = topic("old"), topic("old", OTHER_ID), topic("older")
    with pytest.raises(TierRestoreRefused, match=f"(?s){ID}.*{OTHER_ID}.*--topic-id"):
        chosen(first, second)
    assert chosen(first, second, topic_id=OTHER_ID) is second
    with pytest.raises(TierRestoreRefused, match="--cluster-id"):
        chosen(first, elsewhere)
    assert chosen(first, elsewhere, cluster_id="older") is elsewhere


def test_nothing_is_there() -> None:
    with pytest.raises(TierRestoreRefused, match="nothing of the topic"):
        chosen()
    with pytest.raises(TierRestoreRefused, match=str(ID)):
        chosen(topic("old"), topic_id=OTHER_ID)


def test_a_copy_that_was_begun_is_no_topic_of_its_own() -> None:
    """But one that has more than it was copied from has a history of its own."""
    old, begun, grown = topic("old"), topic("new", ID, 0), topic("new", ID, 0, 10, 20)
    assert chosen(begun, old) is old
    with pytest.raises(TierRestoreRefused, match="several"):
        chosen(grown, old)


def test_how_many_partitions() -> None:
    """The store knows nothing of those of which nothing was copied; the end is open, and a hole is asked about."""
    assert partitions_of(topic("old", partitions=(0, 1)), None) == 2
    assert partitions_of(topic("old", partitions=(0, 1)), 5) == 5
    with pytest.raises(TierRestoreRefused, match="at least"):
        partitions_of(topic("old", partitions=(0, 1)), 1)
    with pytest.raises(TierRestoreRefused, match=r"partition\(s\) 1, 2 .*--partitions 4"):
        partitions_of(topic("old", partitions=(0, 3)), None)
    assert partitions_of(topic("old", partitions=(0, 3)), 4) == 4
