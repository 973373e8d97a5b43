"""The one error tree.

    StrandlineError
    ├── KafkaError                   an answer with Kafka's name and number: `retriable` says whether a retry may help
    │   └── NoSpaceLeft              a full disk: nothing was written, and nothing is fenced
    ├── ProtocolError                the peer's mistake: a frame that is not what it says (local bugs raise it too)
    ├── ConfigError                  the operator's mistake: key, value and what is allowed
    │   └── DirectoryInUse           another process has the data directory
    ├── StorageError                 this machine's disk: the log that raised it is fenced
    │   └── CorruptLogError          damage in the middle of what was once durable: file, position, what to do
    ├── MissingExtra                 a library that only some programs need is not installed; says what to type
    ├── StoreError                   the object store did not do what was asked: the same may succeed later
    │   └── ObjectMissing            it has no such object
    └── FatalError                   the node must stop now; going on could lose or corrupt data

Figures that a caller may want (sizes, limits, offsets) are attributes, not only words in the message.
"""

from __future__ import annotations

from typing import Any, Self

from strandline.proto.error_codes import ErrorCode
from strandline.proto.extras import installing
from strandline.proto.secrets import shown


class StrandlineError(Exception):
    """Root of every error that Strandline raises on purpose."""


class KafkaError(StrandlineError):
    """An error with Kafka's code. `figures` are keyword facts (sizes, limits, offsets) shown after the message."""

    def __init__(self, code: ErrorCode, message: str = "", **figures: Any) -> None:
        self.code = code
        self.message = message
        self.figures = figures
        facts = ", ".join(f"{key}={value}" for key, value in figures.items())
        text = f"{code.name} ({int(code)})"
        if message:
            text += f": {message}"
        if facts:
            text += f" [{facts}]"
        super().__init__(text)

    @property
    def retriable(self) -> bool:
        """True if the same request may succeed later."""
        return self.code.retriable

    @property
    def refresh_metadata(self) -> bool:
        """Fetch metadata anew before a retry."""
        return self.code.refresh_metadata

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_kafka_error, (type(self), self.code, self.message, self.figures))


class NoSpaceLeft(KafkaError):
    """A write found no room on the disk, and nothing was written: the same may succeed once there is some."""

    def __init__(self, where: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"no space left {where}")


def _rebuild_kafka_error(kind: type[KafkaError], code: ErrorCode, message: str, figures: dict[str, Any]) -> KafkaError:
    error = kind.__new__(kind)
    KafkaError.__init__(error, code, message, **figures)
    return error


class ProtocolError(StrandlineError):
    """A frame or message that does not follow its format: lying length or count, unknown version, truncated."""


class ConfigError(StrandlineError):
    """A configuration value that cannot stand. The value of a secret is hidden, in the attribute too."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        value = shown(key, value)
        self.key = key
        self.value = value
        self.allowed = allowed
        super().__init__(f"{key} = {value!r} is not allowed: {allowed}")


class DirectoryInUse(ConfigError):
    """Another process uses the data directory. `holder` says which, in words."""

    def __init__(self, path: str, holder: str) -> None:
        self.holder = holder
        advice = f"{holder} uses this directory. Stop that process, or give this one a directory of its own"
        super().__init__("log.dirs", path, advice)


class MissingExtra(StrandlineError, ImportError):
    """A library that only some programs need is not installed; the message has the command that installs it."""

    @classmethod
    def of(cls, what: str, extra: str, error: ImportError) -> Self:
        """Says which extra brings what this needs."""
        return cls(f"{what} needs a library that is not here ({error}): {installing(extra)}")


class StorageError(StrandlineError):
    """The disk failed under a log; that log accepts nothing more until the node restarts and recovers it."""


class CorruptLogError(StorageError):
    """Damage in data that was once durable. Never cut silently (rule E5: no torn tail)."""

    def __init__(self, path: str, position: int, offset: int | None, reason: str, advice: str) -> None:
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason
        self.advice = advice
        where = f"{path} at byte {position}" + ("" if offset is None else f" (offset {offset})")
        super().__init__(f"{where}: {reason}. {advice}")


class StoreError(StrandlineError):
    """The object store is away, slow, full of other work, or refuses: nothing is fenced, and the same may succeed
    later.

    A write that ended with it may have been carried out all the same.
    """


class ObjectMissing(StoreError):
    """The object store is there, and has no object of this key."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the object store has no object {key}")


class FatalError(StrandlineError):
    """The node must stop: an unknown metadata record, a poisoned disk, a broken invariant."""
