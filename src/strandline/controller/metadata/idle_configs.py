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
        one_of("false", because=" (what is closed of a tiered topic is copied)"),
        "true: nothing more is copied to the remote tier. Refused.",
    ),
    _only_topics(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        one_of("false", because=" (what is in the object store goes by retention, or with the topic)"),
        "true: what the remote tier has is deleted when it is turned off. Refused.",
    ),
)
"""Configs that Kafka has and of which no value has an effect here."""

_FLUSH = "flush.policy says when records are synced, by default before each acknowledgement"
_LAG = "a segment is copied once it is closed and committed"
_ONE_WAY = "a topic is tiered as long as it has segments in the object store"

_REASONS: Mapping[str, str] = {
    "flush.messages": _FLUSH,
    "flush.ms": _FLUSH,
    "preallocate": "files are allocated ahead of their data in steps that grow with the segment",
    "remote.copy.lag.bytes": _LAG,
    "remote.copy.lag.ms": _LAG,
    "remote.log.copy.disable": _ONE_WAY,
    "remote.log.delete.on.disable": _ONE_WAY,
}
"""Why a topic config has no effect yet, by its name."""


def with_reason(key: ConfigKey) -> ConfigKey:
    """The config, with why it has no effect yet if it has none."""
    return replace(key, idle=_REASONS.get(key.name, ""))
