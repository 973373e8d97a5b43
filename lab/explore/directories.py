"""The log directories of an explored broker: one, of one partition, on a disk that never fills up or fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lab.explore.logs import ModelLog
from strandline.proto.ensure import ensure


class LogDirs:
    """The directory of a broker with one partition."""

    __slots__ = ("_log",)

    def __init__(self, log: ModelLog) -> None:
        self._log = log

    def log_of(self, _: object) -> ModelLog:
        """Log of the partition."""
        return self._log

    def damage_of(self, _: object) -> None:
        """None: the log is whole."""

    def high_watermark_of(self, _: object) -> int:
        """The high watermark was last written down long ago."""
        return 0

    def choose(self, wanted: Iterable[object]) -> None:
        """No log is made."""
        ensure(not list(wanted), "LogUnlessOffline")

    def asides(self) -> list[str]:
        """Nothing was set aside."""
        return []


class _Room:
    """A disk that never fills up: the models know no others."""

    full = False

    def ran_out(self) -> None:
        raise AssertionError("the model's disk ran out of room")


class _Syncer:
    """Syncer that syncs in steps of the model."""

    is_behind = False

    def mark(self, log: Any, size: int = 0, *, waited_for: bool = True) -> None:
        log.mark()


class _Directory:
    """The one directory; nothing is ever deleted there."""

    room = _Room()
    syncer = _Syncer()


class _Directories:
    trace = None
    full = False

    def of(self, _: object) -> _Directory:
        return _DIRECTORY


_DIRECTORY = _Directory()


DIRECTORIES: Any = _Directories()
