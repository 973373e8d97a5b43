"""The admin clients' part about consumer groups. Each group's coordinator is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from strandline.client.aio.admin_base import AdminBase, Operation, Question, Route
from strandline.client.descriptions import by_topic, each_once
from strandline.client.groups.classic import PROTOCOL_TYPE
from strandline.client.groups.coordinator import GroupCoordinator, Identity
from strandline.client.types import GroupDescription, GroupListing, GroupMember, OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.consumer_protocol import decode_assignment

T = TypeVar("T")
GroupOffsets = Mapping[TopicPartition, OffsetAndMetadata | int] | Mapping[tuple[str, int], OffsetAndMetadata | int]

_SENTENCES = {
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members: stop its consumers first",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members, and they alone commit: stop its consumers first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member subscribes to the topic: stop its consumers first",
}


class GroupAdmin(AdminBase):
    """Groups and their offsets."""

    @Operation(Api.LIST_GROUPS, route=Route.EVERY_BROKER)
    async def list_groups(self) -> Question[list[GroupListing]]:
        """Every group of the cluster, by name.

        Raises:
            KafkaError, ClientTimeout: a broker does not tell its groups; none is left out in silence.
        """
        return Question({"states_filter": (), "types_filter": ()}, _listed, _sorted, words=_untold)

    @Operation(Api.DESCRIBE_GROUPS, also=(Api.FIND_COORDINATOR, Api.CONSUMER_GROUP_DESCRIBE), route=Route.COORDINATORS)
    async def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        """State, members and assignments, in the order of `groups`.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED.
        """
        return await self._each(groups, self._describe_group)

    async def _describe_group(self, coordinator: GroupCoordinator) -> GroupDescription:
        group = coordinator.group_id
        values = {"groups": (group,), "include_authorized_operations": False}
        [answer] = (await coordinator.call(Api.DESCRIBE_GROUPS, values)).groups
        if answer.error_code is ErrorCode.GROUP_ID_NOT_FOUND or answer.group_state == "Dead":
            return await self._describe_new_group(coordinator)
        coordinator.check(Api.DESCRIBE_GROUPS, answer.error_code, getattr(answer, "error_message", None))
        members = tuple(
            GroupMember(
                one.member_id,
                getattr(one, "group_instance_id", None),
                one.client_id,
                one.client_host,
                _assigned(answer.protocol_type, one.member_assignment),
            )
            for one in sorted(answer.members, key=lambda one: str(one.member_id))
        )
        node = await coordinator.find()
        return GroupDescription(group, answer.group_state, "classic", answer.protocol_data, node, members)

    async def _describe_new_group(self, coordinator: GroupCoordinator) -> GroupDescription:
        """A group of KIP-848's protocol, which the older question does not find."""
        group = coordinator.group_id
        values = {"group_ids": (group,), "include_authorized_operations": False}
        try:
            [answer] = (await coordinator.call(Api.CONSUMER_GROUP_DESCRIBE, values)).groups
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, "", group=group) from None
        coordinator.check(Api.CONSUMER_GROUP_DESCRIBE, answer.error_code, answer.error_message)
        members = tuple(
            GroupMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                tuple(
                    TopicPartition(topic.topic_name, number)
                    for topic in one.assignment.topic_partitions
                    for number in topic.partitions
                ),
            )
            for one in sorted(answer.members, key=lambda one: str(one.member_id))
        )
        node = await coordinator.find()
        return GroupDescription(group, answer.group_state, "consumer", answer.assignor_name, node, members)

    @Operation(Api.DELETE_GROUPS, also=(Api.FIND_COORDINATOR,), route=Route.COORDINATORS)
    async def delete_groups(self, groups: Iterable[str]) -> list[str]:
        """Delete groups without members, with all that they have committed. The names, as deleted.

        Raises:
            KafkaError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
        """

        async def delete(coordinator: GroupCoordinator) -> str:
            answer = await coordinator.call(Api.DELETE_GROUPS, {"groups_names": (coordinator.group_id,)})
            coordinator.check(Api.DELETE_GROUPS, answer.results[0].error_code)
            return coordinator.group_id

        return list(await self._each(groups, delete))

    @Operation(Api.OFFSET_FETCH, also=(Api.FIND_COORDINATOR,), route=Route.COORDINATORS)
    async def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, of these partitions or of all; those without an offset are left out.

        Raises:
            KafkaError, ClientTimeout.
        """
        wanted = None if partitions is None else [TopicPartition(*item) for item in partitions]

        async def ask(coordinator: GroupCoordinator) -> dict[TopicPartition, OffsetAndMetadata]:
            return await coordinator.committed(wanted, stable=False)

        return (await self._each([group], ask))[group]

    @Operation(Api.OFFSET_COMMIT, also=(Api.FIND_COORDINATOR,), route=Route.COORDINATORS)
    async def alter_group_offsets(self, group: str, offsets: GroupOffsets) -> None:
        """Commit for a group without members.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID, the group has members; UNKNOWN_TOPIC_OR_PARTITION.
        """
        values = {
            TopicPartition(*item): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for item, offset in offsets.items()
        }

        async def commit(coordinator: GroupCoordinator) -> None:
            await coordinator.commit(Identity(), values)

        await self._each([group], commit)

    @Operation(Api.OFFSET_DELETE, also=(Api.FIND_COORDINATOR,), route=Route.COORDINATORS)
    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Forget what a group has committed of partitions that no member subscribes to.

        Raises:
            KafkaError: GROUP_SUBSCRIBED_TO_TOPIC, GROUP_ID_NOT_FOUND.
        """
        wanted = by_topic(partitions, "name", lambda item: {"partition_index": item.partition})

        async def delete(coordinator: GroupCoordinator) -> None:
            answer = await coordinator.call(Api.OFFSET_DELETE, {"group_id": group, "topics": wanted})
            coordinator.check(Api.OFFSET_DELETE, answer.error_code)
            for topic in answer.topics:
                for entry in topic.partitions:
                    where = TopicPartition(topic.name, entry.partition_index)
                    coordinator.check(Api.OFFSET_DELETE, entry.error_code, topic=topic.name, partition=where)

        await self._each([group], delete)

    async def _each(self, groups: Iterable[str], ask: Callable[[GroupCoordinator], Awaitable[T]]) -> dict[str, T]:
        """Ask each group's coordinator."""
        coordinators = [
            GroupCoordinator(self.session, group, self.config.request_timeout_ms) for group in each_once(groups)
        ]
        return await self._ask_coordinators(coordinators, ask, _SENTENCES)


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """A member's partitions; none of groups that are no consumers', and of bytes that another client made up."""
    if protocol_type != PROTOCOL_TYPE:
        return ()
    try:
        return decode_assignment(assignment)
    except ProtocolError:
        return ()


def _listed(answer: Any) -> list[GroupListing]:
    return [
        GroupListing(
            entry.group_id, getattr(entry, "group_state", ""), getattr(entry, "group_type", ""), entry.protocol_type
        )
        for entry in answer.groups
    ]


def _sorted(told: Mapping[int, list[GroupListing]]) -> list[GroupListing]:
    found = {one.group_id: one for listed in told.values() for one in listed}
    return [found[name] for name in sorted(found)]


def _untold(answer: Any) -> str:
    return "a broker does not tell its groups"
