"""A running cluster as its brokers describe it to a client: one document, as `strandline metadata dump` shows it.

Everything comes from what any client may ask. What a client has no right to, or no broker answers, is None, and
`unknown` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from strandline.client.admin import Admin
from strandline.client.types import ConfigResource
from strandline.proto.errors import StrandlineError
from strandline.proto.secrets import HIDDEN, shown

T = TypeVar("T")

RESOURCES_AT_ONCE = 500
"""Topics whose configs are asked for in one request."""


class Described:
    """The description of a cluster, as it is put together."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._unknown: list[str] = []

    def document(self) -> dict[str, Any]:
        """Everything that the brokers tell. Raises StrandlineError: not even who they are."""
        admin = self._admin
        cluster = admin.describe_cluster()
        names = sorted(admin.list_topics(include_internal=True))
        topics = admin.describe_topics(names)
        serving = [str(node.node_id) for node in cluster.nodes if not node.fenced]  # each tells of itself alone
        features = self._told("levels of features", admin.describe_features)
        acls = self._told("access control lists", admin.describe_acls)
        users = self._told("users", admin.describe_scram_credentials)
        quotas = self._told("quotas", admin.describe_client_quotas)
        quorum = self._told("the metadata quorum", admin.describe_quorum)
        return {
            "cluster_id": cluster.cluster_id,
            "offset": None if quorum is None else quorum.high_watermark - 1,
            "epoch": None if quorum is None else quorum.leader_epoch,
            "levels": None if features is None else dict(features.finalized),
            "brokers": [asdict(node) for node in cluster.nodes],
            "topics": self._topics(topics),
            "broker_configs": self._configs("broker", ["", *serving]),
            "acls": None if acls is None else [asdict(one) for one in acls],
            "users": None
            if users is None
            else [
                {"user": name, "mechanism": one.mechanism, "iterations": one.iterations, "keys": HIDDEN}
                for name, several in sorted(users.items())
                for one in several
            ],
            "quotas": None
            if quotas is None
            else [
                {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip, "quotas": dict(values)}
                for entity, values in quotas.items()
            ],
            "voters": None if quorum is None else [asdict(one) for one in quorum.voters],
            "observers": None if quorum is None else [asdict(one) for one in quorum.observers],
            "unknown": self._unknown,
        }

    def _told(self, what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except StrandlineError as error:
            self._unknown.append(f"{what}: {error}")
            return None

    def _topics(self, topics: Any) -> list[dict[str, Any]]:
        configs = {
            one["topic"]: one["configs"] for one in self._configs("topic", [topic.name for topic in topics]) or ()
        }
        return [
            {
                "name": topic.name,
                "topic_id": None if topic.topic_id is None else str(topic.topic_id),
                "configs": configs.get(topic.name),
                "partitions": [asdict(part) for part in topic.partitions],
            }
            for topic in topics
        ]

    def _configs(self, kind: str, names: list[str]) -> list[dict[str, Any]] | None:
        """The dynamic configs that are set on each resource itself."""
        found: list[dict[str, Any]] = []
        for at in range(0, len(names), RESOURCES_AT_ONCE):
            resources = [ConfigResource(kind, name) for name in names[at : at + RESOURCES_AT_ONCE]]
            told = self._told(f"configs of {kind}s", partial(self._admin.describe_configs, resources))
            if told is None:
                return None
            for resource, entries in told.items():
                source = f"DYNAMIC_{kind.upper()}_CONFIG" if resource.name else "DYNAMIC_DEFAULT_BROKER_CONFIG"
                configs = {entry.name: shown(entry.name, entry.value) for entry in entries if entry.source == source}
                if configs or kind == "topic":
                    found.append({kind: resource.name or None, "configs": configs})
        return found
