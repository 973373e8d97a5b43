"""Replication throttles of moves (KIP-73), which are removed when the moves are over. Kafka's tool leaves them behind
unless it is called again (KAFKA-4596).

Topics list the replicas that are throttled as ``partition:broker``, brokers have the rates. A list that an operator
set to ``*`` stays as it is, and a rate that a broker had before comes back, unless it was that of another command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.client.admin import Admin
from strandline.client.types import ConfigChange, ConfigEntry, ConfigResource
from strandline.tools.moves.layout import Cluster, Move

SIDES = ("leader", "follower")
_LISTS = {side: f"{side}.replication.throttled.replicas" for side in SIDES}
_RATES = {side: f"{side}.replication.throttled.rate" for side in SIDES}
_ALL = "*"


class Throttle:
    """The throttle of some moves.

    Args:
        rate: bytes a second that each broker sends, and receives, for replicas that are moved.
    """

    def __init__(self, admin: Admin, rate: int) -> None:
        self._admin = admin
        self.rate = rate
        self._before: dict[ConfigResource, dict[str, str]] = {}
        """Former values, by broker whose rate was set."""
        self._lists: dict[ConfigResource, dict[str, None]] = {}
        """Names of the lists that were set, by topic."""
        self._rates_are_of_commands: bool | None = None

    def begin(self, cluster: Cluster, moves: Iterable[Move]) -> None:
        """Throttle what these moves copy, on the brokers that are alive."""
        pairs: dict[str, dict[str, dict[str, None]]] = {}
        brokers: dict[int, None] = {}
        for move in moves:
            of_topic = pairs.setdefault(move.tp.topic, {side: {} for side in SIDES})
            for side, nodes in (("leader", move.before), ("follower", move.added)):
                of_topic[side].update({f"{move.tp.partition}:{node}": None for node in nodes})
            brokers.update(dict.fromkeys((*move.before, *move.after)))
        if self._rates_are_of_commands is None:
            self._rates_are_of_commands = not _starred(self._admin, cluster)
        alive = [node for node in brokers if node in cluster.brokers and cluster.brokers[node].alive]
        topics = [ConfigResource("topic", name) for name in pairs]
        them = [ConfigResource("broker", str(node)) for node in alive]
        changes: dict[ConfigResource, list[ConfigChange]] = {}
        for resource, own in _own(self._admin, topics).items():
            for side, new in pairs[resource.name].items():
                had = [one for one in own.get(_LISTS[side], "").split(",") if one]
                if had != [_ALL] and new:
                    value = ",".join(dict.fromkeys((*had, *new)))
                    self._lists.setdefault(resource, {})[_LISTS[side]] = None
                    changes.setdefault(resource, []).append(ConfigChange(_LISTS[side], value))
        for resource, own in _own(self._admin, them).items():
            # schedule 165/the-rate-of-another-command-comes-back
            mine = {} if self._rates_are_of_commands else {name: own[name] for name in _RATES.values() if name in own}
            self._before.setdefault(resource, mine)
            changes[resource] = [ConfigChange(name, str(self.rate)) for name in _RATES.values()]
        if changes:
            self._admin.alter_configs(changes)

    def end(self, cluster: Cluster) -> bool:
        """Remove the throttle, and set brokers' former rates again. False while moves that it limits are under way.

        Everything that was set is removed even if brokers do not show it: one whose metadata are late does not yet.
        """
        if any(partition.moves for partition in cluster.partitions):
            return False
        alive = {node for node, one in cluster.brokers.items() if one.alive}
        there = {partition.tp.topic for partition in cluster.partitions}
        changes = {
            resource: [ConfigChange(name, operation="delete") for name in lists]
            for resource, lists in self._lists.items()
            if resource.name in there
        }
        for resource, had in self._before.items():  # schedule 164/what-is-not-shown-is-not-taken-away
            if int(resource.name) in alive:
                changes[resource] = [
                    ConfigChange(name, had[name]) if name in had else ConfigChange(name, operation="delete")
                    for name in _RATES.values()
                ]
        if changes:
            self._admin.alter_configs(changes)
        return True


def clear(admin: Admin, cluster: Cluster) -> list[str]:
    """Remove left-over throttles if nothing is moved any more. Returns a sentence for each that was removed."""
    changes = _left_over(admin, cluster)
    if changes:
        admin.alter_configs(changes)  # schedule 150/the-throttle-is-forgotten
    return _in_words(changes)


def left_over(admin: Admin, cluster: Cluster) -> list[str]:
    """Sentences for what `clear` would remove."""
    return _in_words(_left_over(admin, cluster))  # schedule 151/a-look-takes-the-throttle


def _in_words(changes: Mapping[ConfigResource, list[ConfigChange]]) -> list[str]:
    return [f"{one.kind} {one.name}: {', '.join(each.name for each in wanted)}" for one, wanted in changes.items()]


def _left_over(admin: Admin, cluster: Cluster) -> dict[ConfigResource, list[ConfigChange]]:
    """Changes that remove the throttles of finished moves; empty while anything is moved.

    Lists of ``partition:broker`` were set by a command; ``*`` was set by an operator, and stays. Rates of brokers are
    removed with the lists, and if no list leaves them anything to limit, as on a broker that was down when its list
    was removed.
    """
    if any(partition.moves for partition in cluster.partitions):
        return {}
    changes: dict[ConfigResource, list[ConfigChange]] = {}
    starred = False
    for resource, own in _own(admin, _topics(cluster)).items():
        starred |= any(own.get(name) == _ALL for name in _LISTS.values())
        lists = [name for name in _LISTS.values() if own.get(name, _ALL) != _ALL]
        if lists:
            changes[resource] = [ConfigChange(name, operation="delete") for name in lists]
    if starred and not changes:
        return {}
    alive = [ConfigResource("broker", str(node)) for node, one in cluster.brokers.items() if one.alive]
    for resource, own in _own(admin, alive).items():
        rates = [name for name in _RATES.values() if name in own]
        if rates:
            changes[resource] = [ConfigChange(name, operation="delete") for name in rates]
    return changes


def _topics(cluster: Cluster) -> list[ConfigResource]:
    return sorted({ConfigResource("topic", partition.tp.topic) for partition in cluster.partitions})


def _starred(admin: Admin, cluster: Cluster) -> bool:
    """Whether an operator throttles all replicas of a topic: then the rates of brokers are the operator's, too."""
    found = _own(admin, _topics(cluster)).values()
    return any(own.get(name) == _ALL for own in found for name in _LISTS.values())


def rates(admin: Admin, cluster: Cluster) -> Mapping[int, int]:
    """Lowest rate set on each broker, in bytes a second, for the progress of moves."""
    found = {}
    alive = [ConfigResource("broker", str(node)) for node, one in cluster.brokers.items() if one.alive]
    for resource, own in _own(admin, alive).items():
        values = [int(own[name]) for name in _RATES.values() if name in own]
        if values:
            found[int(resource.name)] = min(values)
    return found


def _own(admin: Admin, resources: list[ConfigResource]) -> dict[ConfigResource, dict[str, str]]:
    """Settings that are set on these topics and brokers themselves, without defaults."""
    if not resources:
        return {}
    found = admin.describe_configs(resources)
    return {resource: _set(entries) for resource, entries in found.items()}


def _set(entries: Iterable[ConfigEntry]) -> dict[str, str]:
    mine = ("DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG")
    return {entry.name: entry.value for entry in entries if entry.source in mine and entry.value is not None}
