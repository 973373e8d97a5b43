"""Levels of a process's loggers, changed while it runs: `strandline.kafka` goes by its own level, else by that of
`strandline`, else by the root's.

What is set lives as long as the process, as in Kafka. Nothing here writes a line: who does is told of each change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

ROOT = "root"

LEVELS = MappingProxyType({"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50})
"""Kafka's names of levels, and Python's numbers."""

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
"""Loggers of a node and what they tell; a test holds ours against the code."""

Apply = Callable[[str, int], None]
"""Gets a logger and the number of the level that it goes by from now on."""


class LogLevels:
    """Levels of a node's loggers.

    Invariant: the root has a level.
    """

    def __init__(self, at_start: Mapping[str, str]) -> None:
        """`at_start`: levels of loggers as the process begins, the root's among them."""
        self._at_start = {ROOT: "INFO", **at_start}
        self._set = dict(self._at_start)
        self._apply: Apply | None = None

    def level(self, name: str) -> str:
        """Kafka's name of the level that the logger goes by."""
        while name not in self._set:
            name = name.rpartition(".")[0] or ROOT
        return self._set[name]

    def number(self, name: str) -> int:
        """Python's number of the same."""
        return LEVELS[self.level(name)]

    def is_own(self, name: str) -> bool:
        """Whether the level was set for this very logger."""
        return name in self._set

    def set(self, name: str, level: str) -> None:
        """Let a logger go by this level, and those below it that have none of their own."""
        self._set[name] = level
        self._tell()

    def unset(self, name: str) -> None:
        """Let a logger go by what it went by at the start of the process, or by the one above it."""
        del self._set[name]
        if name in self._at_start:  # rule A41/a-deleted-level-forgets-the-start
            self._set[name] = self._at_start[name]
        self._tell()

    def applied_by(self, apply: Apply) -> None:
        """Give `apply` the levels of all loggers, now and after each change."""
        self._apply = apply
        self._tell()

    def _tell(self) -> None:
        if self._apply is not None:
            for name in LOGGERS:
                self._apply(name, self.number(name))
