"""A caller's subscription to topics, and its listeners for partitions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable

from strandline.client.metadata import Metadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.ids import TopicPartition

Listener = Callable[[list[TopicPartition]], object]
"""Told of partitions; may be a coroutine function."""
Invoke = Callable[[Listener, list[TopicPartition]], Awaitable[None]]
"""How listeners are called: on the loop, or, for blocking consumers, by the thread that polls."""

Topics = str | Sequence[str] | re.Pattern[str]


async def invoke(listener: Listener, partitions: list[TopicPartition]) -> None:
    """Call a listener here."""
    result = listener(partitions)
    if isawaitable(result):
        await result


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """How a consumer stands.

    Attributes:
        name: unassigned, assigned (by `assign`, no membership), joining, stable, rebalancing, unmatched (the pattern
            subscribed to matches no topic yet), lost, failed, closed.
        generation, member_id: of the membership; -1 and empty without one. A member that is unmatched is one under the
            classic protocol; under that of KIP-848 it joins when a topic matches.
        last_error: what went wrong last in the group, None if nothing ever did; it may be over.
        waits_for: in words, what has to come before there is anything to read; empty where nothing has to.
    """

    name: str
    generation: int = -1
    member_id: str = ""
    last_error: StrandlineError | None = None
    waits_for: str = ""

    def __str__(self) -> str:
        member = f" (generation {self.generation} as {self.member_id})" if self.generation >= 0 else ""
        waits = f": {self.waits_for}" if self.waits_for else ""
        return self.name + member + waits + ("" if self.last_error is None else f"; last error: {self.last_error}")


@dataclass
class Subscribed:
    """What is subscribed to, and the listeners.

    Attributes:
        topics: the names, sorted; of a pattern those that exist, as far as known.
        pattern: None where names were given.
        on_assigned, on_revoked, on_lost: listeners; without `on_lost`, `on_revoked` is called with what is lost too.
    """

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    on_assigned: Listener | None
    on_revoked: Listener | None
    on_lost: Listener | None

    @classmethod
    def of(
        cls, topics: Topics, on_assigned: Listener | None, on_revoked: Listener | None, on_lost: Listener | None
    ) -> Subscribed:
        """Raises ConfigError: no topics, or something else than names."""
        listeners = (on_assigned, on_revoked, on_lost or on_revoked)
        if isinstance(topics, re.Pattern):
            return cls((), topics, *listeners)
        names = (topics,) if isinstance(topics, str) else tuple(sorted(dict.fromkeys(topics)))
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError("topics", topics, "one or more names of topics, or a compiled pattern")
        return cls(names, None, *listeners)

    @property
    def unmatched(self) -> str | None:
        """The pattern, while no topic is known that matches it; None otherwise, and of names."""
        return self.pattern.pattern if self.pattern is not None and not self.topics else None

    async def refresh(self, metadata: Metadata, timeout_ms: float) -> bool:
        """Look which topics match the pattern now; true when others do than before.

        A pattern matches whole names, as in Kafka, and no internal topics. Raises what `Metadata.ask` does.
        """
        if self.pattern is None:
            return False
        answer = await metadata.ask(None, timeout_ms)
        found = tuple(
            sorted(
                entry.name
                for entry in answer.topics
                if entry.error_code is ErrorCode.NONE and not entry.is_internal and self.pattern.fullmatch(entry.name)
            )
        )
        changed, self.topics = found != self.topics, found
        return changed
