"""The admin client's part about settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strandline.client.aio.admin_base import AdminBase, results_of
from strandline.client.descriptions import config_change, config_entry, config_error, resource_type
from strandline.client.errors import UnknownTopic
from strandline.client.limits import limited
from strandline.client.types import ConfigChange, ConfigEntry, ConfigResource
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError
from strandline.proto.kafka.apis import Api


class ConfigAdmin(AdminBase):
    """Settings of topics and brokers."""

    @limited
    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False
    ) -> dict[ConfigResource, list[ConfigEntry]]:
        """Every setting of topics and brokers with where its value comes from.

        Raises:
            UnknownTopic, KafkaError.
        """
        wanted = list(dict.fromkeys(resources))
        results: dict[ConfigResource, list[ConfigEntry]] = {}
        errors: dict[Any, Exception] = {}

        async def ask() -> bool:
            nonlocal errors
            asked = [item for item in wanted if item not in results]
            errors = await self._describe_configs(asked, results, documentation=documentation)
            return any(isinstance(error, UnknownTopic) for error in errors.values())

        await self._while_unknown(ask)
        return results_of(results, errors)

    async def _describe_configs(
        self, asked: Iterable[ConfigResource], results: dict[ConfigResource, list[ConfigEntry]], *, documentation: bool
    ) -> dict[Any, Exception]:
        """What is found goes into `results`; the errors."""
        errors: dict[Any, Exception] = {}
        for node, group in self._by_broker(asked):
            values = {
                "resources": [
                    {"resource_type": resource_type(item), "resource_name": item.name, "configuration_keys": None}
                    for item in group
                ],
                "include_synonyms": False,
                "include_documentation": documentation,
            }
            answer = await self._call(
                Api.DESCRIBE_CONFIGS, values, lambda reply: [item.error_code for item in reply.results], node
            )
            for item, part in zip(group, answer.results, strict=True):
                if part.error_code is ErrorCode.NONE:
                    results[item] = sorted((config_entry(entry) for entry in part.configs), key=_name)
                else:
                    errors[item] = config_error(
                        self.config, Api.DESCRIBE_CONFIGS, item, part.error_code, part.error_message
                    )
        return errors

    @limited
    async def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> None:
        """Change single settings and leave the others (KIP-339); `validate_only` checks and changes nothing.

        Raises:
            UnknownTopic; KafkaError: INVALID_CONFIG with the broker's sentence.
        """
        errors: dict[Any, Exception] = {}
        done: dict[ConfigResource, None] = {}
        for node, group in self._by_broker(changes):
            values = {
                "resources": [
                    {
                        "resource_type": resource_type(item),
                        "resource_name": item.name,
                        "configs": [config_change(change) for change in changes[item]],
                    }
                    for item in group
                ],
                "validate_only": validate_only,
            }
            answer = await self._call(
                Api.INCREMENTAL_ALTER_CONFIGS, values, lambda reply: [item.error_code for item in reply.responses], node
            )
            for item, entry in zip(group, answer.responses, strict=True):
                if entry.error_code is ErrorCode.NONE:
                    done[item] = None
                else:
                    errors[item] = config_error(
                        self.config, Api.INCREMENTAL_ALTER_CONFIGS, item, entry.error_code, entry.error_message
                    )
        results_of(done, errors)

    def _by_broker(self, resources: Iterable[ConfigResource]) -> list[tuple[int | None, list[ConfigResource]]]:
        """A named broker answers for its own settings; everything else any broker answers."""
        groups: dict[int | None, list[ConfigResource]] = {}
        for item in dict.fromkeys(resources):
            own = item.kind == "broker" and item.name != ""
            if own and not item.name.isdecimal():
                raise ConfigError("broker", item.name, "a broker's number, or nothing for every broker")
            groups.setdefault(int(item.name) if own else None, []).append(item)
        return list(groups.items())


def _name(item: Any) -> str:
    return str(item.name)
