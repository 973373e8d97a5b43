"""What a client pays for what it changes of the metadata (KIP-599)."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from strandline.proto.kafka.apis import Api

STRICT_SINCE: Mapping[str, int] = {
    Api.CREATE_TOPICS.title: 6,
    Api.DELETE_TOPICS.title: 5,
    Api.CREATE_PARTITIONS.title: 3,
}
"""Versions since which an API's clients know THROTTLING_QUOTA_EXCEEDED; from others nothing is refused for a quota."""


class Charge:
    """The changes of one request. This one is free: no quota is for its client.

    The work stands in its `with`; behind that the answer knows how long the client must wait.
    """

    def admits(self, partitions: int) -> bool:
        """Count so many before they are made or deleted; or false, and they are not counted: the client has had too
        much, and its request says so."""
        return True

    def correct(self, partitions: int) -> None:
        """So many more were made or deleted than were counted; less than 0: fewer."""

    def settle(self) -> None:
        """All is done that the client waits for."""

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()


FREE = Charge()
