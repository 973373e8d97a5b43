"""Which settings of a topic go together where its old segments move to the object store (KIP-405, KIP-950)."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.controller.machine.state import MachineState
from strandline.controller.metadata.config_key import split_list
from strandline.controller.metadata.image import ConfigResource, MetadataImage, ResourceType
from strandline.controller.metadata.tiers import REMOTE_STORAGE_ENABLE
from strandline.controller.metadata.topic_configs import BROKER_CONFIGS, TOPIC_CONFIGS
from strandline.proto.errors import ConfigError

_AS_THE_WHOLE = -2
_NO_LIMIT = -1

_RETENTIONS = (("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes"))


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

    def in_force(name: str) -> str:
        return state.resolver.synonyms(image, TOPIC_CONFIGS[name], after)[0].value

    policy = in_force("cleanup.policy")
    if "compact" in split_list(policy):  # rule B21/tiered-topics-are-compacted
        raise ConfigError(
            "cleanup.policy", policy, f"delete alone with {REMOTE_STORAGE_ENABLE}=true: what is tiered is not compacted"
        )
    for local, whole in _RETENTIONS:
        _check_local(local, in_force(local), whole, in_force(whole))


def check_brokers(image: MetadataImage, resource: ConfigResource, after: Mapping[str, str]) -> None:
    """Check what is to be set on brokers as the defaults of topics. Raises ConfigError: more is kept on the disk than
    altogether."""
    defaults: Mapping[str, str] = {} if not resource[1] else image.config((ResourceType.BROKER, ""))

    def in_force(name: str) -> str:
        return after.get(name, defaults.get(name, BROKER_CONFIGS[name].default))

    for local, whole in _RETENTIONS:
        names = TOPIC_CONFIGS[local].broker_name, TOPIC_CONFIGS[whole].broker_name
        if names[0] in after:
            _check_local(names[0], in_force(names[0]), names[1], in_force(names[1]))


def _check_local(name: str, text: str, whole_name: str, whole_text: str) -> None:
    local, whole = int(text), int(whole_text)
    if whole != _NO_LIMIT and local != _AS_THE_WHOLE and (local == _NO_LIMIT or local > whole):
        raise ConfigError(name, text, f"at most {whole_name}, which is {whole}, or {_AS_THE_WHOLE}: the same")


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
