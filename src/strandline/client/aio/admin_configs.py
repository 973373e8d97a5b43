"""The admin clients' part about settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strandline.client.aio.admin_base import AdminBase, Operation, Question, Route, by_key, done, nothing
from strandline.client.descriptions import config_change, config_entry, resource_type
from strandline.client.types import ConfigChange, ConfigEntry, ConfigResource
from strandline.proto.errors import ConfigError
from strandline.proto.kafka.apis import Api


class ConfigAdmin(AdminBase):
    """Settings of topics and brokers."""

    @Operation(Api.DESCRIBE_CONFIGS, route=Route.BROKERS, each="results", grace=True)
    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False
    ) -> Question[dict[ConfigResource, list[ConfigEntry]]]:
        """Every setting of topics and brokers with where its value comes from.

        Raises:
            UnknownTopic, KafkaError.
        """

        def values(group: list[ConfigResource]) -> dict[str, Any]:
            return {
                "resources": [{**_named(item), "configuration_keys": None} for item in group],
                "include_synonyms": False,
                "include_documentation": documentation,
            }

        return Question(values, _entries, by_key, items=resources, broker=_broker)

    @Operation(
        Api.INCREMENTAL_ALTER_CONFIGS,
        route=Route.BROKERS,
        each="responses",
        dry_run="validate_only",
    )
    async def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> Question[None]:
        """Change single settings and leave the others (KIP-339); `validate_only` checks and changes nothing.

        Raises:
            UnknownTopic; KafkaError: INVALID_CONFIG with the broker's sentence.
        """

        def values(group: list[ConfigResource]) -> dict[str, Any]:
            return {
                "resources": [
                    {**_named(item), "configs": [config_change(change) for change in changes[item]]} for item in group
                ],
                "validate_only": validate_only,
            }

        return Question(values, nothing, done, items=changes, broker=_broker)


def _broker(item: ConfigResource) -> int | None:
    """A named broker answers for its own settings and loggers; everything else any broker answers. Raises
    ConfigError."""
    if item.kind == "broker-logger" and not item.name.isdecimal():
        raise ConfigError("broker-logger", item.name, "the number of the broker whose loggers are meant")
    if item.kind not in ("broker", "broker-logger") or item.name == "":
        return None
    if not item.name.isdecimal():
        raise ConfigError("broker", item.name, "a broker's number, or nothing for every broker")
    return int(item.name)


def _named(item: ConfigResource) -> dict[str, Any]:
    return {"resource_type": resource_type(item), "resource_name": item.name}


def _entries(told: Any) -> list[ConfigEntry]:
    return sorted((config_entry(entry) for entry in told.configs), key=lambda entry: entry.name)
