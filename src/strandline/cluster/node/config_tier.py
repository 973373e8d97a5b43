"""Settings of tiered storage that must go together, and what is said of Kafka's that have no place here (KIP-405)."""

from __future__ import annotations

from strandline.proto.errors import ConfigError
from strandline.replica.tier_config import STORE_ENABLE, STORE_OPTIONS, STORE_URL, TierConfig


def check_tier(tier: TierConfig) -> None:
    """Check the settings of the object store together. Raises ConfigError."""
    if tier.store_enable and not tier.store_url:
        raise ConfigError(
            STORE_ENABLE, "true", f"false or empty without {STORE_URL}, which says where the object store is"
        )


_INSTEAD: tuple[tuple[tuple[str, ...], str], ...] = (
    (("remote.log.storage.manager.", "rsm.config."), f"the object store is named by {STORE_URL} and {STORE_OPTIONS}"),
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
    """Advice on a setting of Kafka's tiered storage that has no place here."""
    return next((reason for prefixes, reason in _INSTEAD if name.startswith(prefixes)), None)
