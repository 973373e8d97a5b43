"""The topic that is written: made like its source, or checked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.client.aio.admin import Admin
from strandline.client.errors import UnknownTopic
from strandline.client.types import LATEST, ConfigEntry, ConfigResource, ListedOffset, NewTopic, TopicDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.tools.copy.errors import CopyRefused

TOPICS_OWN = "DYNAMIC_TOPIC_CONFIG"
"""The source of a setting that somebody has given to this very topic."""

TIMESTAMP_TYPE = "message.timestamp.type"
MAX_MESSAGE_BYTES = "max.message.bytes"
_NEW_TOPIC_LOOKS = 20
_NEW_TOPIC_PAUSE_S = 0.1
BATCH_BYTES = 256 << 10
"""A batch is closed at this size before compression, or at a quarter of the target's max.message.bytes."""

OPEN_BYTES = 64 << 20
"""Bytes that the open batches of all partitions may take together: with more than 256 partitions they are smaller."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Topic that the copy is to make. None: as the source has it; `configs` are added to those that are the source's
    own. None: as the source; `configs` stand beside those that are the source's own."""

    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    append: bool = False


class Target(NamedTuple):
    """The topic as it is."""

    topic_id: str
    partitions: int
    batch_bytes: int
    """Bytes at which a batch is closed."""
    memory_bytes: int
    """The most that one batch of the copy takes."""


async def prepare_target(admin: Admin, source: TopicDescription, name: str, wish: TargetSpec, *, begun: bool) -> Target:
    """Make the target, or check the one that is there.

    Args:
        begun: the group notes a copy into it.

    Raises:
        CopyRefused: what is there is not what was asked for; it holds records that no copy has written; it is gone.
        KafkaError: INVALID_REPLICATION_FACTOR, INVALID_CONFIG, INVALID_PARTITIONS.
    """
    found = await find_target(admin, source, name, wish, begun=begun)
    if isinstance(found, Target):
        return found
    await _make(admin, found)
    [there] = await admin.describe_topics([name])
    return await _checked(admin, there, wish)


async def find_target(
    admin: Admin, source: TopicDescription, name: str, wish: TargetSpec, *, begun: bool
) -> Target | NewTopic:
    """The target that is there, checked; or the one that is to be made. Changes nothing, and raises as
    `prepare_target`."""
    if wish.configs.get(TIMESTAMP_TYPE, "CreateTime") != "CreateTime":
        raise CopyRefused(f"{TIMESTAMP_TYPE}={wish.configs[TIMESTAMP_TYPE]} would give the records new times")
    there = await _described(admin, name)
    if there is None:
        if begun:
            raise CopyRefused(
                f"topic {name} is gone, and a part of {source.name} had been copied into it: {_anew(name)}"
            )
        return await _wanted(admin, source, name, wish)
    if not begun and not wish.append:
        await _refuse_unless_empty(admin, there)
    return await _checked(admin, there, wish)


async def _checked(admin: Admin, there: TopicDescription, wish: TargetSpec) -> Target:
    entries = await _configs(admin, there.name)
    _compare(there, entries, wish)
    largest = int(entries[MAX_MESSAGE_BYTES].value or 0) if MAX_MESSAGE_BYTES in entries else 1 << 20
    batch_bytes = max(1, min(BATCH_BYTES, OPEN_BYTES // len(there.partitions), largest // 4))
    return Target(str(there.topic_id or ""), len(there.partitions), batch_bytes, largest + batch_bytes)


async def _described(admin: Admin, name: str) -> TopicDescription | None:
    try:
        [there] = await admin.describe_topics([name])
    except UnknownTopic:
        return None
    return there


async def _configs(admin: Admin, name: str) -> dict[str, ConfigEntry]:
    """The settings of a topic that is there; a broker may not have heard yet of one that another has told of."""
    looks = 0
    while True:
        try:
            [entries] = (await admin.describe_configs([ConfigResource("topic", name)])).values()
            return {entry.name: entry for entry in entries}
        except UnknownTopic:
            looks += 1
            if looks == _NEW_TOPIC_LOOKS:
                raise
        await asyncio.sleep(_NEW_TOPIC_PAUSE_S)


async def _wanted(admin: Admin, source: TopicDescription, name: str, wish: TargetSpec) -> NewTopic:
    """The target that is to be made."""
    entries = (await _configs(admin, source.name)).values()
    own = {entry.name: entry.value for entry in entries if entry.source == TOPICS_OWN and entry.value is not None}
    own.pop(TIMESTAMP_TYPE, None)
    replicas = max((len(part.replicas) for part in source.partitions), default=1)
    return NewTopic(
        name, wish.partitions or len(source.partitions), wish.replication_factor or replicas, {**own, **wish.configs}
    )


async def _make(admin: Admin, wanted: NewTopic) -> None:
    try:
        await admin.create_topics([wanted])
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # two copies may have been started at once
            raise


async def _refuse_unless_empty(admin: Admin, there: TopicDescription) -> None:
    ends = await admin.list_offsets({(there.name, part.partition): LATEST for part in there.partitions})
    used = [str(place.partition) for place, end in sorted(ends.items()) if end.offset]
    if used:
        raise CopyRefused(
            f"topic {there.name} is there and has had records (partitions {', '.join(used)}), and the group notes no "
            f"copy into it. Copy into another topic, or delete it first (strandline topic delete {there.name} --yes); "
            "--append (append=True) writes behind what is there"
        )


def _compare(there: TopicDescription, entries: Mapping[str, ConfigEntry], wish: TargetSpec) -> None:
    """Compare an existing topic with what was asked for."""
    count, replicas = len(there.partitions), max((len(part.replicas) for part in there.partitions), default=1)
    if wish.partitions not in (None, count):
        raise CopyRefused(
            f"topic {there.name} is there with {count} partitions, not {wish.partitions}: leave --partitions out, copy "
            f"into another topic, or delete it first: strandline topic delete {there.name} --yes"
        )
    if wish.replication_factor not in (None, replicas):
        raise CopyRefused(f"topic {there.name} is there with {replicas} replicas, not {wish.replication_factor}")
    wanted = {TIMESTAMP_TYPE: "CreateTime", **wish.configs}
    for key, value in wanted.items():
        found = entries[key].value if key in entries else value
        if found != value:
            raise CopyRefused(
                f"topic {there.name} is there with {key}={found}, not {value}: strandline topic alter {there.name} "
                f"--config {key}={value}"
            )


async def bounds(admin: Admin, topic: str, partitions: list[int], when: int) -> dict[int, int]:
    """Start offsets of the logs (EARLIEST), or their ends for readers of committed records (LATEST)."""
    return {number: told.offset for number, told in (await listed(admin, topic, partitions, when)).items()}


async def listed(admin: Admin, topic: str, partitions: list[int], when: int) -> dict[int, ListedOffset]:
    """Offsets as `bounds` gives them, each with the leader epoch that reported it."""
    if not partitions:
        return {}
    asked: dict[TopicPartition | tuple[str, int], int] = {TopicPartition(topic, number): when for number in partitions}
    found_at = await admin.list_offsets(asked, read_committed=True)
    return {place.partition: found for place, found in found_at.items()}


def _anew(name: str) -> str:
    return f"delete the copy's group and begin anew (strandline group delete), or copy into another topic than {name}"
