"""What a broker can be for a partition, and the only ways from one to another.

Diagrams in the docs are drawn from `TRANSITIONS`; a step that is not in it is a bug and raises.
"""

from __future__ import annotations

from enum import Enum

from strandline.proto.errors import FatalError
from strandline.replica.states import Role


class Trigger(Enum):
    """What moves a partition from one role to another."""

    ELECTED = "the metadata name this broker as leader, in a new leader epoch"
    FOLLOW = "the metadata name another broker as leader, in a new leader epoch"
    LEADERLESS = "the metadata name no leader"
    DISK_FAILED = "the log is damaged, or the disk failed under it"
    DELETED = "the topic is deleted, or this broker is no longer among the replicas"


TRANSITIONS: dict[tuple[Role, Trigger], Role] = {
    (Role.IDLE, Trigger.ELECTED): Role.LEADER,
    (Role.IDLE, Trigger.FOLLOW): Role.FOLLOWER,
    (Role.IDLE, Trigger.LEADERLESS): Role.IDLE,
    (Role.IDLE, Trigger.DISK_FAILED): Role.OFFLINE,
    (Role.IDLE, Trigger.DELETED): Role.DELETED,
    (Role.FOLLOWER, Trigger.ELECTED): Role.LEADER,
    (Role.FOLLOWER, Trigger.FOLLOW): Role.FOLLOWER,
    (Role.FOLLOWER, Trigger.LEADERLESS): Role.IDLE,
    (Role.FOLLOWER, Trigger.DISK_FAILED): Role.OFFLINE,
    (Role.FOLLOWER, Trigger.DELETED): Role.DELETED,
    (Role.LEADER, Trigger.ELECTED): Role.LEADER,
    (Role.LEADER, Trigger.FOLLOW): Role.FOLLOWER,
    (Role.LEADER, Trigger.LEADERLESS): Role.IDLE,
    (Role.LEADER, Trigger.DISK_FAILED): Role.OFFLINE,
    (Role.LEADER, Trigger.DELETED): Role.DELETED,
    (Role.OFFLINE, Trigger.ELECTED): Role.OFFLINE,
    (Role.OFFLINE, Trigger.FOLLOW): Role.OFFLINE,
    (Role.OFFLINE, Trigger.LEADERLESS): Role.OFFLINE,
    (Role.OFFLINE, Trigger.DISK_FAILED): Role.OFFLINE,
    (Role.OFFLINE, Trigger.DELETED): Role.DELETED,
}


def next_role(role: Role, trigger: Trigger) -> Role:
    """The role after `trigger`.

    Raises:
        FatalError: the table has no such step.
    """
    target = TRANSITIONS.get((role, trigger))
    if target is None:
        raise FatalError(f"a partition that is {role.value} cannot be moved: {trigger.value}")
    return target
