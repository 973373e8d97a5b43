"""The settings of tiered storage: where the object store is, and how much of this node it may take (KIP-405)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from strandline.cluster.node.config_values import Setting, integer, milliseconds, size
from strandline.controller.metadata.config_key import INT64_MAX, ConfigType, split_list
from strandline.proto.errors import ConfigError
from strandline.proto.secrets import resolved
from strandline.replica.tier_config import TierConfig

URL = "remote.log.storage.url"
OPTIONS = "remote.log.storage.options"
ENABLE = "remote.log.storage.system.enable"

_SCHEMES = ("s3", "gs", "az", "file")


def _url(name: str, text: str) -> str:
    if not text:
        return ""
    parts = urlsplit(text)
    shape = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory, or empty for none"
    if parts.scheme not in _SCHEMES or not (parts.path.strip("/") if parts.scheme == "file" else parts.netloc):
        raise ConfigError(name, text, shape)
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(name, parts.scheme + "://...", f"{shape}; what else the client needs goes to {OPTIONS}")
    return text.rstrip("/")


def _options(name: str, text: str) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for number, part in enumerate(split_list(text), 1):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise ConfigError(name, text, f"KEY=VALUE,...; part {number} is not so")
        if key in options:
            raise ConfigError(name, text, f"each key once; {key} stands there twice")
        try:
            options[key] = resolved(value)
        except ValueError as error:
            raise ConfigError(name, text, f"KEY=VALUE,...; {key} is {error}") from None
    return MappingProxyType(options)


def _switch(name: str, text: str) -> bool | None:
    if text.lower() not in ("", "true", "false"):
        raise ConfigError(name, text, f"true, false, or empty: true where {URL} is set")
    return None if not text else text.lower() == "true"


class Tiered:
    """The object store, and what it may take."""

    values: Mapping[str, Any]

    remote_storage_url: Setting[str] = Setting(
        URL,
        _url,
        "",
        "The object store for old segments of topics with remote.storage.enable: s3://bucket/prefix, "
        "gs://bucket/prefix, az://container/prefix, or file:///directory that all nodes have mounted. Give every node "
        "the same, controllers too. Empty: no tiered storage.",
    )
    remote_storage_options: Setting[Mapping[str, str]] = Setting(
        OPTIONS,
        _options,
        "",
        "What the client of the object store needs beside, as KEY=VALUE,... with the names of object_store (region, "
        "endpoint, access_key_id, ...). A value may be ${env:NAME}, ${file:/path/file.properties:key} or "
        "${dir:/path:file}. Never shown. What is not given is taken from the environment or the machine's own role, "
        "as that client does it.",
        type=ConfigType.PASSWORD,
    )
    remote_storage_enable: Setting[bool | None] = Setting(
        ENABLE,
        _switch,
        "",
        f"Whether this node uses the object store. Empty: where {URL} is set.",
        type=ConfigType.BOOLEAN,
    )
    remote_task_interval_ms = milliseconds(
        "remote.log.manager.task.interval.ms",
        30_000,
        "How often is looked for segments to copy, and for copied ones that retention takes.",
    )
    remote_copies_max = integer(
        "remote.log.manager.copier.thread.pool.size",
        2,
        "Segments that are copied at once (Kafka: 10; two keep a network busy, and each takes from what clients read).",
        low=1,
        high=1000,
    )
    remote_copy_bytes_per_second = integer(
        "remote.log.manager.copy.max.bytes.per.second",
        INT64_MAX,
        "The most that copying reads and sends in a second, altogether.",
        low=1,
        high=INT64_MAX,
        unit="bytes",
    )
    remote_fetch_wait_max_ms = milliseconds(
        "remote.fetch.max.wait.ms",
        500,
        "How long a fetch waits for the object store; then it is answered with what there is, and what comes late is "
        "kept for the next one.",
    )
    remote_index_cache_bytes = size(
        "remote.log.index.file.cache.total.size.bytes",
        64 << 20,
        "Memory for indexes of objects (Kafka: 1 GiB of files; here they are in memory, a few kilobytes a segment).",
        low=1 << 20,
    )
    remote_cache_bytes = size(
        "remote.log.reader.cache.bytes",
        64 << 20,
        "Memory for chunks of objects that consumers are reading (Kafka knows nothing like it).",
        low=8 << 20,
    )
    remote_reads_max = integer(
        "remote.log.reader.threads", 10, "Reads of objects at once; further ones wait.", low=1, high=1000
    )
    remote_storage_timeout_ms = milliseconds(
        "remote.log.storage.timeout.ms",
        30_000,
        "How long one request to the object store may take, before it is tried again.",
    )
    remote_reaper_interval_ms = milliseconds(
        "remote.log.reaper.interval.ms",
        3_600_000,
        "How often is looked for objects that no metadata name: of deleted topics, of copies that failed.",
    )
    remote_reaper_grace_ms = milliseconds(
        "remote.log.reaper.grace.ms",
        86_400_000,
        "How long a broker finds an object that no metadata name before it deletes it; objects of deleted topics go at "
        "once. A copy that takes half as long is given up.",
        low=60_000,
    )

    @property
    def tier(self) -> TierConfig:
        """These settings, for whoever copies and reads."""
        return TierConfig(
            url="" if self.remote_storage_enable is False else self.remote_storage_url,
            options=self.remote_storage_options,
            task_interval_ms=self.remote_task_interval_ms,
            copies_max=self.remote_copies_max,
            copy_bytes_per_second=self.remote_copy_bytes_per_second,
            reads_max=self.remote_reads_max,
            fetch_wait_max_ms=self.remote_fetch_wait_max_ms,
            index_cache_bytes=self.remote_index_cache_bytes,
            cache_bytes=self.remote_cache_bytes,
            timeout_ms=self.remote_storage_timeout_ms,
            reaper_interval_ms=self.remote_reaper_interval_ms,
            reaper_grace_ms=self.remote_reaper_grace_ms,
        )


def check_tier(url: str, enabled: bool | None) -> None:
    """The settings of the object store together. Raises ConfigError."""
    if enabled and not url:
        raise ConfigError(ENABLE, "true", f"false or empty without {URL}, which says where the object store is")


_INSTEAD: tuple[tuple[tuple[str, ...], str], ...] = (
    (("remote.log.storage.manager.", "rsm.config."), f"the object store is named by {URL} and {OPTIONS}"),
    (
        ("remote.log.metadata.", "rlmm.config."),
        "what lies in the object store stands in the cluster's own metadata log",
    ),
    (
        ("remote.log.manager.fetch.max.bytes.per.second",),
        "reads of the object store are bounded by remote.log.reader.threads; quotas bound what consumers take",
    ),
    (
        ("remote.log.manager.copy.quota.", "remote.log.manager.fetch.quota."),
        "the rate of copies is bounded over a second, by remote.log.manager.copy.max.bytes.per.second",
    ),
    (
        ("remote.log.manager.thread.pool.size", "remote.log.manager.expiration.", "remote.log.manager.follower."),
        "there are no thread pools but remote.log.manager.copier.thread.pool.size and remote.log.reader.threads",
    ),
    (
        ("remote.log.manager.task.retry.", "remote.log.reader.max.pending.tasks", "remote.list.offsets."),
        "what fails is tried again with growing pauses, and reads wait for their turn within their own time",
    ),
)


def tier_advice(name: str) -> str | None:
    """What to do about a setting of Kafka's tiered storage that has no place here."""
    return next((reason for prefixes, reason in _INSTEAD if name.startswith(prefixes)), None)
