"""Settings that do nothing yet are taken, for the sake of what is written for Kafka, and named in the log."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from strandline.controller.metadata.image import ResourceType
from strandline.controller.metadata.topic_configs import settings_without_effect

log = structlog.get_logger("strandline.broker")


def log_without_effect(kind: ResourceType, name: str, values: Mapping[str, str | None]) -> None:
    """A line for each of the settings that does nothing, with the reason."""
    given = {setting: value for setting, value in values.items() if value is not None}
    for setting, reason in settings_without_effect(given, topic=kind is ResourceType.TOPIC).items():
        where = kind.name.lower()
        log.warning(
            "a setting without effect was set", **{where: name}, setting=setting, value=given[setting], why=reason
        )
