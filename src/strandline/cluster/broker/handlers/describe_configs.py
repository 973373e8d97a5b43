"""DescribeConfigs (32): the effective value of each config, its source, and values of lower precedence (synonyms).
ListConfigResources (74): the resources that have configs.

Tools ask for all topics at once: 1,500 topics make a response of 4 MB, and half a second of work if each value of each
topic is encoded. Most topics have the same values, so each distinct value is encoded once per request; and the event
loop runs other work in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, by_schema, part, short
from strandline.cluster.broker.config import DerivedSetting, StaticSetting
from strandline.cluster.broker.handlers.broker_loggers import BROKER_LOGGER, BrokerLoggers, logger_row
from strandline.cluster.broker.request import Authorizer, RequestContext, require, topic
from strandline.cluster.broker.requested_topics import topic_name_fault
from strandline.controller.machine.placement import default_replication_factor, usable_brokers
from strandline.controller.metadata.config_resolver import ConfigEntry, ConfigResolver, ConfigSource
from strandline.controller.metadata.image import MetadataImage, ResourceType
from strandline.controller.metadata.settings import CLIENT_METRICS_SETTINGS, BrokerSettings
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT8, INT16, NO_TAGS, array_head, nullable_string, string
from strandline.proto.ports import Clock
from strandline.proto.settings import Setting

DOCUMENTATION_SINCE = 3
FLEXIBLE_SINCE = 4

RESOURCE_TYPES_SINCE = 1
"""First version of ListConfigResources with resource types; before, it lists subscriptions to client metrics."""

SLICE_MS = 10.0
"""Milliseconds for which resources are described before the event loop runs other work."""


class DescribedConfig(NamedTuple):
    """One config. `synonyms` are (name, value, source), the effective one first. The value of a secret is None."""

    name: str
    row: Setting[Any]
    value: str | None
    source: ConfigSource
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...]


class DescribedResource(NamedTuple):
    """The configs of one resource, or an error."""

    resource_type: int
    resource_name: str
    error: ErrorCode
    message: str
    configs: list[DescribedConfig]


class DescribeConfigsHandler:
    """Describes the configs of topics, of this broker and of its loggers."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        configs: ConfigResolver,
        settings: Sequence[StaticSetting],
        derived: Sequence[DerivedSetting],
        loggers: BrokerLoggers,
        clock: Clock,
    ) -> None:
        self._loggers = loggers
        self._node_id = node_id
        self._image = image
        self._authorizer = authorizer
        self._configs = configs
        self._settings = tuple(settings)
        self._derived = tuple(derived)
        self._clock = clock

    async def describe(self, call: Call) -> list[bytes]:
        """Answer DescribeConfigs, encoded. A resource that is named repeatedly is described once, as ten bytes of
        request make thousands of response."""
        asked = {(resource.resource_type, resource.resource_name): resource for resource in call.request.resources}
        flexible = call.context.version >= FLEXIBLE_SINCE
        clock, known = self._clock, dict[DescribedConfig, bytes]()
        parts = [array_head(len(asked), flexible)]
        slice_end_ms = clock.monotonic_ms() + SLICE_MS
        for (kind, name), resource in asked.items():
            described = self._describe(call.context, kind, name, resource.configuration_keys)
            parts.append(_encoded(call, described, known))
            if clock.monotonic_ms() >= slice_end_ms:
                await asyncio.sleep(0)
                slice_end_ms = clock.monotonic_ms() + SLICE_MS
        parts.append(NO_TAGS if flexible else b"")
        return [b"".join(parts)]

    def _describe(
        self, context: RequestContext, resource_type: int, name: str, keys: tuple[str, ...] | None
    ) -> DescribedResource:
        """Describe the configs of a topic, of this broker or its loggers, of a client metrics subscription, or the
        dynamic defaults of all brokers (name ""). `keys`: names of the configs; None or empty: all.

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
        if resource_type == BROKER_LOGGER:
            source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            levels = self._loggers.described(context, name)
            return [DescribedConfig(logger, logger_row(logger), level, source, ()) for logger, level in levels]
        if resource_type == ResourceType.CLIENT_METRICS:
            return self._client_metrics_configs(context, name)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"resources of type {resource_type} have no configs here")

    def _topic_configs(self, context: RequestContext, name: str) -> list[DescribedConfig]:
        require(self._authorizer, context, Operation.DESCRIBE_CONFIGS, topic(name))
        fault = topic_name_fault(name)
        if fault:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        image = self._image()
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return [_of_entry(entry) for entry in self._configs.topic_entries(image, name)]

    def _broker_configs(self, context: RequestContext, name: str) -> list[DescribedConfig]:
        require(self._authorizer, context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        image = self._image()
        if not name:
            return [_of_entry(entry) for entry in self._configs.cluster_default_entries(image)]
        if name != str(self._node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {self._node_id}; ask broker {name!r} for its configs"
            )
        described = {entry.name: _of_entry(entry) for entry in self._configs.broker_entries(image)}
        described |= {setting.name: _of_setting(setting) for setting in self._settings}
        factor = BrokerSettings.default_replication_factor.name
        described[factor] = _with_factor(described[factor], default_replication_factor(len(usable_brokers(image))))
        described |= {one.row.name: _of_derived(one, described.get(one.of)) for one in self._derived}
        return [config for _, config in sorted(described.items())]

    def _client_metrics_configs(self, context: RequestContext, name: str) -> list[DescribedConfig]:
        require(self._authorizer, context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        given = self._image().config((ResourceType.CLIENT_METRICS, name))
        return [_of_subscription(row, given.get(name)) for name, row in CLIENT_METRICS_SETTINGS.items()]

    # ListConfigResources

    def list_resources(self, call: Call) -> Any:
        """Answer ListConfigResources: the client metrics subscriptions, topics and brokers of the requested types; no
        types: all.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION for a type that has no configs here.
        """
        require(self._authorizer, call.context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        image = self._image()
        names: dict[int, Iterable[str]] = {
            ResourceType.CLIENT_METRICS: (name for kind, name in image.configs if kind is ResourceType.CLIENT_METRICS)
        }
        if call.context.version >= RESOURCE_TYPES_SINCE:
            names |= {ResourceType.TOPIC: image.topics, ResourceType.BROKER: map(str, image.brokers)}
            wanted = set(call.request.resource_types) or set(names)
            if not wanted <= set(names):
                words = f"resources of type {min(wanted - set(names))} have no configs here"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, words)
            names = {kind: names[kind] for kind in wanted}
        return part(
            error_code=ErrorCode.NONE,
            config_resources=tuple(
                part(resource_name=name, resource_type=kind) for kind in sorted(names) for name in sorted(names[kind])
            ),
        )


def _config(call: Call, config: DescribedConfig) -> Any:
    synonyms = config.synonyms if call.request.include_synonyms else ()
    documented = call.context.version >= DOCUMENTATION_SINCE and call.request.include_documentation
    return part(
        name=config.name,
        value=config.value,
        read_only=not config.row.live,
        config_source=config.source,
        is_sensitive=config.row.secret,
        synonyms=tuple(part(name=name, value=value, source=source) for name, value, source in synonyms),
        config_type=config.row.type,
        documentation=config.row.documentation if documented else None,
    )


def _encoded(call: Call, resource: DescribedResource, known: dict[DescribedConfig, bytes]) -> bytes:
    """Encode a DescribeConfigsResult. `known`: configs that are encoded already; new ones are added."""
    flexible = call.context.version >= FLEXIBLE_SINCE
    parts = [
        INT16.pack(resource.error),
        nullable_string(short(resource.message) or None, flexible),
        INT8.pack(resource.resource_type),
        string(resource.resource_name, flexible),
        array_head(len(resource.configs), flexible),
    ]
    one = schema.response_part(Api.DESCRIBE_CONFIGS, call.context.version, "DescribeConfigsResourceResult")
    for config in resource.configs:
        encoded = known.get(config)
        if encoded is None:
            encoded = known[config] = bytes(one.encode(_config(call, config)))
        parts.append(encoded)
    parts.append(NO_TAGS if flexible else b"")
    return b"".join(parts)


def _of_entry(entry: ConfigEntry) -> DescribedConfig:
    synonyms = tuple((synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms)
    return DescribedConfig(entry.name, entry.row, entry.value, entry.source, synonyms)


def _of_setting(setting: StaticSetting) -> DescribedConfig:
    given, default = setting.given, setting.row.default
    set_here = () if given is None else ((setting.name, given, ConfigSource.STATIC_BROKER_CONFIG),)
    found = (*set_here, (setting.name, default, ConfigSource.DEFAULT_CONFIG))
    synonyms = tuple((name, None if setting.row.secret else value, source) for name, value, source in found)
    return DescribedConfig(setting.name, setting.row, synonyms[0][1], synonyms[0][2], synonyms)


def _of_subscription(row: Setting[Any], given: str | None) -> DescribedConfig:
    set_here = () if given is None else ((row.name, given, ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG),)
    synonyms = (*set_here, (row.name, row.default, ConfigSource.DEFAULT_CONFIG))
    return DescribedConfig(row.name, row, synonyms[0][1], synonyms[0][2], synonyms)


def _of_derived(derived: DerivedSetting, origin: DescribedConfig | None) -> DescribedConfig:
    row = derived.row
    value = row.default if origin is None else derived.value(origin.value or "")
    source = ConfigSource.DEFAULT_CONFIG if origin is None else origin.source
    return DescribedConfig(row.name, row, value, source, ((row.name, value, source),))


def _with_factor(config: DescribedConfig, chosen: int) -> DescribedConfig:
    """Return default.replication.factor with the number that new topics get in place of -1, as tools create topics with
    this value."""
    synonyms = tuple((name, str(chosen) if value == "-1" else value, source) for name, value, source in config.synonyms)
    return config._replace(value=synonyms[0][1], synonyms=synonyms)


ROWS = (
    by_schema(Api.DESCRIBE_CONFIGS, (1, 4), DescribeConfigsHandler, DescribeConfigsHandler.describe),
    by_schema(Api.LIST_CONFIG_RESOURCES, (0, 1), DescribeConfigsHandler, DescribeConfigsHandler.list_resources),
)
