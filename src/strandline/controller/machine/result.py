"""What a command of the machine comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from strandline.controller.metadata.records import MetadataRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """Records to append, all or none, and the reply to give once they are committed.

    A reply without records was read from the working image, which may run ahead of what is committed: it too waits
    until everything appended before it is committed.
    """

    reply: T
    records: list[MetadataRecord] = field(default_factory=list)
