"""What a broker can be for a partition, and the only ways from one role to another: one table."""

from __future__ import annotations

from enum import Enum

from strandline.proto.transitions import Transitions
from strandline.replica.states import Role


class RoleEvent(Enum):
    """What happened to a partition, as far as its role goes."""

    ELECTED = "the metadata name this broker as leader, in a new leader epoch"
    FOLLOW = "the metadata name another broker as leader, in a new leader epoch"
    LEADERLESS = "the metadata name no leader"
    DISK_FAILED = "the log is damaged, or the disk failed under it"
    DELETED = "the topic is deleted, or this broker is no longer among the replicas"


TRANSITIONS: Transitions[Role, RoleEvent] = {
    (Role.IDLE, RoleEvent.ELECTED): Role.LEADER,
    (Role.IDLE, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.IDLE, RoleEvent.LEADERLESS): Role.IDLE,
    (Role.IDLE, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.IDLE, RoleEvent.DELETED): Role.DELETED,
    (Role.FOLLOWER, RoleEvent.ELECTED): Role.LEADER,
    (Role.FOLLOWER, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.FOLLOWER, RoleEvent.LEADERLESS): Role.IDLE,
    (Role.FOLLOWER, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.FOLLOWER, RoleEvent.DELETED): Role.DELETED,
    (Role.LEADER, RoleEvent.ELECTED): Role.LEADER,
    (Role.LEADER, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.LEADER, RoleEvent.LEADERLESS): Role.IDLE,
    (Role.LEADER, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.LEADER, RoleEvent.DELETED): Role.DELETED,
    (Role.OFFLINE, RoleEvent.ELECTED): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.FOLLOW): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.LEADERLESS): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.DELETED): Role.DELETED,
}
