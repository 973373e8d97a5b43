"""Settings that a broker takes and that do nothing there yet: named where they are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.cli.screen import echo
from strandline.client.types import ConfigChange, ConfigResource

if TYPE_CHECKING:
    from strandline.client.admin import Admin


def without_effect(admin: Admin, resource: ConfigResource, values: Mapping[str, str]) -> dict[str, str]:
    """Settings among `values` that have no effect yet, each with the reason: the broker's documentation of its settings
    says so (an Apache Kafka's says it of none).

    A dry run is about a topic that is not there; every topic's settings have the same documentation, so another one is
    asked for.
    """
    if not values:
        return {}
    if resource.kind == "topic":
        there = admin.list_topics(include_internal=True)
        if resource.name not in there:
            if not there:
                return {}
            resource = ConfigResource("topic", there[0])
    elif not resource.name:
        resource = ConfigResource("broker", str(admin.describe_cluster().nodes[0].node_id))
    entries = {entry.name: entry for entry in admin.describe_configs([resource], documentation=True)[resource]}
    reasons = {name: entries[name].without_effect(value) for name, value in values.items() if name in entries}
    return {name: reason for name, reason in reasons.items() if reason}


def values_set(changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Values that the changes set, by name."""
    return {change.name: change.value for change in changes if change.operation == "set" and change.value is not None}


def warn(values: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    """Warn on standard error of each setting without effect."""
    for name, reason in reasons.items():
        echo(f"warning: {name}={values[name]} has no effect yet: {reason}", err=True)
