"""Settings of a tiered topic that go together (KIP-405, KIP-950)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from strandline.controller.machine.state import MachineState
from strandline.controller.metadata.image import ConfigResource, MetadataImage, ResourceType
from strandline.controller.metadata.settings import TopicSettings
from strandline.controller.metadata.tiers import REMOTE_STORAGE_ENABLE
from strandline.proto.errors import ConfigError
from strandline.proto.settings import Setting

T = TypeVar("T")

_AS_THE_WHOLE = -2
_NO_LIMIT = -1

_RETENTIONS = (
    (TopicSettings.local_retention_ms, TopicSettings.retention_ms),
    (TopicSettings.local_retention_bytes, TopicSettings.retention_bytes),
)


def check_topic(state: MachineState, topic: str, after: Mapping[str, str]) -> None:
    """Check what is to be set on a topic, which need not exist, against what holds for it beside that.

    Raises:
        ConfigError: it is tiered where nothing can be, or compacted, or keeps more on the disk than altogether; or its
            tier is turned off while there is something in it.
    """
    image = state.image
    before = image.config((ResourceType.TOPIC, topic)).get(REMOTE_STORAGE_ENABLE, "false")
    if after.get(REMOTE_STORAGE_ENABLE, "false") != "true":
        if before == "true":
            _check_empty(image, topic)
        return
    if before != "true" and not state.settings.tiered_storage:
        raise ConfigError(
            REMOTE_STORAGE_ENABLE,
            "true",
            "false: there is no object store. Set remote.log.storage.url on every node, of controllers too",
        )

    def in_force(row: Setting[T]) -> T:
        return state.resolver.in_force(image, row, after)

    policy = in_force(TopicSettings.cleanup_policy)
    if "compact" in policy:  # rule B21/tiered-topics-are-compacted
        raise ConfigError(
            "cleanup.policy",
            ",".join(policy),
            f"delete alone with {REMOTE_STORAGE_ENABLE}=true: what is tiered is not compacted",
        )
    for local, whole in _RETENTIONS:
        _check_local(local.name, in_force(local), whole.name, in_force(whole))


def check_brokers(image: MetadataImage, resource: ConfigResource, after: Mapping[str, str]) -> None:
    """Check what is to be set on brokers as the defaults of topics. Raises ConfigError: more is kept on the disk than
    altogether."""
    defaults: Mapping[str, str] = {} if not resource[1] else image.config((ResourceType.BROKER, ""))

    def in_force(row: Setting[int]) -> int:
        text = after.get(row.broker, defaults.get(row.broker))
        return row.default_value() if text is None else row.stored(text)

    for local, whole in _RETENTIONS:
        if local.broker in after:
            _check_local(local.broker, in_force(local), whole.broker, in_force(whole))


def _check_local(name: str, local: int, whole_name: str, whole: int) -> None:
    if whole != _NO_LIMIT and local != _AS_THE_WHOLE and (local == _NO_LIMIT or local > whole):
        raise ConfigError(name, local, f"at most {whole_name}, which is {whole}, or {_AS_THE_WHOLE}: the same")


def _check_empty(image: MetadataImage, topic: str) -> None:
    info = image.topics[topic]
    count = sum(len(image.tier(info.topic_id, number).segments) for number in info.partitions)
    if count:  # rule B21/full-tiers-are-turned-off
        raise ConfigError(
            REMOTE_STORAGE_ENABLE,
            "false",
            f"true while it has segments in the object store (now {count}): they go by retention.ms and "
            "retention.bytes, or with the topic",
        )
