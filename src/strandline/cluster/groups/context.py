"""State that the parts of a group shard share: groups, offsets, deadlines and collected effects; and counters of all
shards of the process."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from strandline.cluster.groups.classic.group import Group
from strandline.cluster.groups.config import UNSTORED_GROUPS_MAX, GroupConfig
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroup
from strandline.cluster.groups.machine import Outbox
from strandline.cluster.groups.pending_offsets import PendingOffsets
from strandline.cluster.groups.timers import Timers
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.group_records import OffsetValue
from strandline.proto.ports import Rng


class ShardContext:
    """State that the parts of one shard share.

    Attributes:
        groups: classic groups, and groups that only keep offsets, by group id.
        consumer_groups: groups of the consumer protocol by group id; no id is in both dicts.
        offsets: group id -> topic -> partition -> committed offset.
        pending: offsets of open transactions.
    """

    __slots__ = ("config", "consumer_groups", "counters", "groups", "offsets", "out", "pending", "rng", "timers")

    def __init__(self, config: GroupConfig, rng: Rng, counters: GroupCounters) -> None:
        self.config = config
        self.counters = counters
        self.rng = rng
        self.out = Outbox()
        self.timers = Timers()
        self.groups: dict[str, Group] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets: dict[str, dict[str, dict[int, OffsetValue]]] = {}
        self.pending = PendingOffsets()

    def group(self, group_id: str) -> Group:
        """Return a classic group. Raises KafkaError GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        return group

    def new_id(self) -> str:
        """Return a new member id in the form that clients of the consumer protocol use for their own ids (a random
        UUID)."""
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    def new_member_id(self, prefix: str) -> str:
        """Return a new member id: `prefix` (client id or instance id) and a random part that no other member has."""
        return f"{prefix}-{self.new_id()}"

    def has_room_for_a_group(self) -> bool:
        """Return whether fewer than UNSTORED_GROUPS_MAX groups have nothing stored."""
        if len(self.groups) < UNSTORED_GROUPS_MAX:
            return True
        return sum(not group.stored for group in self.groups.values()) < UNSTORED_GROUPS_MAX

    def has_offsets(self, group_id: str) -> bool:
        """Return whether the group has committed offsets, or may have some once a transaction ends."""
        return group_id in self.offsets or self.pending.has_group(group_id)

    def forget_if_unused(self, group: Group) -> None:
        """Forget a group that has no members and was never stored."""
        if not group.stored and not group.size and not self.has_offsets(group.group_id):
            self.groups.pop(group.group_id, None)


def client_error(error: ErrorCode) -> ErrorCode:
    """Return the error that a client of a group gets if a write fails: one that its library retries in the right
    way."""
    if error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error


@dataclass(slots=True)
class GroupCounters:
    """Counters since the process started.

    Attributes:
        offset_commits: committed offsets that were written, including those that expired or were deleted later.
        rebalances: generations whose assignment was committed.
        members_expired: members whose session timed out.
    """

    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0
    rebalances: int = 0
    members_expired: int = 0
