"""DescribeConfigs: which value of each config holds, where it comes from, and what else was set."""

from __future__ import annotations

from typing import NamedTuple

from strandline.cluster.broker.service.authorizer import CLUSTER, Operation, allowed, topic
from strandline.cluster.broker.service.base import Base, StaticSetting
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.topics import topic_name_fault
from strandline.controller.metadata.config_key import ConfigType
from strandline.controller.metadata.config_resolver import ConfigEntry, ConfigSource
from strandline.controller.metadata.image import ResourceType
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


class DescribedConfig(NamedTuple):
    """One config; `synonyms` are (name, value, source), the one that holds first. A secret's value is None."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    doc: str
    read_only: bool
    sensitive: bool
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...]


class DescribedResource(NamedTuple):
    """What is known of one resource, or why nothing is told."""

    resource_type: int
    resource_name: str
    error: ErrorCode
    message: str
    configs: list[DescribedConfig]


class Configs(Base):
    """The operation that describes configs."""

    def describe_configs(
        self, context: RequestContext, resource_type: int, name: str, keys: tuple[str, ...] | None
    ) -> DescribedResource:
        """The configs of a topic, of this broker, or the dynamic defaults of all brokers (name ""); no keys: all.

        Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (another broker's id, or a type
        that is not served), TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED.
        """
        try:
            configs = self._configs_of(context, resource_type, name)
        except KafkaError as error:
            return DescribedResource(resource_type, name, error.code, error.message, [])
        chosen = [config for config in configs if not keys or config.name in keys]
        return DescribedResource(resource_type, name, ErrorCode.NONE, "", chosen)

    def _configs_of(self, context: RequestContext, resource_type: int, name: str) -> list[DescribedConfig]:
        if resource_type == ResourceType.TOPIC:
            return self._topic_configs(context, name)
        if resource_type == ResourceType.BROKER:
            return self._broker_configs(context, name)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"resources of type {resource_type} have no configs here")

    def _topic_configs(self, context: RequestContext, name: str) -> list[DescribedConfig]:
        if not allowed(self.authorizer, context, Operation.DESCRIBE_CONFIGS, topic(name)):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        fault = topic_name_fault(name)
        if fault:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        image = self.image()
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return [_of_entry(entry) for entry in self.configs.topic_entries(image, name)]

    def _broker_configs(self, context: RequestContext, name: str) -> list[DescribedConfig]:
        if not allowed(self.authorizer, context, Operation.DESCRIBE_CONFIGS, CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        image = self.image()
        if not name:
            return [_of_entry(entry) for entry in self.configs.cluster_default_entries(image)]
        if name != str(self.node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {self.node_id}; ask broker {name!r} for its configs"
            )
        described = [_of_entry(entry) for entry in self.configs.broker_entries(image)]
        described += [_of_setting(setting) for setting in self.settings]
        return sorted(described, key=lambda config: config.name)


def _of_entry(entry: ConfigEntry) -> DescribedConfig:
    return DescribedConfig(
        name=entry.name,
        value=entry.value,
        source=entry.source,
        type=entry.key.type,
        doc=entry.key.documentation,
        read_only=False,
        sensitive=False,
        synonyms=tuple((synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms),
    )


def _of_setting(setting: StaticSetting) -> DescribedConfig:
    source = ConfigSource.DEFAULT_CONFIG if setting.is_default else ConfigSource.STATIC_BROKER_CONFIG
    return DescribedConfig(
        name=setting.name,
        value=setting.value,
        source=source,
        type=setting.type,
        doc=setting.doc,
        read_only=True,
        sensitive=setting.value is None,
        synonyms=((setting.name, setting.value, source),),
    )
