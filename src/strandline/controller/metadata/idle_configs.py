"""Topic configs that are taken and have no effect yet, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from strandline.controller.metadata.config_key import (
    INT64_MAX,
    ConfigKey,
    ConfigType,
    Validator,
    boolean,
    integer,
    one_of,
)


def _only_topics(name: str, type: ConfigType, default: str, validate: Validator, doc: str) -> ConfigKey:
    """A topic config without a default of the brokers."""
    return ConfigKey(name, type, default, doc, validate, "")


IDLE_TOPIC_KEYS = (
    _only_topics(
        "flush.messages",
        ConfigType.LONG,
        str(INT64_MAX),
        integer(1, INT64_MAX),
        "After so many records the log is synced.",
    ),
    _only_topics(
        "flush.ms",
        ConfigType.LONG,
        str(INT64_MAX),
        integer(0, INT64_MAX),
        "After so long the log is synced, in milliseconds.",
    ),
    _only_topics(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        integer(-2, INT64_MAX),
        "What of a tiered partition stays on the broker, in bytes; -2: as retention.bytes.",
    ),
    _only_topics(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        integer(-2, INT64_MAX),
        "How long records of a tiered partition stay on the broker, in milliseconds; -2: as retention.ms.",
    ),
    _only_topics(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        boolean,
        "true: files of new segments are allocated at their full size.",
    ),
    _only_topics(
        "remote.copy.lag.bytes",
        ConfigType.LONG,
        "0",
        integer(-1, INT64_MAX),
        "How many bytes wait before they are copied to the remote tier.",
    ),
    _only_topics(
        "remote.copy.lag.ms",
        ConfigType.LONG,
        "0",
        integer(-1, INT64_MAX),
        "How long a segment waits before it is copied to the remote tier, in milliseconds.",
    ),
    _only_topics(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        "false",
        boolean,
        "true: nothing more is copied to the remote tier.",
    ),
    _only_topics(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        boolean,
        "true: what the remote tier has is deleted when it is turned off.",
    ),
    _only_topics(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        one_of("false", because=" (there is no tiered storage)"),
        "true: old segments move to a remote tier. Refused, as by a Kafka whose tiered storage is off.",
    ),
)
"""Configs that Kafka has and of which no value has an effect here."""

_FLUSH = "flush.policy says when records are synced, by default before each acknowledgement"
_TIERED = "there is no tiered storage"

_REASONS: Mapping[str, str] = {
    "flush.messages": _FLUSH,
    "flush.ms": _FLUSH,
    "local.retention.bytes": _TIERED,
    "local.retention.ms": _TIERED,
    "preallocate": "files are allocated ahead of their data in steps that grow with the segment",
    "remote.copy.lag.bytes": _TIERED,
    "remote.copy.lag.ms": _TIERED,
    "remote.log.copy.disable": _TIERED,
    "remote.log.delete.on.disable": _TIERED,
    "remote.storage.enable": _TIERED,
}
"""Why a topic config has no effect yet, by its name."""


def with_reason(key: ConfigKey) -> ConfigKey:
    """The config, with why it has no effect yet if it has none."""
    return replace(key, idle=_REASONS.get(key.name, ""))
