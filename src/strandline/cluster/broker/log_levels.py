"""Levels of a process's loggers, which can be changed while it runs. A logger without a level of its own has that of
its parent: `strandline.kafka` that of `strandline`, which has the root's.

Changes last until the process ends, as in Kafka. The logging itself is elsewhere, and is notified of each change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

ROOT = "root"

LEVELS = MappingProxyType({"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50})
"""Kafka's names of levels, with Python's numbers."""

OUR = "strandline"

LOGGERS: Mapping[str, str] = MappingProxyType(
    {
        ROOT: "Everything that is not named here: libraries.",
        OUR: "All of the node.",
        "strandline.audit": "Changes, logins and denials, where there is an authorizer.",
        "strandline.authorizer": "What ACLs allow and deny.",
        "strandline.broker": "Topics, configs, leadership: what a broker does for the cluster.",
        "strandline.controller": "The active controller: registrations, elections, balances.",
        "strandline.coordinator": "Groups of consumers and their offsets.",
        "strandline.disk": "Syncs that take long, disks that fail.",
        "strandline.http": "The HTTP listener.",
        "strandline.internal": "Calls between nodes.",
        "strandline.kafka": "Clients: connections, refusals, slow requests.",
        "strandline.log": "Logs of partitions: recovery, segments, retention, compaction.",
        "strandline.node": "Start, stop, and what a node cannot outlive.",
        "strandline.quorum": "The metadata quorum.",
        "strandline.replica": "Replicas: roles, followers, ISR, rot.",
        "strandline.security": "Certificates, logins, credentials.",
        "strandline.transactions": "Transactions and their markers.",
        "asyncio": "Python's event loop.",
        "grpc": "The library of calls between nodes.",
    }
)
"""Loggers of a node and their subjects; a test compares those of `strandline` with the code."""

Apply = Callable[[str, int], None]
"""Sets the level of a logger: (logger's name, Python's number of the level)."""


class LogLevels:
    """Levels of a node's loggers.

    Invariant: the root has a level.
    """

    def __init__(self, at_start: Mapping[str, str]) -> None:
        """`at_start`: levels of loggers at the start of the process; the root's is INFO if missing."""
        self._at_start = {ROOT: "INFO", **at_start}
        self._set = dict(self._at_start)
        self._apply: Apply | None = None

    def level(self, name: str) -> str:
        """Return Kafka's name of the logger's level, its own or inherited."""
        while name not in self._set:
            name = name.rpartition(".")[0] or ROOT
        return self._set[name]

    def number(self, name: str) -> int:
        """Return Python's number of the logger's level."""
        return LEVELS[self.level(name)]

    def is_own(self, name: str) -> bool:
        """Return whether the logger has a level of its own."""
        return name in self._set

    def set(self, name: str, level: str) -> None:
        """Set the level of a logger, and of its descendants that have none of their own."""
        self._set[name] = level
        self._tell()

    def unset(self, name: str) -> None:
        """Give a logger back its level from the start of the process, or its parent's. Raises KeyError without an own
        level."""
        del self._set[name]
        if name in self._at_start:  # rule A41/a-deleted-level-forgets-the-start
            self._set[name] = self._at_start[name]
        self._tell()

    def applied_by(self, apply: Apply) -> None:
        """Call `apply` for all loggers, now and after each change."""
        self._apply = apply
        self._tell()

    def _tell(self) -> None:
        if self._apply is not None:
            for name in LOGGERS:
                self._apply(name, self.number(name))
