"""What the coordinator of groups counts, over all of its shards and their lives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounters:
    """Since the process began.

    Attributes:
        offset_commits: offsets that were written; expired and deleted ones were taken back.
        rebalances: generations whose assignment was committed.
        members_expired: members whose session ended.
    """

    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0
    rebalances: int = 0
    members_expired: int = 0
