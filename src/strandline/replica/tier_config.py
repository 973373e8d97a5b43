"""The settings of tiered storage on one node (KIP-405)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from strandline.proto.errors import ConfigError
from strandline.proto.secrets import resolved
from strandline.proto.settings import (
    INT64_MAX,
    ConfigType,
    Scope,
    Settings,
    milliseconds,
    parsed,
    size,
    split_list,
    whole,
)

STORE_URL = "remote.log.storage.url"
STORE_OPTIONS = "remote.log.storage.options"
STORE_ENABLE = "remote.log.storage.system.enable"

_SCHEMES = ("s3", "gs", "az", "file")


_URLS = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory, or empty for none"
_SWITCH = f"true, false, or empty: true where {STORE_URL} is set"


def _url(name: str, text: str) -> str:
    if not text:
        return ""
    parts = urlsplit(text)
    if parts.scheme not in _SCHEMES or not (parts.path.strip("/") if parts.scheme == "file" else parts.netloc):
        raise ConfigError(name, text, _URLS)
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(name, parts.scheme + "://...", f"{_URLS}; what else the client needs goes to {STORE_OPTIONS}")
    return text.rstrip("/")


def _store_options(name: str, text: str) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for place, part in enumerate(split_list(text), 1):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise ConfigError(name, text, f"KEY=VALUE,...; part {place} is not so")
        if key in options:
            raise ConfigError(name, text, f"each key once; {key} stands there twice")
        try:
            options[key] = resolved(value)
        except ValueError as error:
            raise ConfigError(name, text, f"KEY=VALUE,...; {key} is {error}") from None
    return MappingProxyType(options)


def _switch(name: str, text: str) -> bool | None:
    if text.lower() not in ("", "true", "false"):
        raise ConfigError(name, text, _SWITCH)
    return None if not text else text.lower() == "true"


class TierConfig(Settings, scope=Scope.NODE):
    """Settings of tiered storage in a node's file: the object store, and the limits on its use."""

    store_url = parsed(
        STORE_URL,
        _url,
        None,
        "Object store for old segments of topics with remote.storage.enable: s3://bucket/prefix, gs://bucket/prefix, "
        "az://container/prefix, or file:///directory mounted on all nodes. Must be the same on every node, controllers "
        "included. Empty: no tiered storage.",
        _URLS,
    )
    options = parsed(
        STORE_OPTIONS,
        _store_options,
        None,
        "Further options for the object store's client, as KEY=VALUE,... with the names of the object_store library "
        "(region, endpoint, access_key_id, ...). A value may be ${env:NAME}, ${file:/path/file.properties:key} or "
        "${dir:/path:file}. Never shown. Options that are not given come from the environment or the machine's own "
        "role, as that library finds them.",
        "KEY=VALUE,...",
        type=ConfigType.PASSWORD,
    )
    store_enable = parsed(
        STORE_ENABLE,
        _switch,
        None,
        f"true: this node uses the object store; false: it does not. Empty: true if {STORE_URL} is set.",
        _SWITCH,
        type=ConfigType.BOOLEAN,
    )
    task_interval_ms = milliseconds(
        "remote.log.manager.task.interval.ms",
        30_000,
        "Interval between checks for segments to copy, and for copied ones that retention allows to delete.",
        type=ConfigType.LONG,
    )
    copies_max = whole(
        "remote.log.manager.copier.thread.pool.size",
        2,
        "Maximum segments copied at once (Kafka: 10; here two fill a network, and copies compete with clients' reads).",
        low=1,
        high=1000,
    )
    copy_bytes_per_second = whole(
        "remote.log.manager.copy.max.bytes.per.second",
        INT64_MAX,
        "Maximum bytes a second that all copies together read and send.",
        low=1,
        high=INT64_MAX,
        unit="bytes/s",
    )
    fetch_wait_max_ms = milliseconds(
        "remote.fetch.max.wait.ms",
        500,
        "Longest time that a fetch waits for the object store. After it the fetch is answered without that data, which "
        "are kept for the next fetch.",
    )
    index_cache_bytes = size(
        "remote.log.index.file.cache.total.size.bytes",
        64 << 20,
        "Memory for the indexes of objects (Kafka: 1 GiB of files; here in memory, a few kilobytes a segment).",
        low=1 << 20,
    )
    cache_bytes = size(
        "remote.log.reader.cache.bytes",
        64 << 20,
        "Memory for the chunks of objects that consumers are reading (Kafka has no such cache).",
        low=8 << 20,
    )
    reads_max = whole("remote.log.reader.threads", 10, "Maximum reads of objects at once; more wait.", low=1, high=1000)
    timeout_ms = milliseconds(
        "remote.log.storage.timeout.ms",
        30_000,
        "Time limit of one request to the object store; then it is tried again.",
    )
    reaper_interval_ms = milliseconds(
        "remote.log.reaper.interval.ms",
        3_600_000,
        "Interval between checks for objects that no metadata name: those of deleted topics and of failed copies.",
    )
    reaper_grace_ms = milliseconds(
        "remote.log.reaper.grace.ms",
        86_400_000,
        "Time for which a broker sees an object that no metadata name before it deletes it; objects of deleted topics "
        "are deleted at once. A copy that takes half of this time is given up.",
        low=60_000,
    )

    @property
    def url(self) -> str:
        """URL of the object store, with the prefix of the cluster's objects; "" if there is none, or it is turned
        off."""
        return "" if self.store_enable is False else self.store_url

    @property
    def enabled(self) -> bool:
        """True if there is an object store."""
        return bool(self.url)
