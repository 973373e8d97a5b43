"""Reconciliation of one member with its target assignment: revoke, acknowledge, take over. No I/O.

    STABLE      the member has the target's epoch: nothing to do
                new target, the member owns too much -> UNREVOKED at its old epoch, until it acknowledges the revocation
                new target otherwise                 -> STABLE or UNRELEASED at the target's epoch
    UNREVOKED   the member owns nothing any more of what it has to revoke -> as above, one epoch later
    UNRELEASED  other members may have released what it waits for -> it takes that over; or there is a new target

No partition is assigned to two members: it is free once its owner acknowledged its revocation or has left the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strandline.proto.ids import TopicId
from strandline.proto.kafka.consumer_group_records import (
    Assignment,
    Current,
    MemberState,
    sorted_assignment,
)

Partition = tuple[TopicId, int]


def pairs(assignment: Assignment) -> dict[Partition, None]:
    """Return the partitions of an assignment one by one, in order."""
    return {(topic_id, number): None for topic_id, numbers in assignment.items() for number in numbers}


def reconcile(
    current: Current,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_taken: Callable[[Partition], bool],
) -> Current:
    """Return the assignment of the member after this heartbeat.

    Args:
        owned: partitions that the member reports to own; None if it reports none, which acknowledges nothing.
        is_taken: returns whether another member has the partition.
    """
    way = _Way(target_epoch, target, owned, is_taken)
    if current.state is MemberState.UNREVOKED:
        if _holds_any(owned, current.revoking):
            return current
        return _next(current, current.epoch + 1, way)
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    return _next(current, current.epoch, way)


def _holds_any(owned: Assignment | None, revoked: Assignment) -> bool:
    if owned is None:
        return True  # rule C9/silence-gives-back
    return any(not set(numbers).isdisjoint(owned.get(topic_id, ())) for topic_id, numbers in revoked.items())


class _Way(NamedTuple):
    """Target of a member, and the data that its reconciliation depends on."""

    target_epoch: int
    target: Assignment
    owned: Assignment | None
    is_taken: Callable[[Partition], bool]


def _next(current: Current, epoch: int, way: _Way) -> Current:
    target_epoch, target, owned, is_taken = way
    having, wanted = pairs(current.assigned), pairs(target)
    kept = [one for one in having if one in wanted]
    revoking = sorted_assignment(one for one in having if one not in wanted)
    if revoking and _holds_any(owned, revoking):
        return _at(current, epoch, MemberState.UNREVOKED, sorted_assignment(kept), revoking)
    missing = [one for one in wanted if one not in having]
    free = [one for one in missing if not is_taken(one)]
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    return _at(current, target_epoch, state, sorted_assignment([*kept, *free]), {})


def _at(current: Current, epoch: int, state: MemberState, assigned: Assignment, revoking: Assignment) -> Current:
    previous = current.epoch if epoch != current.epoch else current.previous_epoch
    return Current(epoch, previous, state, assigned, revoking)
